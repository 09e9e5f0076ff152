"""Many independent copies of a small schedule, each on links of its own, run in little memory.

A copy is written, run and dropped before the next one is written. So its ops stay in the
processor's cache, and a hundred million copies take the memory of a few thousand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import internal, lean
from cluster_sim.engine.fast import new_run
from cluster_sim.engine.fast.columns import ARRIVED, ENDED, NO_OP, NOTES, TROUBLE
from cluster_sim.engine.fast.loop import advance
from cluster_sim.engine.fast.steps import Run, arrive
from cluster_sim.engine.faults import Faults
from cluster_sim.engine.times import NEVER
from cluster_sim.schedule.picoseconds import transfer_ps
from cluster_sim.schedule.table import FIXED, HORIZON_PS, IntArray, Schedule


class Pattern(NamedTuple):
    """The part of a schedule that all copies have in common.

    ``size`` (ops,): index of the size that an op moves over its link, among the sizes that occur;
        -1 for an op without a link, whose duration is the same in all copies.
    ``source`` (edges,): link whose latency is the lag of an edge; -1 for a lag that is the same in
        all copies.
    ``pending`` (ops,): number of edges into each op.
    ``first``: ops without any edge into them, which arrive at time 0.
    """

    size: IntArray
    source: IntArray
    pending: IntArray
    first: IntArray


class Links(NamedTuple):
    """The links of the copies.

    ``kind`` (copies, links): kind of each link of each copy.
    ``duration_ps`` (kinds, sizes): time of each size that occurs on a link of each kind [ps].
    ``latency_ps`` (kinds,): latency of a link of each kind [ps].
    """

    kind: IntArray
    duration_ps: IntArray
    latency_ps: IntArray


@lean
def play_copies(
    run: Run, pattern: Pattern, links: Links, low: int, high: int, end_ps: IntArray
) -> int:
    """Write and run the copies ``low:high``, and store the time at which each ends in ``end_ps``.

    Returns the first copy of which some ops never ran, or -1 if there is none.
    """
    state = run.state
    for copy in range(low, high):
        _write(run, pattern, links, copy)
        _reset(run, pattern)
        for index in range(len(pattern.first)):
            arrive(state, run.agenda, pattern.first[index], 0)
        advance(run, 0, HORIZON_PS)
        if state.notes[TROUBLE] != NO_OP or state.notes[ENDED] < len(state.ready):
            return copy
        latest = 0
        for op in range(len(state.end)):
            latest = max(latest, state.end[op])
        end_ps[copy] = latest
    return -1


@internal
def _write(run: Run, pattern: Pattern, links: Links, copy: int) -> None:
    """Write the durations and lags that follow from the links of a copy."""
    ops = run.ops
    for op in range(len(ops.kind)):
        if pattern.size[op] >= 0:
            kind = links.kind[copy, ops.resource[op]]
            ops.duration[op] = links.duration_ps[kind, pattern.size[op]]
    for edge in range(len(ops.lag)):
        if pattern.source[edge] >= 0:
            ops.lag[edge] = links.latency_ps[links.kind[copy, pattern.source[edge]]]


@internal
def _reset(run: Run, pattern: Pattern) -> None:
    """Reset the state for the next run; the queues are empty already after a finished run."""
    state = run.state
    for op in range(len(state.ready)):
        state.ready[op] = 0
        state.start[op] = NEVER
        state.pending[op] = pattern.pending[op]
    for note in range(NOTES):
        state.notes[note] = 0
    state.notes[ARRIVED] = NO_OP
    state.notes[TROUBLE] = NO_OP
    run.agenda.clock[0] = 0
    run.agenda.clock[1] = 0


PIECES = 4
"""Ranges of copies for each thread: spread over all copies, they take threads about as long."""

_Ranges = list[tuple[int, int]]
"""Ranges of copies, each as the first copy and the one after the last."""

OPS_FOR_A_THREAD = 1_000_000
"""Ops from which several threads are faster: to import a pool takes some milliseconds."""


def simulate_copies(
    pattern: Schedule,
    kind: IntArray,
    rate_bytes_per_s: Sequence[int],
    latency_ps: Sequence[int],
    *,
    threads: int | None = None,
) -> IntArray:
    """Run copies of a schedule side by side and return when the last op of each ends.

    The copies share nothing, so each is written, run and dropped by itself: a hundred million ops
    take the memory of one copy.

    ``pattern``: fixed ops and joins. Its resources are the links of a copy: a fixed op on a link
    takes the time that its ``size_bytes`` need there, and the edges from it lag by the link's
    latency. Ops on no link keep their durations, and the edges from them their lags. ``kind``
    (copies, links): kind of each link of each copy, a row of the next two parameters.
    ``rate_bytes_per_s, latency_ps``: rate and latency of each kind of link [B/s, ps]. ``threads``:
    threads to use, by default one for each processor if there are many ops.

    Returns the end of each copy [ps]; (copies,). Raises ValueError for a pattern with flows or
    edges from starts, a ``kind`` that does not fit the links, or ops that never run.

    One transfer of 1 MB, and the join of its arrival, on a link of 1 GB/s and one of half of that:

    >>> from cluster_sim.schedule.build import OpColumns, schedule
    >>> from cluster_sim.schedule.table import JOIN, Edges, Resources
    >>> one = schedule(
    ...     OpColumns([FIXED, JOIN], resource=[0, -1], duration_ps=[1, 0], size_bytes=[10**6, 0]),
    ...     resources=Resources.table("link", [0], [1]), edges=Edges.from_pairs(2, [0], [1]),
    ... )
    >>> simulate_copies(one, np.array([[0], [1]]), [10**9, 5 * 10**8], [5, 7]).tolist()
    [1000000005, 2000000007]
    """
    _check(pattern, kind, len(rate_bytes_per_s))
    common, links = _common_and_links(pattern, kind, rate_bytes_per_s, latency_ps)
    end_ps = np.zeros(len(kind), np.int64)

    def play(ranges: _Ranges) -> int:
        run = new_run(_writable(pattern), Faults.none(), ())  # buffers of this thread
        return max(play_copies(run, common, links, *part, end_ps) for part in ranges)

    _play_all(play, len(kind), threads or _threads(len(kind) * len(pattern)))
    return end_ps


def _threads(ops: int) -> int:
    """Return the number of threads with which this many ops run fastest."""
    return len(os.sched_getaffinity(0)) if ops >= OPS_FOR_A_THREAD else 1


def _play_all(play: Callable[[_Ranges], int], copies: int, threads: int) -> None:
    """Run all copies, a share of the ranges on each thread; refuse copies with ops left over."""
    pieces = min(copies, PIECES * threads) if threads > 1 else 1
    cuts = np.linspace(0, copies, pieces + 1).astype(int).tolist()
    ranges = list(pairwise(cuts))
    shares = [ranges[k::threads] for k in range(min(threads, len(ranges)))]
    if len(shares) > 1:
        from concurrent.futures import ThreadPoolExecutor  # takes its time to load

        with ThreadPoolExecutor(len(shares)) as pool:
            unfinished = max(pool.map(play, shares))
    else:
        unfinished = max(map(play, shares), default=-1)
    if unfinished >= 0:
        raise ValueError(f"copy {unfinished} leaves ops over")


def _check(pattern: Schedule, kind: IntArray, kinds: int) -> None:
    if len(pattern.flows) or pattern.edges.from_start is not None:
        raise ValueError("copies are of fixed ops and joins, without edges from starts")
    if kind.ndim != 2 or kind.shape[1] != len(pattern.resources):
        raise ValueError(f"kind is {kind.shape}, not copies × {len(pattern.resources)} links")
    if kind.size and not 0 <= kind.min() <= kind.max() < kinds:
        raise ValueError(f"kind reaches from {kind.min()} to {kind.max()}, outside {kinds} kinds")


def _common_and_links(
    pattern: Schedule, kind: IntArray, rate: Sequence[int], latency_ps: Sequence[int]
) -> tuple[Pattern, Links]:
    """Return the part of the schedule that all copies have in common, and what their links do."""
    on_link = (pattern.kind == FIXED) & (pattern.resource >= 0)
    # Few sizes and few kinds occur, so each pair's duration is computed once, not once an op.
    sizes, code = np.unique(pattern.size_bytes[on_link], return_inverse=True)
    size = np.full(len(pattern), -1, np.int32)
    size[on_link] = code
    source = np.where(on_link, pattern.resource, -1)[pattern.edges.sources()]
    pending = np.bincount(pattern.edges.dst, minlength=len(pattern)).astype(np.int32)
    common = Pattern(
        size, source.astype(np.int32), pending, np.flatnonzero(pending == 0).astype(np.int32)
    )
    duration_ps = transfer_ps(sizes[None, :], np.asarray(rate, np.int64)[:, None])
    latencies = np.array(latency_ps, np.int64)
    return common, Links(np.ascontiguousarray(kind, np.int32), duration_ps, latencies)


def _writable(pattern: Schedule) -> Schedule:
    """Return the pattern with new columns of those values that differ between copies."""
    edges = replace(pattern.edges, lag_ps=pattern.edges.lag_ps.copy())
    return replace(pattern, duration_ps=pattern.duration_ps.copy(), edges=edges)
