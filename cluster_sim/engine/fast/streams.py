"""Flows in flight: the work that is left of each, and the time at which the next one ends (rule 7).

Flows that agree in path, weights, cap and slot form a class with one rate, whose work is counted
once; those in step wait in a pairing heap, in which the least work left ends next.
"""

from __future__ import annotations

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, internal
from cluster_sim.engine.fast.columns import (
    ANEW,
    FRESH,
    NO_OP,
    STREAMS,
    State,
    Streams,
    meld,
    without_root,
)
from cluster_sim.engine.shared_rates import max_min
from cluster_sim.engine.shared_rates.tables import sift
from cluster_sim.engine.times import UNKNOWN_PS
from cluster_sim.schedule.table import HORIZON_PS

MICROBYTES = 10**6  # microbytes in a byte
PER_MICROBYTE = 10**6  # rate [B/s] times duration [ps] that moves one microbyte
NEARLY_EXACT = 2.0**50  # durations [ps] up to which two roundings of a float are less than 1 ps


@inlined
def moved(rate: int, duration: int) -> int:
    """Work ``rate · duration // PER_MICROBYTE`` [microbytes], computed without passing 64 bits."""
    whole, part = duration // PER_MICROBYTE, duration % PER_MICROBYTE
    high, low = rate // PER_MICROBYTE, rate % PER_MICROBYTE
    return rate * whole + high * part + low * part // PER_MICROBYTE


@inlined
def time_for(left: int, rate: int) -> int:
    """``ceil(left · PER_MICROBYTE / rate)`` for rates under 2⁵³; UNKNOWN_PS past the horizon."""
    # Floating point gives short times to within 1 ps, which the remainder corrects: it is exact
    # although the products pass 64 bits, as their difference does not.
    guess = float(left) / float(rate) * PER_MICROBYTE
    if guess < NEARLY_EXACT:
        duration = np.int64(guess)
        rest = left * PER_MICROBYTE - duration * rate
        while rest > 0:
            duration += 1
            rest -= rate
        while rest <= -rate:
            duration -= 1
            rest += rate
        return duration  # type: ignore[return-value]
    # Longer times are divided three digits at a time.
    whole, part = left // rate, left % rate
    if whole >= HORIZON_PS // PER_MICROBYTE:
        return UNKNOWN_PS
    thousands, part = part * 1000 // rate, part * 1000 % rate
    ones, part = part * 1000 // rate, part * 1000 % rate
    return whole * PER_MICROBYTE + thousands * 1000 + ones + (part > 0)


@inlined
def end_of(left: int, rate: int, since: int) -> int:
    """Instant at which work is done [ps]; UNKNOWN_PS without a rate or past the horizon."""
    duration = UNKNOWN_PS if rate == 0 else time_for(left, rate)
    return UNKNOWN_PS if duration > HORIZON_PS - since else since + duration


@inlined
def list_due(streams: Streams, state: State, now: int) -> int:
    """List the items of the heap that end at this instant, the earliest; return their number."""
    streams.due[0] = 0
    due, index = 1, 0
    while index < due:
        place = streams.due[index]
        for child in range(2 * place + 1, min(2 * place + 3, state.notes[STREAMS])):
            if streams.ends[child] == now:
                streams.due[due] = child
                due += 1
        streams.due[index] = streams.heap[place]
        index += 1
    return due


@inlined
def set_end(streams: Streams, state: State, item: int, end: int) -> None:
    """Set the end of an item of the heap: of a class's next flow, or of a loose flow."""
    place = streams.place[item]
    if place == NO_OP:
        place = state.notes[STREAMS]
        state.notes[STREAMS] += 1
    sift(streams.ends, streams.heap, streams.place, state.notes[STREAMS], place, end, item)


@internal
def remove(streams: Streams, state: State, item: int) -> None:
    """Take an item, which is a class or a loose flow, out of the heap of ends."""
    place = streams.place[item]
    streams.place[item] = NO_OP
    state.notes[STREAMS] -= 1
    last, end = streams.heap[state.notes[STREAMS]], streams.ends[state.notes[STREAMS]]
    if last != item:
        sift(streams.ends, streams.heap, streams.place, state.notes[STREAMS], place, end, last)


@inlined
def fall_in_step(streams: Streams, state: State, berth: int) -> None:
    """Put a flow that is up to date among the flows in step of its class."""
    number = streams.number[berth]
    streams.left[berth] += streams.work[number]  # may pass 64 bits: only differences are used
    _list_anew(streams, state, number)
    streams.child[berth] = NO_OP
    streams.root[number] = _meld(streams, streams.root[number], berth)


@inlined
def _list_anew(streams: Streams, state: State, number: int) -> None:
    """List a class whose next end is to be found anew at the end of this instant."""
    if not streams.stale[number]:
        streams.stale[number] = 1
        streams.anew[state.notes[ANEW]] = number
        state.notes[ANEW] += 1


@internal
def take_out(streams: Streams, number: int, berth: int) -> None:
    """Take out a flow in step, wherever it is."""
    kept, item = NO_OP, streams.root[number]
    while item != NO_OP:
        rest = _without_root(streams, item)
        if item != berth:
            kept = _meld(streams, kept, item)
        item = rest
    streams.root[number] = kept


@inlined
def _has_less(streams: Streams, one: int, other: int) -> bool:
    """Return whether one flow in step has less work left than another."""
    return bool(streams.left[one] - streams.left[other] < 0)  # a difference, as sums may wrap


@inlined
def _meld(streams: Streams, one: int, other: int) -> int:
    return meld(_has_less, streams, streams.after, streams.child, one, other)


