"""Measures against brute force and published figures, the graph, and drawings of all chips."""

import gc
from dataclasses import asdict
from fractions import Fraction
from io import BytesIO
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.small_shapes import (
    GB,
    closes,
    distances,
    equal_paths,
    shapes,
    smallest_cut,
    tiereds,
    tori,
    torus,
)
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machines
from topologies.clusters.names import cluster
from topologies.drawing import draw
from topologies.routing import routes
from topologies.shapes.basic import Clos, FullMesh, Switch, Tier, Tiered
from topologies.shapes.links import domain_links
from topologies.shapes.measures import (
    all_to_all_bytes_per_s,
    bisection,
    bisections,
    diameter_hops,
    links_per_chip,
    mean_hops,
    scale_up_bytes_per_s,
    switch_hops,
)
from topologies.shapes.scale_out import ScaleOut
from topologies.views.graph import edge_table, graph, node_names
from topologies.views.measures import _counts, measure


def trn3(*switches):
    """Two racks of two boards of two chips, at the rates of Trn3."""
    rates = zip((128, 512, 512), switches, strict=True)
    return Tiered(tuple(Tier("", 2, rate * GB, 0, count) for rate, count in rates))


PLAIN = {"bandwidth": "100GB/s", "latency": "1us"}


@given(st.one_of(shapes(), closes(60)))
def test_hops_against_breadth_first_search(shape):
    hops = distances(shape)
    pairs = shape.chips * (shape.chips - 1)
    assert diameter_hops(shape) == hops.max(initial=0)
    assert mean_hops(shape) == pytest.approx(hops.sum() / pairs if pairs else 0.0)


@examples(80)
@given(st.one_of(tori(10), tiereds(9)))
@example(FullMesh(7, GB, 0))
@example(Switch(7, GB, 0))
@example(Switch(1, GB, 0))
@example(trn3(0, 2, 0))
@example(trn3(0, 3, 2))
def test_bisection_against_all_halves(shape):
    odd = isinstance(shape, Tiered) and any(size > 1 and size % 2 for size in shape.sizes)
    least = smallest_cut(shape)
    assert bisection(shape) >= least if odd else bisection(shape) == least


def test_cuts_of_a_clos_and_across_each_axis():
    """k-port switches: a leaf has k/2 chips and k/2 uplinks, so every layer has a link a chip."""
    assert bisection(Clos(16, 4, GB, 0)) == 8 * GB
    assert bisection(Clos(18, 4, GB, 0, Fraction(3))) == 3 * GB
    for size, layers in ((8, 1), (32, 2), (128, 3)):
        assert _counts(Clos(size, 8, GB, 0))[1] == 2 * size * layers
    by_axis = {"Z": 2048 * GB, "Y": 4096 * GB, "X": 4096 * GB}
    assert bisections(cluster("trn2-ultraserver").shape) == by_axis
    assert measure(cluster("trn3-gen2")).bisections_bytes_per_s["cross-rack"] == 9216 * GB
    assert bisections(torus(1, 4)) == {"Y": 200 * GB}


def busiest_load(shape):
    """Seconds for which uniform traffic of 1 B a pair keeps the busiest link."""
    src, dst = np.divmod(np.arange(shape.chips**2), shape.chips)
    links = domain_links(shape)
    if isinstance(shape, Clos):
        load = np.zeros(len(links))
        for ends in zip(src.tolist(), dst.tolist(), strict=True):
            paths = equal_paths(shape, *ends)
            np.add.at(load, [row for path in paths for row in path], 1 / len(paths))
    else:
        both = [routes(shape, src, dst, tie=tie).link for tie in (1, -1)]
        load = np.bincount(np.concatenate(both), minlength=len(links)) / 2
    return float((load / links.bandwidth_bytes_per_s).max())


@given(shapes(30))
def test_uniform_all_to_all_against_the_load_of_all_routes(shape):
    ceiling = all_to_all_bytes_per_s(shape)
    if shape.chips == 1:
        assert ceiling is None
    elif not isinstance(shape, Clos):
        assert ceiling == pytest.approx((shape.chips - 1) / busiest_load(shape))


FULL = [Clos(6, 8, GB, 0), Clos(16, 4, GB, 0), Clos(18, 4, GB, 0, Fraction(3))]


@pytest.mark.parametrize("shape", FULL)
def test_uniform_all_to_all_of_full_closes(shape):
    assert all_to_all_bytes_per_s(shape) == pytest.approx((shape.chips - 1) / busiest_load(shape))


