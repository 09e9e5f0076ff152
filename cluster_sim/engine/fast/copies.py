"""Runs of many copies of one small schedule, each on links of its own, in the same few buffers.

A copy is written, run and dropped before the next one is written. So its ops stay in the
processor's cache, and a hundred million copies take the memory of a few thousand.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster_sim.engine.compiler.jit import internal, lean
from cluster_sim.engine.fast.columns import ARRIVED, ENDED, NO_OP, NOTES, TROUBLE
from cluster_sim.engine.fast.loop import advance
from cluster_sim.engine.fast.steps import Run, arrive
from cluster_sim.engine.times import NEVER
from cluster_sim.schedule.table import HORIZON_PS, IntArray


class Pattern(NamedTuple):
    """The part of a schedule that all copies have in common.

    Attributes
    ----------
    size : int32 array (ops,)
        Index of the size that an op moves over its link, among the sizes that occur; -1 for an op
        without a link, whose duration is the same in all copies.
    source : int32 array (edges,)
        Link whose latency is the lag of an edge; -1 for a lag that is the same in all copies.
    pending : int32 array (ops,)
        Number of edges into each op.
    first : int32 array
        Ops without any edge into them, which arrive at time 0.
    """

    size: IntArray
    source: IntArray
    pending: IntArray
    first: IntArray


class Links(NamedTuple):
    """The links of the copies.

    Attributes
    ----------
    kind : int32 array (copies, links)
        Kind of each link of each copy.
    duration_ps : int64 array (kinds, sizes)
        Time of each size that occurs on a link of each kind [ps].
    latency_ps : int64 array (kinds,)
        Latency of a link of each kind [ps].
    """

    kind: IntArray
    duration_ps: IntArray
    latency_ps: IntArray


@lean
def play_copies(
    run: Run, pattern: Pattern, links: Links, low: int, high: int, end_ps: IntArray
) -> int:
    """Write and run the copies ``low:high``, and store the time at which each ends in ``end_ps``.

    Returns
    -------
    int
        First copy of which some ops never ran, or -1 if there is none.
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
