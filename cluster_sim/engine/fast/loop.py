"""The main loop: one instant after the other, each in the order of rule 5.

An op arrives, starts and ends, and its edges let others arrive. Faults are resources that slow
down, die and revive under the ops in flight (rule 8)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, internal, lean, prefetch
from cluster_sim.engine.fast.columns import (
    ARRIVED,
    ATTEMPTS,
    ENDED,
    FAULT,
    NO_OP,
    SETTLED,
    STOP,
    STREAMS,
    TOUCHED,
    TROUBLE,
    Agenda,
    Calls,
    Ops,
    Queues,
    Speeds,
    State,
    Streams,
    dequeue,
    enqueue,
    free_slot,
    next_time,
    push,
    put,
    take_all,
    take_instant,
    touch,
    vacate,
)
from cluster_sim.engine.fast.streams import enter, leave, solve, take_ended
from cluster_sim.engine.shared_rates.max_min import set_cap, set_capacity
from cluster_sim.engine.shared_rates.tables import LISTED
from cluster_sim.engine.times import DOOMED, FAILED, NEVER
from cluster_sim.schedule.repeats import Routines
from cluster_sim.schedule.table import FLOW, HORIZON_PS, JOIN, IntArray, Schedule


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
        push(agenda, ~op, state.ready[op])
    else:
        list_arrival(state, op)


@inlined
def list_arrival(state: State, op: int) -> None:
    """Add an op to the arrivals of this instant."""
    place = state.notes[ARRIVED]
    state.arrived[place] = op
    state.notes[ARRIVED] = place + 1 if place + 1 < len(state.arrived) else 0


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
def finish(run: Run, op: int, now: int, alone: bool) -> None:
    """End an op: free its slot, and count the edges from its end."""
    # ``alone``: few ops end at this instant, so that none was fetched ahead of its turn; what is
    # behind them is fetched now, for its own instant.
    ops, state = run.ops, run.state
    state.notes[ENDED] += 1
    resource = ops.resource[op]
    if resource >= 0:
        free_slot(run.queues, state, resource)
    if len(ops.watched) and ops.watched[op]:
        state.notes[STOP] = 1
    for edge in range(ops.ptr[op], ops.ptr[op + 1]):
        if len(ops.from_start) == 0 or not ops.from_start[edge]:
            follower = ops.dst[edge]
            if alone:
                prefetch(ops.resource, follower)
                _prefetch_start(ops, state, follower)
            count(state, run.agenda, follower, ops.lag[edge], now)


@inlined
def _prefetch_start(ops: Ops, state: State, op: int) -> None:
    """Prefetch the columns that the start of an op will read, while other ops are handled."""
    # Ops that follow one another are seldom neighbours in memory: without all that is fetched ahead
    # two thirds of a large run are spent waiting for columns.
    prefetch(ops.kind, op)
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
    push(run.agenda, op, now + duration)
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
    chain = take_all(run.agenda)
    if run.speeds.to_top[row]:
        _rescale(run, row, chain, now)
    else:
        _lose_all(run, row, chain, now)
    while chain != NO_OP:
        following, what = run.agenda.after[chain], run.agenda.what[chain]
        if (state.start[what] != NEVER) if what >= 0 else (state.pending[~what] == 0):
            put(run.agenda, chain, run.agenda.time[chain])
        else:
            vacate(run.agenda, chain)
        chain = following
    for index in range(first, state.notes[ATTEMPTS]):
        op = run.speeds.attempts[index, 0]
        if not run.speeds.lost[op]:
            arrive(state, run.agenda, op, now)


@inlined
def _rescale(run: Run, row: int, entry: int, now: int) -> None:
    """Scale the remaining time of the fixed ops of a chain that hold the resource."""
    speeds, state, agenda = run.speeds, run.state, run.agenda
    resource = speeds.resource[row]
    top = speeds.top[resource] * speeds.to_bottom[row]
    bottom = speeds.bottom[resource] * speeds.to_top[row]
    while entry != NO_OP:
        op = agenda.what[entry]
        if op >= 0 and run.ops.resource[op] == resource:
            duration = scaled(state.end[op] - now, top, bottom)
            if duration > HORIZON_PS - now:
                state.notes[TROUBLE] = op
                duration = 1
            state.end[op] = now + duration
            agenda.time[entry] = now + duration
        entry = agenda.after[entry]


@inlined
def _lose_all(run: Run, row: int, entry: int, now: int) -> None:
    """Interrupt all ops on the resource: those of this chain, and the flows in flight."""
    state, streams, speeds, agenda = run.state, run.streams, run.speeds, run.agenda
    resource = speeds.resource[row]
    first = state.notes[ATTEMPTS]
    while entry != NO_OP:
        op = agenda.what[entry]
        if op >= 0 and run.ops.resource[op] == resource:
            _lose(run, op, now)
        entry = agenda.after[entry]
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
    paths, solver = streams.paths, streams.solver
    capacity = _part(streams.nominal_capacity[resource], top, bottom)
    set_capacity(paths, solver, resource, capacity)
    for number in range(len(streams.slot)):
        if streams.slot[number] == resource:
            cap = _part(streams.nominal_cap[number], top, bottom)
            set_cap(paths, solver, number, cap)


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
    """Run from the arrivals of one instant up to ``until``; return the last instant."""
    notes, faults = run.state.notes, run.speeds.time
    while True:
        _settle_arrivals(run, now)
        _start(run, now)
        if run.streams.solver.sizes[LISTED]:
            solve(run.streams, run.state, now)
        ahead = _next_instant(run)
        if notes[TROUBLE] != NO_OP or notes[STOP]:
            return now
        if ahead > until:
            return until
        now = ahead
        _end(run, now)
        # The caller applies the faults after the ends of this instant, and calls again for its
        # rest.
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
        listed, instant = take_instant(run.agenda, now), run.agenda.instant
        ahead = _worth_fetching(instant[0], instant[listed - 1], listed)
        for index in range(min(FAR, ahead)):
            _prefetch_op(run, instant[index])
        for index in range(min(NEAR, ahead)):
            _prefetch_edges(run, instant[index])
        for index in range(listed):
            if index + FAR < ahead:
                _prefetch_op(run, instant[index + FAR])
            if index + NEAR < ahead:
                _prefetch_edges(run, instant[index + NEAR])
            if index + NEXT < ahead:
                _prefetch_followers(run, instant[index + NEXT])
            what = instant[index]
            if what < 0:
                list_arrival(state, ~what)
            else:
                finish(run, what, now, listed < NEXT)
    if state.notes[STREAMS] and streams.ends[0] == now:
        for index in range(take_ended(streams, state, now)):
            state.end[streams.ended[index]] = now
            finish(run, streams.ended[index], now, True)


FAR, NEAR, NEXT = 18, 10, 4
"""Places ahead of its turn at which an op, its edges, and the ops behind these are fetched. Half of
them and twice as many run all-reduces of a ring of 1,024 and a mesh of 512 ranks within 6 % of it.
Without them a mesh of 1,500 ranks (9 M ops) runs at 10.2 instead of 12.3 M ops/s, one of 512 Trn2
chips at 5.9 instead of 6.8, and what fits in the cache as fast (EPYC, 32 MiB)."""
SPREAD = 4  # ops that are closer than this to one another, the processor fetches by itself


@inlined
def _worth_fetching(first: int, last: int, count: int) -> int:
    """Return how many ops of an instant to fetch ahead: none of those that are neighbours."""
    return count if abs(last - first) > SPREAD * count else 0


@inlined
def _prefetch_op(run: Run, what: int) -> None:
    """Prefetch what the arrival or the end of an op reads of its columns."""
    ops, state = run.ops, run.state
    if what < 0:
        prefetch(ops.resource, ~what)
        prefetch(ops.kind, ~what)
        prefetch(ops.priority, ~what)
        prefetch(state.ready, ~what)
    else:
        prefetch(ops.ptr, what)
        prefetch(ops.resource, what)


@inlined
def _prefetch_edges(run: Run, what: int) -> None:
    """Prefetch the first edges from an op that ends."""
    if what >= 0:
        edge = run.ops.ptr[what]
        prefetch(run.ops.dst, edge)
        prefetch(run.ops.lag, edge)


@inlined
def _prefetch_followers(run: Run, what: int) -> None:
    """Prefetch what is counted of the first two ops behind one that ends."""
    ops, state = run.ops, run.state
    if what >= 0:
        first = ops.ptr[what]
        for edge in range(first, min(first + 2, ops.ptr[what + 1])):
            prefetch(state.ready, ops.dst[edge])
            prefetch(state.pending, ops.dst[edge])


@inlined
def _settle_arrivals(run: Run, now: int) -> None:
    """Queue the ops that arrived; joins end at once, which may let more ops arrive."""
    ops, state, queues = run.ops, run.state, run.queues
    while state.notes[SETTLED] != state.notes[ARRIVED]:
        place = state.notes[SETTLED]
        op = state.arrived[place]
        state.notes[SETTLED] = place + 1 if place + 1 < len(state.arrived) else 0
        resource = ops.resource[op]
        if len(run.speeds.lost) and (run.speeds.lost[op] or state.pending[op]):
            continue
        if ops.kind[op] == JOIN:
            state.start[op] = now
            state.end[op] = now
            finish(run, op, now, False)
            if len(run.calls.routine):
                pass_on(run, op, now)
        elif resource >= 0:
            enqueue(queues, ops, state, resource, op)
            if queues.free[resource] > 0:
                touch(queues, state, resource)
        elif not _parked(run, op):
            begin(run, op, now)
    state.notes[ARRIVED] = state.notes[SETTLED] = 0


@inlined
def _prefetch_head(run: Run, resource: int) -> None:
    """Prefetch what the start of the first op in the list of a resource reads."""
    op = run.queues.head[resource]
    if op != NO_OP:
        prefetch(run.state.next, op)
        prefetch(run.state.end, op)
        _prefetch_start(run.ops, run.state, op)


@inlined
def _start(run: Run, now: int) -> None:
    """Give free slots to the ops that wait for them."""
    ops, state, queues, speeds = run.ops, run.state, run.queues, run.speeds
    touched, ahead = state.notes[TOUCHED], 0
    if touched >= NEXT:
        first, last = queues.touched[0], queues.touched[touched - 1]
        ahead = _worth_fetching(queues.head[first], queues.head[last], touched)
    for index in range(min(NEAR, ahead)):
        _prefetch_head(run, queues.touched[index])
    for index in range(touched):
        if index + NEAR < ahead:
            _prefetch_head(run, queues.touched[index + NEAR])
        resource = queues.touched[index]
        queues.marked[resource] = 0
        if len(speeds.top) and speeds.top[resource] == 0:
            continue
        while queues.free[resource] > 0:
            op = dequeue(queues, ops, state, resource)
            if op == NO_OP:
                break
            if touched < NEXT:
                _prefetch_head(run, resource)  # too few to fetch any just before its turn
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
