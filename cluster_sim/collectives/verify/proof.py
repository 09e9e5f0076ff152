"""Proof that a schedule computes its collective: every contribution arrives exactly once.

The proof reads the ops and edges of the schedule, not the algorithm that wrote them. The value that
an op sends is *defined* by its edges: it is the value of the copy that they lead from, or else the
rank's own contribution, plus every partial sum that they lead from. Data that arrives without an
edge to a later op is not part of what that op sends, however early it arrives; so a proven schedule
is right whatever the times. Sets of contributors are bitsets, one row for each op and chunk.
"""

from __future__ import annotations

import numpy as np

from cluster_sim.collectives.chunks import EVERY, Chunks
from cluster_sim.collectives.lowering.collective import Collective
from cluster_sim.collectives.verify.contributors import Contributors
from cluster_sim.collectives.verify.data_edges import Items, data_edges, items_of, levels_of
from cluster_sim.collectives.verify.errors import ProofError
from cluster_sim.collectives.verify.routes import check_bytes, check_routes
from topologies.arrays import BoolArray, IntArray

PROVEN, NOT_CHECKED = "proven", "not-checked"
LARGEST_RANKS = 256
"""Ranks up to which a collective is proven by default."""


def prove(collective: Collective) -> str:
    """Prove that a schedule computes what its chunks ask for.

    Parameters
    ----------
    collective : Collective
        Result of :func:`cluster_sim.collectives.compose`.

    Returns
    -------
    str
        ``"proven"``.

    Raises
    ------
    ProofError
        When a contribution is missing or counted twice, when something is sent that its sender
        does not have, when a route has a gap, or when the edges form a cycle.
    """
    schedule, chunks = collective.schedule, collective.chunks
    if not chunks.is_tracked:
        raise ProofError(
            f"{collective.algorithm} on {len(collective.group_of_rank):,} ranks does not list what "
            "its messages carry; use fewer ranks to prove it"
        )
    # Each op moves the bytes of its chunks along a route without gaps.
    check_bytes(schedule, chunks)
    check_routes(schedule, collective.chip_of_rank)
    # What each op sends, from the first level to the last.
    level = levels_of(schedule)
    items, first_item = items_of(schedule, level, chunks.content)
    contributors = Contributors.of(chunks, collective.group_of_rank)
    source, target, base = data_edges(
        schedule, items, first_item, listed=chunks.content is not None
    )
    values = _flow(items, contributors, source, target, base)
    # What every rank holds in the end.
    _check_results(items, values, contributors, collective.group_of_rank)
    return PROVEN


def _flow(
    items: Items, contributors: Contributors, source: IntArray, target: IntArray, base: BoolArray
) -> IntArray:
    """Return the contributors of every item, found level by level, as bitsets (items, words).

    A union of sets with fewer members than the sets have together holds some member twice.
    """
    values = contributors.at_first(items.rank, items.chunk)
    replaced = np.zeros(len(items.op), np.bool_)
    replaced[target[base]] = True
    values[replaced] = 0
    count = np.bitwise_count(values).sum(axis=1, dtype=np.int64)
    ends = np.searchsorted(items.level, np.arange(items.level.max(initial=-1) + 2))
    cuts = np.searchsorted(target, ends)
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        if low == high:
            continue
        into, supply = target[low:high], source[low:high]
        starts = np.flatnonzero(np.append(True, into[1:] != into[:-1]))
        picked = into[starts]
        values[picked] |= np.bitwise_or.reduceat(values[supply], starts, axis=0)
        expected = count[picked] + np.add.reduceat(count[supply], starts)
        count[picked] = np.bitwise_count(values[picked]).sum(axis=1, dtype=np.int64)
        _refuse(count[picked] < expected, picked, items, "counts a contribution twice")
    _refuse(count == 0, np.arange(len(count)), items, "is sent by a rank that does not have it")
    return values


def _refuse(bad: BoolArray, rows: IntArray, items: Items, why: str) -> None:
    """Refuse the schedule if any item is bad, naming the first."""
    if bad.any():
        item = int(rows[np.argmax(bad)])
        raise ProofError(
            f"op {items.op[item]}, rank {items.rank[item]} → {items.peer[item]}: "
            f"chunk {items.chunk[item]} {why}"
        )


def _check_results(
    items: Items, values: IntArray, contributors: Contributors, group_of_rank: IntArray
) -> None:
    """Check what every rank holds in the end: the copy that it received, or the sum of all."""
    chunks, ranks = contributors.chunks, len(group_of_rank)
    rank, chunk = _goals(chunks, group_of_rank)
    # Arrivals of chunks that the receiver must hold in the end, each with its goal.
    goal = rank * len(chunks) + chunk
    place = np.full(ranks * len(chunks), -1, np.int64) if len(chunks) else np.empty(0, np.int64)
    place[goal] = np.arange(len(goal))
    arrived = np.flatnonzero(items.arrives)
    where = place[items.peer[arrived] * len(chunks) + items.chunk[arrived]]
    arrived, where = arrived[where >= 0], where[where >= 0]
    copies = np.bincount(where[~items.reduces[arrived]], minlength=len(goal))
    # A copy replaces what the rank had and what was added to it on the way.
    counts = ~items.reduces[arrived] | (copies[where] == 0)
    arrived, where = arrived[counts], where[counts]
    result = contributors.at_first(rank, chunk)
    result[copies > 0] = 0
    counted = np.bitwise_count(result).sum(axis=1, dtype=np.int64)
    arriving = np.bitwise_count(values[arrived]).sum(axis=1, dtype=np.int64)
    np.add.at(counted, where, arriving)
    np.bitwise_or.at(result, where, values[arrived])
    distinct = np.bitwise_count(result).sum(axis=1, dtype=np.int64)
    for bad, why in (
        (copies > 1, "is delivered more than once"),
        (counted > distinct, "counts a contribution twice"),
        (distinct < contributors.full(chunk), "lacks contributions"),
    ):
        if bad.any():
            first = int(np.argmax(bad))
            full = int(contributors.full(chunk[[first]])[0])
            raise ProofError(
                f"chunk {chunk[first]} at rank {rank[first]} {why}: it holds {distinct[first]} "
                f"of {full}"
            )


def _goals(chunks: Chunks, group_of_rank: IntArray) -> tuple[IntArray, IntArray]:
    """Return all pairs of a rank and a chunk that the rank must hold whole in the end."""
    size = np.bincount(group_of_rank)
    order = np.argsort(group_of_rank, kind="stable")
    first = np.cumsum(size) - size
    every = chunks.target == EVERY
    counts = np.where(every, size[chunks.group], 1)
    chunk = np.repeat(np.arange(len(chunks)), counts)
    within = np.arange(len(chunk)) - np.repeat(np.cumsum(counts) - counts, counts)
    member = order[np.where(every[chunk], first[chunks.group[chunk]] + within, 0)]
    return np.where(every[chunk], member, chunks.target[chunk]).astype(np.int64), chunk