@given(shapes())
def test_degree_and_rate_are_means_over_the_chips(shape):
    links = domain_links(shape, fold=False)
    from_chip = links.src < shape.chips
    assert links_per_chip(shape) == pytest.approx(np.count_nonzero(from_chip) / shape.chips)
    assert _counts(shape) == (links.nodes - shape.chips, len(links.src))
    rate = links.bandwidth_bytes_per_s[from_chip].sum() / shape.chips
    assert scale_up_bytes_per_s(shape) == pytest.approx(rate, abs=1)


def test_switch_hops_by_distance():
    assert switch_hops(cluster("trn3-gen1").shape) == {"plane": 1, "rack": 2, "cross-rack": 3}
    assert switch_hops(cluster("trn3-gen2").shape) == {"plane": 1, "rack": 3, "cross-rack": 4}
    assert switch_hops(Clos(16, 4, GB, 0)) == {"leaf": 1, "pod": 3, "core": 5}
    assert switch_hops(Switch(4, GB, 0)) == {"switch": 1}
    assert switch_hops(torus(4)) == {}


def test_totals_are_sums_over_the_chips():
    one, many = (measure(cluster("trn2-ultraserver")), measure(cluster("trn2-ultraserver:10")))
    assert one.hbm_bytes == 6144 * 2**30
    assert one.hbm_bytes_per_s == 185_600 * GB
    assert one.scale_up_bytes_per_s_per_chip == 640 * GB
    assert one.flops_per_s["bf16"] == pytest.approx(42.7e15, rel=0.001)
    assert one.flops_per_s_per_chip["fp8"] == 1299e12
    assert many.hbm_bytes == 10 * (one.hbm_bytes or 0)
    assert many.flops_per_s["fp8"] == pytest.approx(10 * one.flops_per_s["fp8"])
    assert (many.nics, many.hosts, many.links) == (640, 40, 3840)
    assert many.bisection_bytes_per_s == one.bisection_bytes_per_s
    for name in ("trn1.32xlarge", "trn2.48xlarge", "dgx-h100"):
        assert not {"int8", "sparse", "vector"} & set(measure(cluster(name)).flops_per_s)
    assert measure(cluster("rainier:1000000")).links == 6_000_000


def test_plain_shapes_have_no_memory_and_no_fabric():
    measured = measure(cluster("torus:1x1", **PLAIN))
    assert (measured.hbm_bytes, measured.hbm_bytes_per_s, measured.flops_per_s) == (None, None, {})
    assert (measured.scale_out_links, measured.nics, measured.hosts) == (0, 0, 0)
    assert measured.scale_out_bisection_bytes_per_s == measured.bisection_bytes_per_s == 0
    assert (measured.diameter_hops, measured.mean_hops, measured.links) == (0, 0.0, 0)
    assert measured.all_to_all_bytes_per_s_per_chip is None


def test_oversubscription_thins_the_cut_between_servers():
    thin = shipped_catalogue().with_variants({"efa-v3.oversubscription": "two-to-one"})
    even = measure(cluster("trn2-ultraserver:64"))
    assert even.scale_out_bisection_bytes_per_s == 2048 * 25 * GB
    half = measure(cluster("trn2-ultraserver:64", catalogue=thin))
    assert half.scale_out_bisection_bytes_per_s == 1024 * 25 * GB


CLUSTERS = [
    ("ring:2", PLAIN), ("torus:2x3x1", PLAIN), ("mesh:5", PLAIN), ("clos:40:8:3", PLAIN),
    ("trn2.48xlarge", {}), ("trn2-ultraserver:12", {}), ("trn3-gen1:2", {}), ("trn3-gen2", {}),
    ("p5.48xlarge:20", {}), ("dgx-h100:40", {}),
]  # fmt: skip


def by_add_edge(name, rates):
    multigraph = nx.MultiDiGraph()
    table = edge_table(cluster(name, **rates))
    names = node_names(table)
    multigraph.add_nodes_from(names)
    columns = (column.tolist() for column in (table.src, table.dst, table.kind))
    for src, dst, kind in zip(*columns, strict=True):
        multigraph.add_edge(names[src], names[dst], **asdict(table.kinds[kind]))
    return multigraph


