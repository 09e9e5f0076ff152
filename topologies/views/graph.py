"""The networkx graph of a cluster, which users draw and query."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import networkx as nx
import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.views.edges import EdgeTable, edge_table

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

    >>> from topologies.clusters.names import cluster
    >>> multigraph = graph(cluster("trn2.48xlarge"))
    >>> multigraph.out_degree(0), multigraph[0][1][0]["bandwidth_bytes_per_s"]
    (5, 128000000000)
    """
    table = edge_table(cluster)
    multigraph: nx.MultiDiGraph[Node] = nx.MultiDiGraph(name=cluster.name)
    with _collector_paused():
        names = node_names(table)
        successors, predecessors = _add_nodes(multigraph, names, _node_attributes(cluster, table))
        _add_edges(table, names, successors, predecessors)
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


def _add_edges(
    table: EdgeTable, names: list[Node], successors: list[Row], predecessors: list[Row]
) -> None:
    """Write straight into the adjacency of the graph, in a fraction of ``add_edge``'s time."""
    attributes: list[dict[str, Any]] = [asdict(kind) for kind in table.kinds]
    edges = zip(table.src.tolist(), table.dst.tolist(), table.kind.tolist(), strict=True)
    for src, dst, kind in edges:
        row, end = successors[src], names[dst]
        parallel = row.get(end)
        if parallel is None:  # networkx keeps one dict of edges in both directions of lookup
            row[end] = predecessors[dst][names[src]] = {0: attributes[kind].copy()}
        else:
            parallel[len(parallel)] = attributes[kind].copy()
