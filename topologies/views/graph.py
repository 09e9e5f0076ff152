"""The networkx graph of a cluster, which users draw and query."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd

from topologies.clusters.cluster import Cluster
from topologies.routing import clos
from topologies.shapes.links import Links, domain_links
from topologies.shapes.scale_out import Layer
from topologies.support.arrays import IntArray
from topologies.support.errors import InputError
from topologies.support.units import PS_PER_S
from topologies.views.measures import measure

Node = int | str
Row = dict[Node, dict[int, dict[str, Any]]]
"""Neighbours of a node: for each the parallel edges by key, for each edge its attributes."""


def graph(cluster: Cluster) -> nx.MultiDiGraph[Node]:
    """Make the graph of a cluster.

    Nodes are chips (named by their global numbers) and scale-up switches (``"switch:0"``); with a
    scale-out fabric also the network adapters of each server as one node (``"adapters:0"``), hosts
    (``"host:0"``) and the groups of each layer of the Clos (``"ToR:0"``). All nodes have ``kind``;
    chips have ``domain`` and ``server``, switches ``domain``, adapters ``links``.

    Every edge is one direction and has ``bandwidth_bytes_per_s``, ``latency_s``, ``tier``,
    ``links`` (the number of parallel cables, whose rates are summed) and ``lane``.
    """
    table = edge_table(cluster)
    multigraph: nx.MultiDiGraph[Node] = nx.MultiDiGraph(name=cluster.name)
    with _collector_paused():
        names = node_names(table)
        successors, predecessors = _add_nodes(multigraph, names, _node_attributes(cluster, table))
        # Straight into the adjacency of the graph, in a fraction of ``add_edge``'s time.
        attributes: list[dict[str, Any]] = [asdict(kind) for kind in table.kinds]
        edges = zip(table.src.tolist(), table.dst.tolist(), table.kind.tolist(), strict=True)
        for src, dst, kind in edges:
            row, end = successors[src], names[dst]
            parallel = row.get(end)
            if parallel is None:  # networkx keeps one dict of edges in both directions of lookup
                row[end] = predecessors[dst][names[src]] = {0: attributes[kind].copy()}
            else:
                parallel[len(parallel)] = attributes[kind].copy()
    return multigraph


def node_names(table: EdgeTable) -> list[Node]:
    """Return the name of each node, in the order of their numbers."""
    names: list[Node] = list(range(table.nodes["chip"]))
    for kind, count in table.nodes.items():
        if kind != "chip":
            names += [f"{kind}:{number}" for number in range(count)]
    return names


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would visit millions of new dicts again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _node_attributes(cluster: Cluster, table: EdgeTable) -> Iterator[dict[str, Any]]:
    """Yield the attributes of each node, in the order of their numbers."""
    chips = np.arange(cluster.chips)
    domains = (chips // cluster.chips_per_domain).tolist()
    servers = (chips // cluster.chips_per_server).tolist()
    for domain, server in zip(domains, servers, strict=True):
        yield {"kind": "chip", "domain": domain, "server": server}
    per_domain = max(1, table.nodes["switch"] // cluster.domains)
    adapters = cluster.scale_out.adapters_per_server if cluster.scale_out else 0
    for kind, count in table.nodes.items():
        if kind == "switch":
            yield from ({"kind": kind, "domain": k // per_domain} for k in range(count))
        elif kind == "adapters":
            yield from ({"kind": kind, "links": adapters} for _ in range(count))
        elif kind != "chip":
            yield from ({"kind": kind} for _ in range(count))


def _add_nodes(
    multigraph: nx.MultiDiGraph[Node], names: list[Node], attributes: Iterator[dict[str, Any]]
) -> tuple[list[Row], list[Row]]:
    """Add all nodes; returns the dicts of successors and of predecessors inside the graph."""
    successors: list[Row] = [{} for _ in names]
    predecessors: list[Row] = [{} for _ in names]
    inside = vars(multigraph)
    inside["_node"].update(zip(names, attributes, strict=True))
    inside["_adj"].update(zip(names, successors, strict=True))
    inside["_pred"].update(zip(names, predecessors, strict=True))
    return successors, predecessors


@dataclass(frozen=True)
class EdgeKind:
    """Attributes that many edges share."""

    # Axis or tier of a scale-up link, ``adapter``, ``host``, or the layer below a Clos link
    tier: str
    bandwidth_bytes_per_s: int  # rate of all parallel cables together, one direction [B/s]
    latency_s: float
    links: int = 1
    lane: int = 0  # number among parallel edges between the same two nodes


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """Directed edges of a cluster's graph."""

    # src, dst (edges,): numbers of the nodes from which, and to which, the edge leads
    src: IntArray
    dst: IntArray
    kind: IntArray  # (edges,): index into ``kinds``
    kinds: tuple[EdgeKind, ...]
    # Count of the nodes of each kind, in the order in which nodes are numbered
    nodes: dict[str, int]

    def __len__(self) -> int:
        return len(self.src)