@pytest.mark.parametrize(("name", "rates"), CLUSTERS)
def test_graph_equals_one_made_with_add_edge(name, rates):
    fast, slow = graph(cluster(name, **rates)), by_add_edge(name, rates)
    assert list(fast.nodes) == list(slow.nodes)
    assert nx.to_dict_of_dicts(fast) == nx.to_dict_of_dicts(slow)
    assert set(fast.reverse().edges(keys=True)) == {(b, a, k) for a, b, k in slow.edges(keys=True)}


@pytest.mark.parametrize(("name", "rates"), CLUSTERS)
def test_graph_has_the_nodes_and_edges_that_measures_count(name, rates):
    multigraph, counted = graph(cluster(name, **rates)), measure(cluster(name, **rates))
    assert multigraph.number_of_edges() == counted.links + counted.scale_out_links
    kinds = [kind for _, kind in multigraph.nodes(data="kind")]
    for node, attributes in multigraph.nodes(data=True):
        if attributes["kind"] == "switch":  # of its chips' domain
            chips = (each for each in multigraph[node] if multigraph.nodes[each]["kind"] == "chip")
            domains = {multigraph.nodes[chip]["domain"] for chip in chips}
            assert domains <= {attributes["domain"]}
    assert [kinds.count(kind) for kind in ("chip", "switch", "host")] == [
        counted.chips, counted.nodes - counted.chips, counted.hosts,
    ]  # fmt: skip
    assert sum(links for _, links in multigraph.nodes(data="links", default=0)) == counted.nics
    assert nx.is_strongly_connected(multigraph)


def test_nodes_and_edges_have_attributes_of_their_own():
    multigraph = graph(cluster("trn2-ultraserver:2"))
    assert multigraph.nodes[100] == {"kind": "chip", "domain": 1, "server": 6}
    names = {"tier", "bandwidth_bytes_per_s", "latency_s", "links", "lane"}
    for _, _, edge in multigraph.edges(data=True):
        assert set(edge) == names
        assert min(edge["bandwidth_bytes_per_s"], edge["links"]) >= 1
    multigraph[0][1][0]["bandwidth_bytes_per_s"] = 1
    assert multigraph[1][0][0]["bandwidth_bytes_per_s"] == 128 * GB
    assert graph(cluster("trn3-gen1:2")).nodes["switch:40"] == {"kind": "switch", "domain": 1}
    pair = graph(cluster("ring:2", **PLAIN))
    assert [pair[0][1][key]["lane"] for key in (0, 1)] == [0, 1]


def test_parallel_links_between_two_layers_are_one_edge():
    multigraph = graph(cluster("trn2-ultraserver:150"))
    assert multigraph["ToR:5"]["leaf:0"][0]["links"] == 128
    assert multigraph["ToR:5"]["leaf:0"][0]["bandwidth_bytes_per_s"] == 64 * 25 * GB
    assert multigraph["leaf:1"]["spine:0"][0]["links"] == 64 * 128
    assert multigraph[70]["adapters:4"][0]["bandwidth_bytes_per_s"] == 25 * GB
    assert multigraph["adapters:4"]["ToR:1"][0]["bandwidth_bytes_per_s"] == 16 * 25 * GB
    assert multigraph.nodes["adapters:4"]["links"] == 16


def test_latencies_add_up_to_a_step_between_servers():
    multigraph = graph(cluster("trn2.48xlarge:600"))
    for other, step_us in ((16, 15.0), (64, 16.0), (64 * 64, 17.0)):
        path = nx.shortest_path(multigraph, 0, other, weight="latency_s")
        total = sum(multigraph[a][b][0]["latency_s"] for a, b in pairwise(path))
        assert total * 1e6 == pytest.approx(step_us)
    # Layers above the last whose climb is stated add as much as it does.
    fabric = ScaleOut("own", 10 * GB, 10**7, 8, 10 * GB, climb_ps=(0, 10**6, 3 * 10**6))
    small = graph(Cluster("own", Switch(2, 100 * GB, 0), "", 65, fabric, chips_per_server=2))
    lengths = nx.single_source_dijkstra_path_length(small, 0, weight="latency_s")
    assert [lengths[chip] * 1e6 for chip in (4, 17, 129)] == pytest.approx([11, 13, 13])


def test_the_garbage_collector_is_left_as_it_was():
    gc.disable()
    try:
        graph(cluster("trn2.48xlarge"))
        assert not gc.isenabled()
    finally:
        gc.enable()
    graph(cluster("trn2.48xlarge"))
    assert gc.isenabled()


LARGEST_DRAWN_WHOLE = 144


