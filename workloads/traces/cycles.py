"""Topological order of nodes, and the refusal of nodes that wait for each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from topologies.arrays import IntArray
from topologies.errors import InputError
from workloads.traces.recording import Recording

SHOWN = 6


def in_order(waits: Mapping[int, Sequence[int]]) -> list[int]:
    """Return numbers of nodes such that each node follows those that it waits for.

    If several nodes may come next, the one with the smallest number does. Nodes of a cycle, and
    nodes that wait for them, are left out.

    ``waits``: numbers of the nodes that each node waits for. All of them are keys as well.

    >>> in_order({3: [2], 2: [1], 1: [], 4: []})
    [1, 2, 3, 4]
    """
    after: dict[int, list[int]] = defaultdict(list)
    missing = {number: len(dependencies) for number, dependencies in waits.items()}
    for number, dependencies in waits.items():
        for dependency in dependencies:
            after[dependency].append(number)
    ready = [number for number, count in missing.items() if not count]
    heapify(ready)
    order = []
    while ready:
        number = heappop(ready)
        order.append(number)
        for follower in after.get(number, ()):
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, follower)
    return order


def check_acyclic(
    recording: Recording, src: IntArray, dst: IntArray, meets: Sequence[Sequence[int]]
) -> None:
    """Refuse nodes that wait for each other, within a rank or across collectives."""
    # ``src, dst`` (edges,): node ``dst`` waits for node ``src``. Numbers beyond the nodes are those
    # of joins.
    size = len(recording) + len(meets)
    graph = coo_array((np.ones(len(src), np.int8), (src, dst)), shape=(size, size))
    count, part = connected_components(graph, connection="strong")
    loops = src[src == dst]
    if count == size and not len(loops):
        return
    if len(loops):
        cycle = [int(loops[0])]
    else:
        cycle = _one_cycle(np.flatnonzero(part == np.bincount(part).argmax()), src, dst)
    nodes = [node for node in cycle if node < len(recording)]
    shown = " → ".join(str(recording.number[node]) for node in nodes[:SHOWN])
    more = " → …" if len(nodes) > SHOWN else ""
    across = len(set(recording.rank[nodes].tolist())) > 1
    ranks = (
        f" of ranks {', '.join(map(str, sorted(set(recording.rank[nodes].tolist()))[:4]))}"
        if across
        else ""
    )
    remedy = (
        "The ranks call their collectives in orders that contradict each other: give whole traces "
        "of the same iterations, or one rank alone."
        if across
        else "Correct the dependencies."
    )
    raise InputError(
        f"{recording.place(nodes[0])} waits for itself: a cycle of nodes{ranks} {shown}{more} → "
        f"{recording.number[nodes[0]]}. {remedy}"
    )


def _one_cycle(members: IntArray, src: IntArray, dst: IntArray) -> list[int]:
    """One cycle among nodes of which each leads to every other."""
    inside = np.isin(src, members) & np.isin(dst, members)
    after = dict(zip(src[inside].tolist(), dst[inside].tolist(), strict=True))
    at, seen = int(members[0]), dict[int, int]()
    while at not in seen:
        seen[at] = len(seen)
        at = after[at]
    return [node for node, order in seen.items() if order >= seen[at]]
