"""Many copies of one small schedule, each on links of its own, run in the same few buffers.

A copy is written, run and dropped before the next, so its ops stay in the processor's cache, and a
hundred million of them take the memory of a few thousand.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster_sim.engine.fast.columns import ARRIVED, ENDED, NO_OP, NOTES, TROUBLE
from cluster_sim.engine.fast.loop import advance
from cluster_sim.engine.fast.steps import Run, arrive
from cluster_sim.engine.jit import internal, lean
from cluster_sim.engine.times import NEVER
from cluster_sim.schedule.table import HORIZON_PS, IntArray


class Pattern(NamedTuple):
    """The part of a schedule that all copies have in common.

    Attributes
    ----------
    size : int32 array (ops,)
        Which of the sizes that occur an op moves over its link; -1 for one without a link, whose
        duration is the same in all copies.
    source : int32 array (edges,)
        Link whose latency is the lag of an edge; -1 for a lag that is the same in all copies.
    pending : int32 array (ops,)
        Edges into each op.
    first : int32 array
        Ops that wait for nothing.
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
        Which kind each link of each copy is of.
    duration_ps : int64 array (kinds, sizes)
        Time of each size that occurs on a link of each kind [ps].
    latency_ps : int64 array (kinds,)
    """

    kind: IntArray
    duration_ps: IntArray
    latency_ps: IntArray


@lean
def play_copies(
    run: Run, pattern: Pattern, links: Links, low: int, high: int, end_ps: IntArray
) -> int:
    """Write and run the copies ``low:high``, and note when each ends.

    Returns
    -------
    int
        The first copy of which ops were left over, or -1.
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
    """Set the durations and lags that the links of a copy make."""
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
    """Make everything as it was before a run; the queues of a finished one are empty."""
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
