"""Flows in flight: the work that is left of each, and the time at which the next one ends (rule 7).

Rates change at many instants, so that updating every flow at each change would be slow. Flows that
agree in path, weights, cap and slot form a class with one rate, whose work is counted once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, internal
from cluster_sim.engine.fast.columns import FRESH, NO_OP, STREAMS, State
from cluster_sim.engine.shared_rates import components
from cluster_sim.engine.shared_rates.filling import Filling, Paths, Seats
from cluster_sim.engine.shared_rates.sums import Sums, empty_sums
from cluster_sim.engine.times import UNKNOWN_PS
from cluster_sim.schedule.table import HORIZON_PS, IntArray

MICROBYTES = 10**6
"""Microbytes in a byte."""
PER_MICROBYTE = 10**6
"""Rate [B/s] times duration [ps] that moves one microbyte."""
NEARLY_EXACT = 2.0**50
"""Durations [ps] up to which two roundings of a float are less than 1 ps."""


class Streams(NamedTuple):
    """The flows in flight, each in a berth, and the classes for which rates are solved.

    All flows of a class have one rate. Flows that saw the same rate changes since they were last
    brought up to date are *in step*: each change takes the same work off all of them. So a class
    counts that work once, and only its flow with the least work left can end next. A flow that
    starts without changing the rate of its class is *loose* until the next change, which is the
    first that brings it up to date (rule 7). The berth of a flow is in ``State.child`` of its op.
    """

    # One element for each class.
    slot: IntArray  # faulty resource whose speed scales the class's cap, -1 for none
    work: IntArray  # microbytes that a flow in step has moved up to ``since``
    since: IntArray  # last change of the rate [ps]
    rate: IntArray  # rate from then on [B/s]
    root: IntArray  # root of the heap of flows in step, by work left; -1 for none
    loose: IntArray  # first of the chain of loose flows, -1 for none
    # One element for each berth.
    op: IntArray  # op of the flow in a berth, -1 for none
    number: IntArray  # class of the flow
    left: IntArray  # microbytes left at ``begun``; for a flow in step, that plus ``work`` then
    begun: IntArray  # time at which the flow was brought up to date [ps]
    child: IntArray  # first child in the heap of the class
    after: IntArray  # next sibling in the heap, or next flow in a chain
    before: IntArray  # previous flow in the chain of loose flows
    # The order in which flows end.
    vacant: IntArray  # [first of the chain of vacant berths, berths ever used]
    heap: IntArray  # heap by next end: classes, and loose flows as number of classes + berth
    ends: IntArray  # end of each item of the heap [ps], so that sifting reads nothing else
    place: IntArray  # place of each item in the heap, -1 for none
    fresh: IntArray  # berths of flows that started at this instant
    # Inputs and state of the solver of rates.
    nominal_cap: IntArray
    nominal_capacity: IntArray
    paths: Paths
    seats: Seats
    filling: Filling
    sums: Sums


def empty_streams(
    berths: int, slot: IntArray, paths: Paths, seats: Seats, filling: Filling
) -> Streams:
    """Return tables with room for ``berths`` flows in flight, of which there are none yet."""
    classes = len(slot)
    return Streams(
        slot=slot,
        work=np.zeros(classes, np.int64),
        since=np.zeros(classes, np.int64),
        rate=np.zeros(classes, np.int64),
        root=np.full(classes, NO_OP, np.int32),
        loose=np.full(classes, NO_OP, np.int32),
        op=np.empty(berths, np.int32),
        number=np.empty(berths, np.int32),
        left=np.empty(berths, np.int64),
        begun=np.empty(berths, np.int64),
        child=np.empty(berths, np.int32),
        after=np.empty(berths, np.int32),
        before=np.empty(berths, np.int32),
        vacant=np.array([NO_OP, 0], np.int64),
        heap=np.empty(classes + berths, np.int32),
        ends=np.empty(classes + berths, np.int64),
        place=np.full(classes + berths, NO_OP, np.int32),
        fresh=np.empty(berths, np.int32),
        nominal_cap=paths.cap.copy(),
        nominal_capacity=paths.capacity.copy(),
        paths=paths,
        seats=seats,
        filling=filling,
        sums=empty_sums(paths, filling),
    )


@inlined
def moved(rate: int, duration: int) -> int:
    """Work ``rate · duration // PER_MICROBYTE`` [microbytes], computed without passing 64 bits."""
    whole, part = duration // PER_MICROBYTE, duration % PER_MICROBYTE
    high, low = rate // PER_MICROBYTE, rate % PER_MICROBYTE
    return rate * whole + high * part + low * part // PER_MICROBYTE


