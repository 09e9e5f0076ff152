"""Detours: the shortest ways around cables that are down, within their domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cluster_sim.hardware.fabric import Fabric, Paths
from topologies.arrays import IntArray
from topologies.errors import InputError

if TYPE_CHECKING:
    import networkx as nx


def with_detours(fabric: Fabric, down: Sequence[str]) -> Fabric:
    """Return a fabric whose messages go around links between chips that are down."""
    if not down:
        return fabric
    import networkx as nx

    table = fabric.resources
    links = len(fabric.domains) * len(fabric.links)
    names = table.names(np.arange(links))
    dead = [number for number, name in enumerate(names) if name in set(down)]
    if not dead:
        return fabric
    ends = list(zip(table.owner[:links].tolist(), table.peer[:links].tolist(), strict=True))
    working: nx.DiGraph[int] = nx.DiGraph()
    for link in sorted(set(range(links)) - set(dead), reverse=True):  # of equals the first remains
        working.add_edge(*ends[link], link=link)
    ways = {link: _way(fabric, working, names[link], *ends[link]) for link in dead}
    return replace(fabric, ways=ways)


def _way(fabric: Fabric, working: nx.DiGraph[int], name: str, start: int, end: int) -> IntArray:
    """Resources of the shortest way from one chip to another over links that work."""
    import networkx as nx

    if max(start, end) >= fabric.cluster.chips:
        raise InputError(
            f"{name} is down, and a chip has no other way to its switch. Write slow=P/Q for a "
            "port of which some lanes are down."
        )
    try:
        nodes = nx.shortest_path(working, start, end)
    except (nx.NetworkXNoPath, nx.NodeNotFound):
        raise InputError(
            f"{name} is down, and no other links lead from chip {start} to {end}. Leave one of "
            "them up, or write slow=P/Q."
        ) from None
    return np.array([working.edges[hop]["link"] for hop in nx.utils.pairwise(nodes)], np.int64)


def around(paths: Paths, fabric: Fabric) -> Paths:
    """Return paths that take the detours of a fabric in place of its dead links."""
    ptr, resource, latency = paths.ptr, paths.resource, paths.latency_ps
    for link, way in fabric.ways.items():
        at = np.flatnonzero(resource == link)
        pair = np.searchsorted(ptr, at, side="right") - 1
        more = (len(way) - 1) * np.bincount(pair, minlength=len(ptr) - 1)
        ptr = ptr + np.concatenate([[0], np.cumsum(more)])
        place = np.repeat(at - np.arange(len(at)), len(way))  # among the hops that remain
        over = np.tile(way, len(at))
        resource = np.insert(np.delete(resource, at), place, over)
        latency = np.insert(np.delete(latency, at), place, fabric.latency_ps[over])
    return replace(paths, ptr=ptr, resource=resource, latency_ps=latency)
