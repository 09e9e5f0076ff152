"""Clusters from graphs of networkx and from network files of ASTRA-sim."""

import json
import random

import networkx as nx
import pytest

from tests.support.refusals import refused
from topologies.clusters.names import cluster
from topologies.routing import routes
from topologies.shapes.basic import FullMesh, Switch, Tiered, Torus
from topologies.support.errors import InputError
from topologies.views.graph import graph as graph_of

RATE = {"bandwidth_bytes_per_s": 100 * 10**9, "latency_s": 1e-6}


def _read(tmp_path, graph, *, ending="json"):
    path = tmp_path / f"pod.{ending}"
    if ending == "json":
        path.write_text(json.dumps(nx.node_link_data(graph, edges="edges"), default=str))
    else:
        nx.write_graphml(graph, path)
    return cluster(str(path))


def _shuffled(graph, seed=1):
    nodes = list(graph)
    names = [f"node {number}" for number in range(len(nodes))]
    random.Random(seed).shuffle(names)
    return nx.relabel_nodes(graph, dict(zip(nodes, names, strict=True)))


def _grid(sizes, periodic, fast_axis=None):
    graph = nx.grid_graph(sizes[::-1], periodic=periodic)
    nx.set_edge_attributes(graph, dict.fromkeys(graph.edges, RATE))
    for begin, end in graph.edges:
        if fast_axis is not None and begin[fast_axis] != end[fast_axis]:
            graph.edges[begin, end]["bandwidth_bytes_per_s"] *= 2
    return _shuffled(graph)


@pytest.mark.parametrize("ending", ["json", "graphml"])
@pytest.mark.parametrize("name", ["torus:4x4", "torus:2x3x4", "mesh:6", "switch:8", "ring:7"])
def test_our_own_graphs_come_back(tmp_path, name, ending):
    ours = cluster(name, bandwidth="100GB/s", latency="1us")
    read = _read(tmp_path, graph_of(ours), ending=ending)
    assert (type(read.shape), read.chips) == (type(ours.shape), ours.chips)
    assert cluster(graph_of(ours)).shape == read.shape
    if isinstance(ours.shape, Torus):
        assert sorted(read.shape.sizes) == sorted(ours.shape.sizes)
        rates = {(axis.bandwidth_bytes_per_s, axis.latency_ps) for axis in read.shape.axes}
        assert rates == {(10**11, 10**6)}
    else:
        assert read.shape == ours.shape


@pytest.mark.parametrize("sizes", [(4, 4), (3, 5), (4, 4, 4)])
@pytest.mark.parametrize("periodic", [True, False])
def test_shuffled_grids_and_tori(tmp_path, sizes, periodic):
    shape = _read(tmp_path, _grid(sizes, periodic)).shape
    assert (type(shape), shape.sizes) == (Torus, sizes)
    assert {axis.wrap for axis in shape.axes} == {periodic}
    shape = _read(tmp_path, _grid(sizes, periodic, fast_axis=1)).shape
    assert [axis.bandwidth_bytes_per_s for axis in shape.axes].count(2 * 10**11) == 1


def test_a_star_is_a_switch_and_rates_may_come_from_the_command(tmp_path):
    path = tmp_path / "star.graphml"
    nx.write_graphml(nx.star_graph(5), path)
    read = cluster(str(path), bandwidth="50GB/s", latency="2us")
    assert read.shape == Switch(5, 50 * 10**9, 2_000_000)
    refused(r"star.graphml: link 0-1 has no bandwidth; add it, or", cluster, str(path))


def test_a_graph_itself_is_named_and_refused_like_its_file():
    tuples = nx.hypercube_graph(4)
    assert cluster(tuples, bandwidth="100GB/s", latency="1us").shape.sizes == (4, 4)
    refused("graph 4D: link .* has no bandwidth", cluster, nx.Graph(tuples, name="4D"))
    refused("graph: it has no links", cluster, nx.empty_graph(3))
    refused("Pass a name, .* or a graph of networkx", cluster, 16)


def test_a_rate_that_no_link_needs_is_refused(tmp_path):
    path = tmp_path / "ring.json"
    graph = nx.cycle_graph(4)
    nx.set_edge_attributes(graph, "10GB/s", "bandwidth")
    path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    assert cluster(str(path), latency="1us").chips == 4
    with pytest.raises(InputError, match="every link states its bandwidth; leave --bandwidth 1GB"):
        cluster(str(path), bandwidth="1GB/s", latency="1us")


def _broken(kind):
    """A torus, or another graph, with one thing wrong with it."""
    graph = _grid((4, 4), periodic=True)
    if kind == "missing link":
        graph.remove_edge(*next(iter(graph.edges)))
    elif kind == "odd rate":
        graph.edges[next(iter(graph.edges))]["bandwidth_bytes_per_s"] = 7
    elif kind == "host":
        graph.add_node("h", kind="host")
    elif kind == "pieces":
        graph = nx.disjoint_union(graph, graph)
    elif kind == "one way":
        graph = nx.DiGraph()
        graph.add_edge(0, 1, **RATE)
    return graph


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (_broken("missing link"), r"16 chips with 3 or 4 neighbours .* are no ring"),
        (_broken("pieces"), r"it is in pieces; 16 of 32 nodes are joined"),
        (_broken("odd rate"), r"are no ring, grid, torus"),
        (_broken("host"), r"node h is of kind host; only chips and switches"),
        (_broken("one way"), r"links between 0 and 1 differ by direction"),
        (nx.empty_graph(3), r"it has no links"),
        (nx.path_graph(50), r"link 0-1 has no bandwidth"),
        (nx.path_graph(5000), r"5,000 nodes; shapes are recognised up to 4,096"),
    ],
    ids=["missing link", "pieces", "odd rate", "host", "one way", "no links", "no rate", "large"],
)
def test_a_graph_of_no_known_shape_is_refused(tmp_path, graph, message):
    refused(message, _read, tmp_path, graph)