@inlined
def time_for(left: int, rate: int) -> int:
    """``ceil(left · PER_MICROBYTE / rate)`` for rates under 2⁵³, UNKNOWN_PS past the horizon [ps].

    For short times, floating point gives the result to within 1 ps. The remainder corrects it: it
    is exact although the products pass 64 bits, as their difference does not. Longer times are
    divided three digits at a time.
    """
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
    whole, part = left // rate, left % rate
    if whole >= HORIZON_PS // PER_MICROBYTE:
        return UNKNOWN_PS
    thousands, part = part * 1000 // rate, part * 1000 % rate
    ones, part = part * 1000 // rate, part * 1000 % rate
    return whole * PER_MICROBYTE + thousands * 1000 + ones + (part > 0)


@internal
def enter(streams: Streams, state: State, op: int, number: int, size: int, now: int) -> None:
    """Start a flow; its rate is solved at the end of this instant."""
    berth = streams.vacant[0]
    if berth == NO_OP:
        berth = streams.vacant[1]
        streams.vacant[1] += 1
    else:
        streams.vacant[0] = streams.after[berth]
    streams.op[berth], streams.number[berth] = op, number
    streams.left[berth], streams.begun[berth] = size * MICROBYTES, now
    components.join(streams.paths, streams.seats, streams.filling, streams.sums, number)
    streams.fresh[state.notes[FRESH]] = berth
    state.notes[FRESH] += 1
    state.child[op] = berth
    state.end[op] = UNKNOWN_PS


@internal
def leave_next(streams: Streams, state: State) -> int:
    """Take out the flow that ends next, and return its op."""
    item, classes = streams.heap[0], len(streams.root)
    if item >= classes:
        berth = item - classes
        _unchain(streams, state, berth)
    else:
        berth = streams.root[item]
        streams.root[item] = _without_root(streams, berth)
        _plan(streams, state, item)
    return _vacate(streams, berth)


@internal
def leave(streams: Streams, state: State, berth: int) -> None:
    """Take out a flow that is interrupted, wherever it is in its class."""
    number, classes = streams.number[berth], len(streams.root)
    if streams.place[classes + berth] != NO_OP:
        _unchain(streams, state, berth)
    else:
        kept, item = NO_OP, streams.root[number]
        while item != NO_OP:
            rest = _without_root(streams, item)
            if item != berth:
                kept = _meld(streams, kept, item)
            item = rest
        streams.root[number] = kept
        _plan(streams, state, number)
    _vacate(streams, berth)


@inlined
def _vacate(streams: Streams, berth: int) -> int:
    """Free a berth for the next flow, and return the op that was there."""
    number = streams.number[berth]
    components.leave(streams.paths, streams.seats, streams.filling, streams.sums, number)
    op: int = streams.op[berth]
    streams.op[berth] = NO_OP
    streams.after[berth] = streams.vacant[0]
    streams.vacant[0] = berth
    return op


@inlined
def solve(streams: Streams, state: State, now: int) -> None:
    """Solve the rates that change at this instant, and update when those flows end."""
    changed = components.solve(streams.paths, streams.seats, streams.filling, streams.sums)
    for index in range(changed):
        _change_rate(streams, state, streams.filling.changed[index], now)
    for index in range(state.notes[FRESH]):
        berth = streams.fresh[index]
        number = streams.number[berth]
        if streams.root[number] == NO_OP and streams.loose[number] == NO_OP:
            streams.since[number] = now
            streams.rate[number] = streams.paths.rate[number]
        if streams.since[number] == now:
            _fall_in_step(streams, berth)
            _plan(streams, state, number)
        else:
            _chain(streams, state, berth, now)
    state.notes[FRESH] = 0
    for index in range(changed):
        _plan(streams, state, streams.filling.changed[index])


@inlined
def _change_rate(streams: Streams, state: State, number: int, now: int) -> None:
    """Count the work of a class up to now; from here on all its flows are in step."""
    rate = streams.rate[number]
    streams.work[number] += moved(rate, now - streams.since[number])
    streams.since[number] = now
    streams.rate[number] = streams.paths.rate[number]
    while streams.loose[number] != NO_OP:
        berth = streams.loose[number]
        streams.left[berth] -= moved(rate, now - streams.begun[berth])
        _unchain(streams, state, berth)
        _fall_in_step(streams, berth)