@internal
def _without_root(streams: Streams, root: int) -> int:
    return without_root(_has_less, streams, streams.after, streams.child, root)


@internal
def enter(streams: Streams, state: State, op: int, number: int, size: int, now: int) -> None:
    """Start a flow; its rate is solved at the end of this instant."""
    berth = streams.vacant[0]
    if berth == NO_OP:
        berth = streams.vacant[1]
        streams.vacant[1] += 1
        streams.place[len(streams.slot) + berth] = NO_OP
    else:
        streams.vacant[0] = streams.after[berth]
    streams.op[berth], streams.number[berth] = op, number
    streams.left[berth], streams.begun[berth] = size * MICROBYTES, now
    max_min.join(streams.paths, streams.solver, number)
    streams.fresh[state.notes[FRESH]] = berth
    state.notes[FRESH] += 1
    state.child[op] = berth
    state.end[op] = UNKNOWN_PS


@internal
def take_ended(streams: Streams, state: State, now: int) -> int:
    """List the ops whose flows end now, and leave their classes in the heap until solved."""
    ended, classes = 0, len(streams.slot)
    for index in range(list_due(streams, state, now)):
        item = streams.due[index]
        if item < classes:
            ended = _take_in_step(streams, state, item, now, ended)
        else:
            _unchain(streams, state, item - classes)
            streams.ended[ended] = _vacate(streams, item - classes)
            ended += 1
    return ended


@inlined
def _take_in_step(streams: Streams, state: State, number: int, now: int, ended: int) -> int:
    """Take out the flows in step of a class that are done by now, at least one."""
    # By rule 7 a flow ends at the first picosecond at which ``moved`` is no less than what is left,
    # which finds those that end now without a division for each.
    done = streams.work[number] + moved(streams.rate[number], now - streams.since[number])
    berth = streams.root[number]
    while berth != NO_OP and streams.left[berth] - done <= 0:  # a difference, as sums may wrap
        streams.root[number] = _without_root(streams, berth)
        streams.ended[ended] = _vacate(streams, berth)
        ended += 1
        berth = streams.root[number]
    _list_anew(streams, state, number)
    return ended


@internal
def leave(streams: Streams, state: State, berth: int) -> None:
    """Take out a flow that is interrupted, wherever it is in its class."""
    number = streams.number[berth]
    _list_anew(streams, state, number)
    if streams.place[len(streams.slot) + berth] != NO_OP:
        _unchain(streams, state, berth)
    else:
        take_out(streams, number, berth)
    _vacate(streams, berth)


@inlined
def _vacate(streams: Streams, berth: int) -> int:
    """Free a berth for the next flow, and return the op that was there."""
    number = streams.number[berth]
    max_min.leave(streams.paths, streams.solver, number)
    op: int = streams.op[berth]
    streams.op[berth] = NO_OP
    streams.after[berth] = streams.vacant[0]
    streams.vacant[0] = berth
    return op


@inlined
def solve(streams: Streams, state: State, now: int) -> None:
    """Solve the rates that change at this instant, and update when those flows end."""
    for index in range(max_min.solve(streams.paths, streams.solver)):
        _change_rate(streams, state, streams.solver.changed[index], now)
    for index in range(state.notes[FRESH]):
        berth = streams.fresh[index]
        number = streams.number[berth]
        if streams.root[number] == NO_OP and streams.loose[number] == NO_OP:
            streams.since[number] = now
            streams.rate[number] = streams.paths.rate[number]
        if streams.since[number] == now:
            fall_in_step(streams, state, berth)
        else:
            _chain(streams, state, berth, now)
    state.notes[FRESH] = 0
    for index in range(state.notes[ANEW]):
        _plan(streams, state, streams.anew[index])
    state.notes[ANEW] = 0


@inlined
def _change_rate(streams: Streams, state: State, number: int, now: int) -> None:
    """Count the work of a class up to now; from here on all its flows are in step."""
    rate = streams.rate[number]
    streams.work[number] += moved(rate, now - streams.since[number])
    streams.since[number] = now
    streams.rate[number] = streams.paths.rate[number]
    _list_anew(streams, state, number)
    while streams.loose[number] != NO_OP:
        berth = streams.loose[number]
        streams.left[berth] -= moved(rate, now - streams.begun[berth])
        _unchain(streams, state, berth)
        fall_in_step(streams, state, berth)


@inlined
def _chain(streams: Streams, state: State, berth: int, now: int) -> None:
    """Put a flow among the loose flows of its class, with an end of its own."""
    number = streams.number[berth]
    first = streams.loose[number]
    streams.loose[number] = berth
    streams.after[berth], streams.before[berth] = first, NO_OP
    if first != NO_OP:
        streams.before[first] = berth
    end = end_of(streams.left[berth], streams.rate[number], now)
    set_end(streams, state, len(streams.slot) + berth, end)


@inlined
def _unchain(streams: Streams, state: State, berth: int) -> None:
    after, before = streams.after[berth], streams.before[berth]
    if before == NO_OP:
        streams.loose[streams.number[berth]] = after
    else:
        streams.after[before] = after
    if after != NO_OP:
        streams.before[after] = before
    remove(streams, state, len(streams.slot) + berth)


@inlined
def _plan(streams: Streams, state: State, number: int) -> None:
    """Update when the first of the flows in step of a class ends."""
    streams.stale[number] = 0
    berth, end = streams.root[number], UNKNOWN_PS
    if berth != NO_OP:
        left = streams.left[berth] - streams.work[number]
        end = end_of(left, streams.rate[number], streams.since[number])
    if end < UNKNOWN_PS:
        set_end(streams, state, number, end)
    elif streams.place[number] != NO_OP:
        remove(streams, state, number)
