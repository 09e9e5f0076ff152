"""Calls of routines: at each call, the routine's ops are reset and run again in the same rows."""

from __future__ import annotations

import numpy as np

from cluster_sim.engine.compiler.jit import internal
from cluster_sim.engine.fast.columns import NO_OP, STOP, Calls
from cluster_sim.engine.fast.steps import Run, arrive, count
from cluster_sim.engine.times import NEVER
from cluster_sim.schedule.routines import Routines
from cluster_sim.schedule.table import IntArray, Schedule


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
