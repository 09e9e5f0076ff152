"""Faults: resources that slow down, die and revive under the ops in flight (rule 8)."""

from __future__ import annotations

from cluster_sim.engine.compiler.jit import inlined, lean
from cluster_sim.engine.fast.agenda import push, take_all
from cluster_sim.engine.fast.columns import ATTEMPTS, FAULT, NO_OP, TROUBLE
from cluster_sim.engine.fast.queues import free_slot, touch
from cluster_sim.engine.fast.steps import Run, arrive, scaled
from cluster_sim.engine.fast.streams import leave
from cluster_sim.engine.shared_rates.max_min import set_cap, set_capacity
from cluster_sim.engine.times import DOOMED, FAILED, NEVER
from cluster_sim.schedule.table import FLOW, HORIZON_PS

FOREVER = 2**30  # count of pending edges that a doomed op gets, more than can ever elapse


@lean
def happen(run: Run, now: int) -> None:
    """Apply the faults of this instant."""
    speeds, notes = run.speeds, run.state.notes
    while notes[FAULT] < len(speeds.time) and speeds.time[notes[FAULT]] == now:
        row = notes[FAULT]
        notes[FAULT] += 1
        resource = speeds.resource[row]
        before, after = speeds.top[resource], speeds.to_top[row]
        if before == after and speeds.bottom[resource] == speeds.to_bottom[row]:
            continue
        if after == 0 or before > 0:
            _disturb(run, row, now)
        _set_speed(run, row)
        if before == 0:
            _revive(run, resource, now)


@inlined
def _disturb(run: Run, row: int, now: int) -> None:
    """Interrupt the ops in flight on a resource that dies, or rescale their remaining time."""
    state = run.state
    first = state.notes[ATTEMPTS]
    chain = take_all(run.agenda, state)
    if run.speeds.to_top[row]:
        _rescale(run, row, chain, now)
    else:
        _lose_all(run, row, chain, now)
    while chain != NO_OP:
        following = state.next[chain]
        if state.pending[chain] == 0 and state.end[chain] >= 0:
            push(run.agenda, state, chain)
        chain = following
    for index in range(first, state.notes[ATTEMPTS]):
        op = run.speeds.attempts[index, 0]
        if not run.speeds.lost[op]:
            arrive(state, run.agenda, op, now)


@inlined
def _rescale(run: Run, row: int, op: int, now: int) -> None:
    """Scale the remaining time of the fixed ops of a chain that hold the resource."""
    speeds, state = run.speeds, run.state
    resource = speeds.resource[row]
    top = speeds.top[resource] * speeds.to_bottom[row]
    bottom = speeds.bottom[resource] * speeds.to_top[row]
    while op != NO_OP:
        if state.start[op] >= 0 and run.ops.resource[op] == resource:
            duration = scaled(state.end[op] - now, top, bottom)
            if duration > HORIZON_PS - now:
                state.notes[TROUBLE] = op
                duration = 1
            state.end[op] = now + duration
        op = state.next[op]


@inlined
def _lose_all(run: Run, row: int, op: int, now: int) -> None:
    """Interrupt all ops on the resource: those of this chain, and the flows in flight."""
    state, streams, speeds = run.state, run.streams, run.speeds
    resource = speeds.resource[row]
    first = state.notes[ATTEMPTS]
    while op != NO_OP:
        if state.start[op] >= 0 and run.ops.resource[op] == resource:
            _lose(run, op, now)
        op = state.next[op]
    for berth in range(streams.vacant[1]):
        if streams.op[berth] != NO_OP and _is_on(run, berth, resource):
            _lose(run, streams.op[berth], now)
    if speeds.fails[row]:
        end = state.notes[ATTEMPTS]
        for index in range(first, end):
            speeds.lost[speeds.attempts[index, 0]] = FAILED
        for index in range(first, end):
            _doom_behind(run, speeds.attempts[index, 0], now)


@inlined
def _is_on(run: Run, berth: int, resource: int) -> bool:
    """Return whether the flow in a berth holds a slot of a resource, or shares it."""
    streams = run.streams
    if run.ops.resource[streams.op[berth]] == resource:
        return True
    number = streams.number[berth]
    for share in range(streams.paths.ptr[number], streams.paths.ptr[number + 1]):
        if streams.paths.resource[share] == resource:
            return True
    return False


@inlined
def _lose(run: Run, op: int, now: int) -> None:
    """Take an op in flight off its resources, and undo its edges that have not elapsed yet."""
    ops, state, due, attempts = run.ops, run.state, run.speeds.due, run.speeds.attempts
    row = state.notes[ATTEMPTS]
    state.notes[ATTEMPTS] += 1
    attempts[row, 0], attempts[row, 1], attempts[row, 2] = op, state.start[op], now
    if len(ops.from_start):
        for edge in range(ops.ptr[op], ops.ptr[op + 1]):
            if due[edge] >= now:
                due[edge] = NEVER
                state.pending[ops.dst[edge]] += 1
    if ops.kind[op] == FLOW:
        leave(run.streams, state, state.child[op])
    state.start[op] = NEVER
    state.end[op] = NEVER
    resource = ops.resource[op]
    if resource >= 0:
        free_slot(run.queues, state, resource)


@inlined
def _doom_behind(run: Run, op: int, now: int) -> None:
    """Mark all ops that follow a failed op, directly or through others, as never run."""
    ops, state, lost, reached = run.ops, run.state, run.speeds.lost, run.speeds.reached
    reached[0] = op
    length = 1
    while length:
        length -= 1
        op = reached[length]
        for edge in range(ops.ptr[op], ops.ptr[op + 1]):
            follower = ops.dst[edge]
            started = state.start[follower] >= 0
            if lost[follower] or (started and state.end[follower] <= now):
                continue
            lost[follower] = DOOMED
            if started:
                _lose(run, follower, now)
            state.pending[follower] = FOREVER
            reached[length] = follower
            length += 1


@inlined
def _set_speed(run: Run, row: int) -> None:
    """Set the speed of a resource: scale the rate that it divides, and its flows' caps."""
    speeds, streams = run.speeds, run.streams
    resource = speeds.resource[row]
    top, bottom = speeds.to_top[row], speeds.to_bottom[row]
    speeds.top[resource], speeds.bottom[resource] = top, bottom
    if len(streams.op) == 0:
        return
    paths, solver, groups = streams.paths, streams.solver, streams.groups
    capacity = _part(streams.nominal_capacity[resource], top, bottom)
    set_capacity(paths, solver, groups, resource, capacity)
    for number in range(len(streams.slot)):
        if streams.slot[number] == resource:
            cap = _part(streams.nominal_cap[number], top, bottom)
            set_cap(paths, solver, groups, number, cap)


@inlined
def _part(rate: int, top: int, bottom: int) -> int:
    """``rate · top // bottom``, computed without passing 64 bits."""
    return rate // bottom * top + rate % bottom * top // bottom


@inlined
def _revive(run: Run, resource: int, now: int) -> None:
    """Let the ops that wait for a resource try to start again."""
    if run.queues.free[resource]:
        touch(run.queues, run.state, resource)
    op = run.speeds.parked[resource]
    run.speeds.parked[resource] = NO_OP
    while op != NO_OP:
        following = run.state.next[op]
        arrive(run.state, run.agenda, op, now)
        op = following