@inlined
def _fall_in_step(streams: Streams, berth: int) -> None:
    """Put a flow that is up to date among the flows in step of its class."""
    number = streams.number[berth]
    streams.left[berth] += streams.work[number]  # may pass 64 bits: only differences are used
    streams.child[berth] = NO_OP
    streams.root[number] = _meld(streams, streams.root[number], berth)


@inlined
def _chain(streams: Streams, state: State, berth: int, now: int) -> None:
    """Put a flow among the loose flows of its class, with an end of its own."""
    number, classes = streams.number[berth], len(streams.root)
    first = streams.loose[number]
    streams.loose[number] = berth
    streams.after[berth], streams.before[berth] = first, NO_OP
    if first != NO_OP:
        streams.before[first] = berth
    rate = streams.rate[number]
    _set_end(streams, state, classes + berth, _end(streams.left[berth], rate, now))


@inlined
def _unchain(streams: Streams, state: State, berth: int) -> None:
    """Take a flow out of the loose flows of its class."""
    after, before = streams.after[berth], streams.before[berth]
    if before == NO_OP:
        streams.loose[streams.number[berth]] = after
    else:
        streams.after[before] = after
    if after != NO_OP:
        streams.before[after] = before
    _remove(streams, state, len(streams.root) + berth)


@inlined
def _plan(streams: Streams, state: State, number: int) -> None:
    """Update when the first of the flows in step of a class ends."""
    berth = streams.root[number]
    if berth == NO_OP:
        if streams.place[number] != NO_OP:
            _remove(streams, state, number)
        return
    left = streams.left[berth] - streams.work[number]
    _set_end(streams, state, number, _end(left, streams.rate[number], streams.since[number]))


@inlined
def _end(left: int, rate: int, since: int) -> int:
    """Instant at which work is done [ps]; UNKNOWN_PS without a rate or past the horizon."""
    duration = UNKNOWN_PS if rate == 0 else time_for(left, rate)
    return UNKNOWN_PS if duration > HORIZON_PS - since else since + duration


@inlined
def _meld(streams: Streams, one: int, other: int) -> int:
    """Merge two heaps of a class, whose siblings are linked by ``after``; return the root."""
    if one == NO_OP:
        return other
    if other == NO_OP:
        return one
    if streams.left[other] - streams.left[one] < 0:
        one, other = other, one
    streams.after[other] = streams.child[one]
    streams.child[one] = other
    return one


@internal
def _without_root(streams: Streams, root: int) -> int:
    """Merge the children of a root to one heap: by pairs, then the pairs from last to first."""
    pairs = NO_OP
    child = streams.child[root]
    streams.child[root] = NO_OP
    while child != NO_OP:
        other = streams.after[child]
        following = NO_OP
        if other != NO_OP:
            following = streams.after[other]
            child = _meld(streams, child, other)
        streams.after[child] = pairs
        pairs = child
        child = following
    heap = NO_OP
    while pairs != NO_OP:
        following = streams.after[pairs]
        heap = _meld(streams, heap, pairs)
        pairs = following
    return heap


@inlined
def _set_end(streams: Streams, state: State, item: int, end: int) -> None:
    """Set the end of an item of the heap: of a class's next flow, or of a loose flow."""
    place = streams.place[item]
    if place == NO_OP:
        place = state.notes[STREAMS]
        state.notes[STREAMS] += 1
    _settle(streams, state, item, place, end)


@internal
def _remove(streams: Streams, state: State, item: int) -> None:
    """Take an item, which is a class or a loose flow, out of the heap of ends."""
    place = streams.place[item]
    streams.place[item] = NO_OP
    state.notes[STREAMS] -= 1
    last, end = streams.heap[state.notes[STREAMS]], streams.ends[state.notes[STREAMS]]
    if last != item:
        _settle(streams, state, last, place, end)


@internal
def _settle(streams: Streams, state: State, item: int, place: int, end: int) -> None:
    """Move an item up or down in the heap from this place to where its end belongs."""
    heap, ends = streams.heap, streams.ends
    while place:
        parent = (place - 1) >> 1
        if ends[parent] <= end:
            break
        heap[place], ends[place] = heap[parent], ends[parent]
        streams.place[heap[place]] = place
        place = parent
    while True:
        child = 2 * place + 1
        if child >= state.notes[STREAMS]:
            break
        if child + 1 < state.notes[STREAMS] and ends[child + 1] < ends[child]:
            child += 1
        if ends[child] >= end:
            break
        heap[place], ends[place] = heap[child], ends[child]
        streams.place[heap[place]] = place
        place = child
    heap[place], ends[place] = item, end
    streams.place[item] = place