def texts(figure):
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    return words + [text.get_text() for legend in legends for text in legend.get_texts()]


@pytest.mark.parametrize("name", machines(shipped_catalogue()))
def test_every_named_machine_is_drawn_with_the_numbers_of_all_chips(name):
    machine = cluster(f"{name}:3" if shipped_catalogue().has(name, "fabric") else name)
    # A rack of 72 chips side by side is drawn by its first columns.
    if machine.chips_per_domain > LARGEST_DRAWN_WHOLE or name == "trn3-gen2-ualink":
        assert draw(machine).axes
        return
    words = texts(draw(machine))
    if name == "trn2.48xlarge":
        assert words.count("12") == 3  # the chip itself, and the stubs of chips 0 and 15
    assert {str(chip) for chip in range(machine.chips_per_domain)} <= set(words)


@pytest.mark.parametrize(("name", "drawn"), [
    ("ring:2", 2), ("ring:8", 8), ("ring:100", 7), ("torus:1x1", 1), ("torus:3x1x2", 6),
    ("torus:2x2x2x2", 8), ("torus:9x9x9", 64), ("mesh:1", 1), ("mesh:5", 5), ("switch:100", 72),
    ("clos:40:8", 40), ("clos:300:32:3", 64),
])  # fmt: skip
def test_plain_shapes_are_drawn_in_part_where_they_are_large(name, drawn):
    figure = draw(cluster(name, **PLAIN))
    (panel,) = figure.axes
    discs = [len(marks.get_offsets()) for marks in panel.collections if len(marks.get_paths()) == 1]
    assert drawn in discs
    figure.savefig(BytesIO(), format="png", dpi=20)


def test_title_and_legend_give_rate_and_latency_of_each_kind_of_link():
    figure = draw(cluster("trn2-ultraserver:16"))
    title, words = figure.get_suptitle(), texts(figure)
    assert "trn2-ultraserver:16: 1,024 chips, 6,144 directed scale-up links" in title
    assert "640 GB/s scale-up and 25 GB/s scale-out" in title
    assert "diameter 6 hops, mean 3.05; bisection 2.048 TB/s" in title
    assert "Z: 64 GB/s a cable and direction, 300 ns a hop" in words
    assert "X: 128 GB/s a cable and direction, 300 ns a hop" in words
    stub = "stub with a number: cable round to that chip"
    assert (stub in words, stub in texts(draw(cluster("ring:8", **PLAIN)))) == (True, False)


def test_trn3_shows_planes_and_switches():
    figure = draw(cluster("trn3-gen2"))
    words = texts(figure)
    assert words.count("plane 3: 10 switches") == 2
    assert any("every chip\nto the chip in the\nsame position" in text for text in words)
    squares = [len(marks.get_offsets()) for marks in figure.axes[0].collections]
    assert squares.count(10) == 8  # planes of ten switches in two racks of four


def test_rainier_is_a_block_diagram_of_its_layers():
    words = texts(draw(cluster("rainier")))
    assert {
        "31,248 servers of 16 chips, 16 adapters", "7,812 ToR groups, up to 64 chips each",
        "123 leaf groups, up to 4,096 chips each", "7 spine groups, up to 73,728 chips each",
        "one campus group",
    } <= set(words)  # fmt: skip
    assert any("22.5 µs a step" in text for text in words)


@pytest.mark.parametrize(
    ("switches", "ring", "words"),
    [(0, False, "every chip"), (2, False, "2 switches"), (0, True, "a ring")],
)
def test_links_between_racks_are_named_after_their_kind(switches, ring, words):
    across = Tier("pod", 3, 60 * GB, 0, switches, ring)
    below = Tier("rack", 2, 60 * GB, 0), Tier("board", 4, 60 * GB, 0, ring=True)
    drawn = texts(draw(Cluster("own", Tiered((across, *below)))))
    assert any(text.startswith(f"pod: {words}\n") for text in drawn)


@pytest.mark.parametrize("tiers", [(4,), (3, 2), (3, 4, 2), (2, 2, 20, 3)])
@pytest.mark.parametrize("switches", [0, 3])
def test_tiers_of_any_number_are_drawn(tiers, switches):
    shape = Tiered(tuple(Tier(f"tier {k}", n, 60 * GB, 0, switches) for k, n in enumerate(tiers)))
    figure = draw(Cluster("own", shape))
    assert "0" in texts(figure)
    figure.savefig(BytesIO(), format="png", dpi=20)
