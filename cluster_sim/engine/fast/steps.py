"""Steps in the life of an op: it arrives, starts and ends, and its edges let others arrive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, internal, prefetch
from cluster_sim.engine.fast.agenda import Agenda, push
from cluster_sim.engine.fast.columns import (
    ARRIVED,
    ENDED,
    LAST_ARRIVED,
    NO_OP,
    STOP,
    TROUBLE,
    Calls,
    Ops,
    Speeds,
    State,
    Streams,
)
from cluster_sim.engine.fast.queues import Queues, free_slot
from cluster_sim.engine.fast.streams import enter
from cluster_sim.engine.times import NEVER
from cluster_sim.schedule.repeats import Routines
from cluster_sim.schedule.table import FLOW, HORIZON_PS, IntArray, Schedule


class Run(NamedTuple):
    """All tables of a run."""

    ops: Ops
    state: State
    agenda: Agenda
    queues: Queues
    streams: Streams
    speeds: Speeds
    calls: Calls


@inlined
def arrive(state: State, agenda: Agenda, op: int, now: int) -> None:
    """Add an op whose edges are all counted to the arrivals, or to the agenda if lags remain."""
    if state.ready[op] > now:
        state.end[op] = state.ready[op]
        push(agenda, state, op)
        return
    if state.notes[ARRIVED] == NO_OP:
        state.notes[ARRIVED] = op
    else:
        state.next[state.notes[LAST_ARRIVED]] = op
    state.notes[LAST_ARRIVED] = op
    state.next[op] = NO_OP


@inlined
def count(state: State, agenda: Agenda, op: int, lag: int, now: int) -> None:
    """Count one edge into an op, which elapses after this lag; after the last edge, it arrives."""
    if lag > HORIZON_PS - now:
        state.notes[TROUBLE] = op
        return
    if now + lag > state.ready[op]:
        state.ready[op] = now + lag
    state.pending[op] -= 1
    if state.pending[op] == 0:
        arrive(state, agenda, op, now)


@inlined
def finish(run: Run, op: int, now: int) -> None:
    """End an op: free its slot, and count the edges from its end."""
    ops, state = run.ops, run.state
    state.end[op] = now
    state.notes[ENDED] += 1
    resource = ops.resource[op]
    if resource >= 0:
        free_slot(run.queues, state, resource)
    if len(ops.watched) and ops.watched[op]:
        state.notes[STOP] = 1
    for edge in range(ops.ptr[op], ops.ptr[op + 1]):
        if len(ops.from_start) == 0 or not ops.from_start[edge]:
            follower = ops.dst[edge]
            _prefetch_start(ops, state, follower)
            count(state, run.agenda, follower, ops.lag[edge], now)


@inlined
def _prefetch_start(ops: Ops, state: State, op: int) -> None:
    """Prefetch the columns that the start of an op will read, while other ops are handled.

    Ops that follow one another in time are seldom neighbours in memory, so that without this half
    of a large run is spent waiting for these columns.
    """
    prefetch(ops.kind, op)
    prefetch(ops.resource, op)
    prefetch(ops.duration, op)
    prefetch(ops.ptr, op)
    prefetch(state.start, op)
    if len(ops.flow):
        prefetch(ops.flow, op)
        prefetch(ops.size, op)


@inlined
def begin(run: Run, op: int, now: int) -> None:
    """Start an op that is not a join."""
    ops, state = run.ops, run.state
    state.start[op] = now
    prefetch(ops.dst, ops.ptr[op])  # for its end
    prefetch(ops.lag, ops.ptr[op])
    if ops.kind[op] == FLOW:
        enter(run.streams, state, op, ops.flow[op], ops.size[op], now)
        return
    duration = ops.duration[op]
    if len(run.speeds.top) and ops.resource[op] >= 0:
        top, bottom = run.speeds.top[ops.resource[op]], run.speeds.bottom[ops.resource[op]]
        duration = scaled(duration, bottom, top)
    if duration > HORIZON_PS - now:
        state.notes[TROUBLE] = op
        return
    state.end[op] = now + duration
    push(run.agenda, state, op)
    if len(ops.from_start):
        count_start_edges(run, op, duration - ops.duration[op], now)


@inlined
def count_start_edges(run: Run, op: int, late: int, now: int) -> None:
    """Count the edges from an op's start, each delayed by the time that the op takes longer."""
    ops, due = run.ops, run.speeds.due
    for edge in range(ops.ptr[op], ops.ptr[op + 1]):
        if ops.from_start[edge]:
            if len(due):
                if due[edge] >= 0:
                    continue
                due[edge] = now + ops.lag[edge] + late
            count(run.state, run.agenda, ops.dst[edge], ops.lag[edge] + late, now)


@inlined
def scaled(duration: int, top: int, bottom: int) -> int:
    """``ceil(duration · top / bottom)``, but at most just past the horizon [ps]."""
    whole, part = duration // bottom, duration % bottom
    if whole > HORIZON_PS // top:
        return HORIZON_PS + 1
    return whole * top + (part * top + bottom - 1) // bottom


def no_calls() -> Calls:
    """Return the table of calls for a schedule without routines."""
    narrow, wider = np.empty(0, np.int32), np.empty(0, np.int64)
    return Calls(narrow, wider, narrow, wider, np.full(1, NO_OP, np.int64))


def calls_of(schedule: Schedule, routines: Routines) -> Calls:
    """Return the table of calls of routines, none of which runs yet."""
    routine = np.full(len(schedule), NO_OP, np.int32)
    routine[routines.caller] = routines.routine
    routine[routines.first[1:] - 1] = np.arange(len(routines))
    pending = np.bincount(schedule.edges.dst, minlength=len(schedule)).astype(np.int32)
    first = np.ascontiguousarray(routines.first, np.int64)
    caller = np.full(len(routines), NO_OP, np.int64)
    return Calls(routine, first, pending, caller, np.full(1, NO_OP, np.int64))


def held_back(routines: Routines, pending: IntArray) -> None:
    """Hold back routines' ops, and joins behind calls, by an edge that calls and ends count."""
    pending[routines.outside :] = 1
    pending[routines.caller + 1] = 1


@internal
def pass_on(run: Run, op: int, now: int) -> None:
    """Run the routine that a join calls; after a routine's last op, return to its caller."""
    calls, state = run.calls, run.state
    routine = calls.routine[op]
    if routine == NO_OP:
        return
    first, behind = calls.first[routine], calls.first[routine + 1]
    caller = calls.caller[routine]
    if op >= first:
        calls.caller[routine] = NO_OP
        count(state, run.agenda, caller + 1, 0, now)
        return
    if caller != NO_OP:
        calls.clash[0] = routine
        state.notes[STOP] = 1
        return
    calls.caller[routine] = op
    for other in range(first, behind):
        state.ready[other] = 0
        state.start[other] = NEVER
        state.pending[other] = calls.pending[other]
    for other in range(first, behind):
        if calls.pending[other] == 0:
            state.ready[other] = now
            arrive(state, run.agenda, other, now)