@pytest.mark.parametrize(("ending", "content", "message"), [
    ("json", "[" * 100_000, r"no JSON"),
    ("json", '{"nodes": [], "edges": [{"source": 0, "source": 1}]}', r"\(source appears twice\)"),
    ("json", '{"nodes": [1], "edges": 2}', r"no node-link JSON"),
    ("graphml", "<!DOCTYPE x [<!ENTITY a 'b'>]><graphml/>", r"declares a document type"),
    ("graphml", "not xml", r"no GraphML"),
    ("graphml", "<node id=''/>" * 4097 + "not xml", r"4,097 nodes"),
    ("json", f'{{"nodes": {[1] * 4097}, "edges": 2}}', r"4,097 nodes"),
])  # fmt: skip
def test_broken_files_are_one_line(tmp_path, ending, content, message):
    (path := tmp_path / f"pod.{ending}").write_text(content)
    refused(message, cluster, str(path))


def _astra(tmp_path, topology, counts, bandwidth, latency, more=""):
    path = tmp_path / "network.yml"
    links = f"bandwidth: [{bandwidth}]\nlatency: [{latency}]"
    path.write_text(f"topology: [{topology}]\nnpus_count: [{counts}]\n{links}\n{more}")
    return cluster(str(path))


def test_rings_of_astra_sim_are_a_torus_with_the_first_dimension_fastest(tmp_path):
    read = _astra(tmp_path, "Ring, Ring", "8, 4", "200.0, 50.0", "50, 500")
    assert (type(read.shape), read.shape.sizes) == (Torus, (4, 8))
    slow, fast = read.shape.axes
    assert (fast.bandwidth_bytes_per_s, fast.latency_ps) == (200 * 2**30, 50_000)
    assert (slow.bandwidth_bytes_per_s, slow.latency_ps) == (50 * 2**30, 500_000)


@pytest.mark.parametrize(("block", "kind"), [("FullyConnected", FullMesh), ("Switch", Switch)])
def test_single_blocks_of_astra_sim(tmp_path, block, kind):
    assert _astra(tmp_path, block, "8", "50.0", "500.0").shape == kind(8, 50 * 2**30, 500_000)


def test_tiers_and_domains_of_astra_sim(tmp_path):
    values = ("8, 4", "100.0, 50.0", "500, 2000")
    tiers = _astra(tmp_path, "FullyConnected, Switch", *values).shape
    assert (type(tiers), tiers.sizes) == (Tiered, (4, 8))
    assert tiers.tiers[1].bandwidth_bytes_per_s == 7 * 100 * 2**30
    domains = _astra(tmp_path, "Ring, Switch", *values)
    assert (domains.domains, domains.chips) == (4, 32)
    fabric = domains.scale_out
    assert (fabric.bandwidth_bytes_per_s, fabric.latency_ps) == (50 * 2**30, 4_000_000)


def test_a_product_of_three_kinds_is_tiers_each_of_its_own(tmp_path):
    three, rates = "Ring, FullyConnected, Switch", ("100.0, 50.0, 25.0", "500, 700, 1000")
    shape = _astra(tmp_path, three, "4, 2, 3", *rates).shape
    kinds = [(tier.size, tier.link_bytes_per_s // 2**30, tier.ring) for tier in shape.tiers]
    assert kinds == [(3, 25, False), (2, 50, False), (4, 100, True)]
    assert [tier.switches for tier in shape.tiers] == [1, 0, 0]
    # the far corner: two hops of the ring, one direct link, to the switch and from it
    assert routes(shape, [0], [2 + 4 + 8]).hops.tolist() == [2 + 1 + 2]
    rings = _astra(tmp_path, three, "2, 2, 3", *rates).shape
    assert not rings.tiers[2].ring  # two chips have one link, as in ASTRA-sim


@pytest.mark.parametrize(("columns", "message"), [
    (("Rings", "8", "1", "1"), r"topology.0 'Rings': .* 'Ring', 'FullyConnected' or 'Switch'"),
    (("Ring", "8, 2", "1", "1"), r"npus_count 2"),
    (("Ring", "0", "1", "1"), r"npus_count.0 '0': it must be at least 1"),
    (("Ring", "8", ".inf", "1"), r"bandwidth.0 'inf'"),
    (("Ring", "8", "0", "1"), r"bandwidth.0 '0': .* greater than 0"),
    (("Ring", "8", "1", ""), r"latency: it must have at least 1 entry"),
    (("Ring", "8", "1", "1", "x: 1"), r"unknown key x"),
])  # fmt: skip
def test_wrong_networks_of_astra_sim_name_the_key(tmp_path, columns, message):
    refused(message, _astra, tmp_path, *columns)
