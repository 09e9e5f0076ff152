"""The networkx graph of a cluster: the record that users draw and query."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import networkx as nx
import numpy as np

from topologies.clusters import Cluster
from topologies.edges import EdgeTable, edge_table

Node = int | str


def graph(cluster: Cluster) -> nx.MultiDiGraph[Node]:
    """Make the graph of a cluster.

    Nodes are chips (their global numbers), scale-up switches (``"switch:0"``), and over a scale-out
    fabric a server's network adapters as one node (``"adapters:0"``), its host (``"host:0"``)
    and the groups of each Clos layer (``"ToR:0"``). All have ``kind``; chips have ``domain`` and
    ``server``, switches ``domain``, adapters ``links``.

    Every edge is one direction and has ``bandwidth_bytes_per_s``, ``latency_s``, ``tier``,
    ``links`` (the parallel cables it stands for, bandwidth summed) and ``lane``.

    Parameters
    ----------
    cluster : Cluster

    Returns
    -------
    networkx.MultiDiGraph

    Examples
    --------
    >>> from topologies.machines import cluster
    >>> made = graph(cluster("trn2.48xlarge"))
    >>> made.out_degree(0), made[0][1][0]["bandwidth_bytes_per_s"]
    (5, 128000000000)
    """
    table = edge_table(cluster)
    made: nx.MultiDiGraph[Node] = nx.MultiDiGraph(name=cluster.name)
    with _collector_paused():
        names = node_names(table)
        _add_nodes(made, cluster, table, names)
        _add_edges(made, table, names)
    return made


def node_names(table: EdgeTable) -> list[Node]:
    """Name of each node by its number."""
    names: list[Node] = list(range(table.nodes["chip"]))
    for kind, count in table.nodes.items():
        if kind != "chip":
            names += [f"{kind}:{number}" for number in range(count)]
    return names


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking millions of new dicts again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _add_nodes(
    made: nx.MultiDiGraph[Node], cluster: Cluster, table: EdgeTable, names: list[Node]
) -> None:
    chips = np.arange(cluster.chips)
    domains = (chips // cluster.chips_per_domain).tolist()
    servers = (chips // cluster.chips_per_server).tolist()
    made.add_nodes_from(
        (chip, {"kind": "chip", "domain": domain, "server": server})
        for chip, domain, server in zip(names, domains, servers, strict=False)
    )
    begin = cluster.chips
    per_domain = max(1, table.nodes["switch"] // cluster.domains)
    for kind, count in table.nodes.items():
        if kind == "chip":
            continue
        for number, name in enumerate(names[begin : begin + count]):
            made.add_node(name, kind=kind)
            if kind == "switch":
                made.nodes[name]["domain"] = number // per_domain
            if kind == "adapters" and cluster.scale_out is not None:
                made.nodes[name]["links"] = cluster.scale_out.adapters_per_server
        begin += count


def _adjacency(made: nx.MultiDiGraph[Node], names: list[Node]) -> tuple[list[Any], list[Any]]:
    """Return the dicts of successors and of predecessors of each node that networkx keeps."""
    after: Any = vars(made)["_adj"]
    before: Any = vars(made)["_pred"]
    return [after[name] for name in names], [before[name] for name in names]


def _add_edges(made: nx.MultiDiGraph[Node], table: EdgeTable, names: list[Node]) -> None:
    """Write straight into the adjacency of the graph, in a fraction of ``add_edge``'s time."""
    attributes: list[dict[str, Any]] = [asdict(kind) for kind in table.kinds]
    after, before = _adjacency(made, names)
    rows = zip(table.src.tolist(), table.dst.tolist(), table.kind.tolist(), strict=True)
    for src, dst, kind in rows:
        row, end = after[src], names[dst]
        parallel = row.get(end)
        if parallel is None:
            row[end] = before[dst][names[src]] = {0: attributes[kind].copy()}
        else:
            parallel[len(parallel)] = attributes[kind].copy()
