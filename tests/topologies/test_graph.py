"""The networkx graph equals one built edge by edge, with every attribute on every edge."""

import gc
from dataclasses import asdict
from itertools import pairwise

import networkx as nx
import pytest

from tests.support.small_shapes import GB
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.shapes.basic import Switch
from topologies.shapes.scale_out import ScaleOut
from topologies.views.graph import edge_table, graph, node_names
from topologies.views.measures import measure

PLAIN = {"bandwidth": "100GB/s", "latency": "1us"}
CLUSTERS = [
    ("ring:2", PLAIN), ("torus:2x3x1", PLAIN), ("mesh:5", PLAIN), ("clos:40:8:3", PLAIN),
    ("trn2.48xlarge", {}), ("trn2-ultraserver:12", {}), ("trn3-gen1:2", {}), ("trn3-gen2", {}),
    ("p5.48xlarge:20", {}), ("dgx-h100:40", {}),
]  # fmt: skip


def by_add_edge(name: str, rates: dict[str, str]) -> nx.MultiDiGraph:
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
