"""The main loop: one instant after the other, each in the order of rule 5."""

from __future__ import annotations

from cluster_sim.engine.compiler.jit import inlined, lean
from cluster_sim.engine.fast.agenda import Agenda, next_time, take_instant
from cluster_sim.engine.fast.columns import (
    ARRIVED,
    FAULT,
    NO_OP,
    STOP,
    STREAMS,
    TOUCHED,
    TROUBLE,
    Ops,
    State,
)
from cluster_sim.engine.fast.disturb import happen
from cluster_sim.engine.fast.queues import dequeue, enqueue, touch
from cluster_sim.engine.fast.steps import Run, arrive, begin, finish, pass_on
from cluster_sim.engine.fast.streams import solve, take_ended
from cluster_sim.engine.shared_rates.tables import LISTED
from cluster_sim.engine.times import NEVER
from cluster_sim.schedule.table import FLOW, HORIZON_PS, JOIN


def play(run: Run, until: int) -> int:
    """Run up to and including the instant ``until``, and return the last instant."""
    notes, faults = run.state.notes, run.speeds.time
    now = 0
    arrive_first(run.ops, run.state, run.agenda, now)
    while True:
        if notes[FAULT] < len(faults) and faults[notes[FAULT]] == now:
            happen(run, now)
        now = advance(run, now, until)
        if notes[FAULT] == len(faults) or faults[notes[FAULT]] != now:
            return now


@lean
def arrive_first(ops: Ops, state: State, agenda: Agenda, now: int) -> None:
    """Count the edges into each op; ops without any arrive at once."""
    for edge in range(len(ops.dst)):
        state.pending[ops.dst[edge]] += 1
    for op in range(len(ops.kind)):
        if state.pending[op] == 0:
            arrive(state, agenda, op, now)


@lean
def advance(run: Run, now: int, until: int) -> int:
    """Run from the arrivals of one instant up to and including ``until``; return the last instant.

    At an instant with faults the function returns after the ends of its ops. The caller applies
    the faults and calls again for the rest of that instant.
    """
    notes, faults = run.state.notes, run.speeds.time
    while True:
        _settle_arrivals(run, now)
        _start(run, now)
        if run.streams.solver.sizes[LISTED] or run.streams.groups.length[0]:
            solve(run.streams, run.state, now)
        ahead = _next_instant(run)
        if notes[TROUBLE] != NO_OP or notes[STOP]:
            return now
        if ahead > until:
            return until
        now = ahead
        _end(run, now)
        if notes[FAULT] < len(faults) and faults[notes[FAULT]] == now:
            return now


@inlined
def _next_instant(run: Run) -> int:
    notes, streams, speeds = run.state.notes, run.streams, run.speeds
    ahead = next_time(run.agenda)
    if notes[STREAMS]:
        end = streams.ends[0]
        if end <= HORIZON_PS:
            ahead = min(ahead, end)
    if notes[FAULT] < len(speeds.time):
        ahead = min(ahead, speeds.time[notes[FAULT]])
    return ahead


@inlined
def _end(run: Run, now: int) -> None:
    """End the ops that end at this instant, and let ops arrive that become ready at it."""
    state, streams = run.state, run.streams
    if next_time(run.agenda) == now:
        op = take_instant(run.agenda, state, now)
        while op != NO_OP:
            following = state.next[op]
            if state.start[op] == NEVER:
                arrive(state, run.agenda, op, now)
            else:
                finish(run, op, now)
            op = following
    if state.notes[STREAMS] and streams.ends[0] == now:
        for index in range(take_ended(streams, state, now)):
            finish(run, streams.ended[index], now)


@inlined
def _settle_arrivals(run: Run, now: int) -> None:
    """Queue the ops that arrived; joins end at once, which may let more ops arrive."""
    ops, state, queues = run.ops, run.state, run.queues
    op = state.notes[ARRIVED]
    while op != NO_OP:
        resource = ops.resource[op]
        if len(run.speeds.lost) and (run.speeds.lost[op] or state.pending[op]):
            op = state.next[op]
        elif ops.kind[op] == JOIN:
            state.start[op] = now
            finish(run, op, now)
            if len(run.calls.routine):
                pass_on(run, op, now)
            op = state.next[op]
        else:
            following = state.next[op]
            if resource >= 0:
                enqueue(queues, ops, state, resource, op)
                if queues.free[resource] > 0:
                    touch(queues, state, resource)
            elif not _parked(run, op):
                begin(run, op, now)
            op = following
    state.notes[ARRIVED] = NO_OP


@inlined
def _start(run: Run, now: int) -> None:
    """Give free slots to the ops that wait for them."""
    ops, state, queues, speeds = run.ops, run.state, run.queues, run.speeds
    for index in range(state.notes[TOUCHED]):
        resource = queues.touched[index]
        queues.marked[resource] = 0
        if len(speeds.top) and speeds.top[resource] == 0:
            continue
        while queues.free[resource] > 0:
            op = dequeue(queues, ops, state, resource)
            if op == NO_OP:
                break
            if not _parked(run, op):
                queues.free[resource] -= 1
                begin(run, op, now)
    state.notes[TOUCHED] = 0


@inlined
def _parked(run: Run, op: int) -> bool:
    """Return whether an op cannot start; a flow over a dead resource is parked there."""
    speeds, streams = run.speeds, run.streams
    if len(speeds.top) == 0:
        return False
    if speeds.lost[op]:
        return True
    if run.ops.kind[op] == FLOW:
        number = run.ops.flow[op]
        for share in range(streams.paths.ptr[number], streams.paths.ptr[number + 1]):
            resource = streams.paths.resource[share]
            if speeds.top[resource] == 0:
                run.state.next[op] = speeds.parked[resource]
                speeds.parked[resource] = op
                return True
    return False