def edge_table(cluster: Cluster) -> EdgeTable:
    """Return all edges of a cluster's graph: scale-up links, adapters, hosts and the Clos above."""
    # Nodes: chips, scale-up switches, then each server's adapters, each host, and each group of
    # every layer of the Clos, which stands for its parallel switches.
    links = domain_links(cluster.shape, fold=False)
    switches = links.nodes - cluster.chips_per_domain
    nodes = {"chip": cluster.chips, "switch": switches * cluster.domains}
    kinds, code = _scale_up_kinds(links)
    parts = [_scale_up(cluster, links, code)]
    if cluster.scale_out is not None:
        fabric, layers = clos(cluster)
        nodes |= {"adapters": cluster.servers, "host": cluster.servers}
        nodes |= {layer.name: layer.groups for layer in layers}
        parts += _scale_out(cluster, layers, nodes, len(kinds))
        # Latencies along a path add up to the time of a step from end to end. A host reaches its
        # adapters at their rate, each on a slot that is at least as fast.
        climb_ps = [fabric.climb_ps[min(k, len(fabric.climb_ps) - 1)] for k in range(len(layers))]
        rate = fabric.bandwidth_bytes_per_s
        server_rate = rate * cluster.chips_per_server
        ports = max(1, round(server_rate / fabric.port_bytes_per_s))
        half = 2 * PS_PER_S  # a path goes up and down the same layers
        kinds += [
            EdgeKind("adapter", rate, fabric.latency_ps / half),
            EdgeKind("host", server_rate, 0.0, fabric.adapters_per_server),
            EdgeKind("server", server_rate, climb_ps[0] / half, ports),
        ]
        for number, layer in enumerate(layers[:-1]):
            step_ps = climb_ps[number + 1] - climb_ps[number]
            kinds.append(EdgeKind(layer.name, layer.up_bytes_per_s, step_ps / half, layer.up_links))
    src, dst, kind = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return EdgeTable(src, dst, kind, tuple(kinds), nodes)


def _scale_up_kinds(links: Links) -> tuple[list[EdgeKind], IntArray]:
    """Return the kinds of edges that occur in a domain, and the kind of each link."""
    columns = (links.tier, links.bandwidth_bytes_per_s, links.latency_ps, links.links, links.lane)
    rows, code = np.unique(
        np.stack([column.astype(np.int64) for column in columns]), axis=1, return_inverse=True
    )
    kinds = [
        EdgeKind(links.tiers[tier], rate, latency_ps / PS_PER_S, cables, lane)
        for tier, rate, latency_ps, cables, lane in rows.T.tolist()
    ]
    return kinds, code.ravel().astype(np.int32)


def _scale_up(
    cluster: Cluster, links: Links, code: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return source, destination and kind of the links of all domains, domain after domain."""
    chips = cluster.chips_per_domain
    domain = np.arange(cluster.domains, dtype=np.int32)[:, None]

    def number(local: IntArray) -> IntArray:
        switch = cluster.chips + domain * (links.nodes - chips) + local - chips
        return np.where(local < chips, domain * chips + local, switch).ravel().astype(np.int32)

    return number(links.src), number(links.dst), np.tile(code, cluster.domains)


def _scale_out(
    cluster: Cluster, layers: tuple[Layer, ...], nodes: dict[str, int], first_kind: int
) -> list[tuple[IntArray, IntArray, IntArray]]:
    """Return edges, in both directions, from chips to adapters, to hosts, and between layers."""
    begin = dict(zip(nodes, np.cumsum([0, *nodes.values()]).tolist(), strict=False))
    chip = np.arange(cluster.chips)
    server = np.arange(cluster.servers)
    adapters = begin["adapters"] + server
    tor = begin[layers[0].name] + server * cluster.chips_per_server // layers[0].chips
    pairs = [(chip, begin["adapters"] + chip // cluster.chips_per_server)]
    pairs += [(adapters, begin["host"] + server), (adapters, tor)]
    for lower, upper in pairwise(layers):
        group = np.arange(lower.groups)
        above = begin[upper.name] + group * lower.chips // upper.chips
        pairs.append((begin[lower.name] + group, above))
    return [_both_ways(low, high, first_kind + kind) for kind, (low, high) in enumerate(pairs)]


def _both_ways(low: IntArray, high: IntArray, kind: int) -> tuple[IntArray, IntArray, IntArray]:
    src = np.concatenate([low, high]).astype(np.int32)
    dst = np.concatenate([high, low]).astype(np.int32)
    return src, dst, np.full(len(src), kind, np.int32)


LARGEST_TABLE = 2**22


def link_table(cluster: Cluster) -> pd.DataFrame:
    """Return the directed links of one scale-up domain; all domains are equal.

    Returns one row for each link: ``src, dst`` (the number of a chip, or ``switch:`` and a number),
    ``tier, lane, links, bandwidth_bytes_per_s, latency_s``.

    >>> from topologies.clusters.names import cluster
    >>> link_table(cluster("trn2.48xlarge")).head(2)[["src", "dst", "tier"]].values.tolist()
    [['0', '4', 'Y'], ['0', '12', 'Y']]
    """
    rows = measure(cluster).links // cluster.domains
    if rows > LARGEST_TABLE:
        raise InputError(
            f"a domain of {cluster.name} has {rows:,} links, more than the {LARGEST_TABLE:,} "
            "that a table may have; ask for a smaller domain"
        )
    links = domain_links(cluster.shape, fold=False)
    chips = cluster.chips_per_domain
    numbers = range(links.nodes)
    names = np.array([f"switch:{k - chips}" if k >= chips else str(k) for k in numbers], object)
    return pd.DataFrame(
        {
            "src": names[links.src],
            "dst": names[links.dst],
            "tier": np.array(links.tiers, object)[links.tier],
            "lane": links.lane,
            "links": links.links,
            "bandwidth_bytes_per_s": links.bandwidth_bytes_per_s,
            "latency_s": links.latency_ps / PS_PER_S,
        }
    )


def layer_table(cluster: Cluster) -> pd.DataFrame:
    """Return the layers of the scale-out Clos, from the top-of-rack switches upwards.

    Returns one row for each layer: ``layer, groups, chips_per_group, up_bytes_per_s`` (of one group
    in one direction; 0 at the top) and ``up_links``.

    >>> from topologies.clusters.names import cluster
    >>> layer_table(cluster("rainier"))["groups"].tolist()
    [7812, 123, 7, 1]
    """
    names = {"name": "layer", "chips": "chips_per_group"}
    table = pd.DataFrame([asdict(layer) for layer in clos(cluster)[1]]).rename(columns=names)
    return table[["layer", "groups", "chips_per_group", "up_bytes_per_s", "up_links"]]
