"""Flows in flight: what is left of each, and a heap of when they end at their rates (rule 7)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine import rates
from cluster_sim.engine.fast.columns import FRESH, STREAMS, State
from cluster_sim.engine.jit import inlined, internal
from cluster_sim.engine.rates import Filling, Paths, Seats
from cluster_sim.engine.times import UNKNOWN_PS
from cluster_sim.schedule.table import HORIZON_PS, IntArray

MICROBYTES = 10**6
"""In a byte."""
PER_MICROBYTE = 10**6
"""Rate [B/s] times duration [ps] that moves one microbyte."""
NEARLY_EXACT = 2.0**50
"""Durations [ps] up to which two roundings of a float are less than 1 ps."""


class Streams(NamedTuple):
    """The flows of a schedule, by row, and the classes that their rates are solved for."""

    op: IntArray
    number: IntArray  # class
    slot: IntArray  # of each class: faulty resource whose speed scales its cap, or -1
    size: IntArray  # [B]
    left: IntArray  # microbytes, as of …
    since: IntArray  # … [ps]
    rate: IntArray  # [B/s]
    member: IntArray  # flows in flight, by class: member[first[c]:first[c] + paths.members[c]]
    first: IntArray
    seat: IntArray  # place of a flow among them
    heap: IntArray  # flows in flight, by …
    ends: IntArray  # … when each ends [ps], kept beside them so that sifting reads nothing else
    place: IntArray  # of a flow in the heap
    fresh: IntArray  # flows that started at this instant
    nominal_cap: IntArray
    nominal_capacity: IntArray
    paths: Paths
    seats: Seats
    filling: Filling


@inlined
def moved(rate: int, duration: int) -> int:
    """``rate · duration // PER_MICROBYTE`` [microbytes] without passing 64 bits."""
    whole, part = duration // PER_MICROBYTE, duration % PER_MICROBYTE
    high, low = rate // PER_MICROBYTE, rate % PER_MICROBYTE
    return rate * whole + high * part + low * part // PER_MICROBYTE


@inlined
def time_for(left: int, rate: int) -> int:
    """``ceil(left · PER_MICROBYTE / rate)`` [ps], for rates under 2⁵³; past the horizon UNKNOWN_PS.

    Floating point finds short times to within 1 ps, and the remainder, which is exact although the
    products pass 64 bits, says by how much it is off. Longer ones are divided digit by digit.
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
def enter(streams: Streams, state: State, flow: int, now: int) -> None:
    """Start a flow; its rate comes with the solve at the end of this instant."""
    number = streams.number[flow]
    streams.left[flow] = streams.size[flow] * MICROBYTES
    streams.since[flow] = now
    streams.rate[flow] = 0
    seat = streams.first[number] + streams.paths.members[number]
    streams.member[seat] = flow
    streams.seat[flow] = seat
    rates.join(streams.paths, streams.seats, streams.filling, number)
    streams.fresh[state.notes[FRESH]] = flow
    state.notes[FRESH] += 1
    state.end[streams.op[flow]] = UNKNOWN_PS
    place = state.notes[STREAMS]
    state.notes[STREAMS] += 1
    _settle(streams, state, flow, place, UNKNOWN_PS)


@internal
def leave(streams: Streams, state: State, flow: int) -> None:
    """Take a flow out, done or lost."""
    number = streams.number[flow]
    rates.leave(streams.paths, streams.seats, streams.filling, number)
    seat, last_seat = streams.seat[flow], streams.first[number] + streams.paths.members[number]
    streams.member[seat] = streams.member[last_seat]
    streams.seat[streams.member[seat]] = seat
    state.notes[STREAMS] -= 1
    last, end = streams.heap[state.notes[STREAMS]], streams.ends[state.notes[STREAMS]]
    if last != flow:
        _settle(streams, state, last, streams.place[flow], end)


@internal
def solve(streams: Streams, state: State, now: int) -> None:
    """Solve the rates of what changed at this instant, and plan anew when those flows end."""
    changed = rates.solve(streams.paths, streams.seats, streams.filling)
    for index in range(changed):
        number = streams.filling.changed[index]
        first = streams.first[number]
        for seat in range(first, first + streams.paths.members[number]):
            _change_rate(streams, state, streams.member[seat], now)
    for index in range(state.notes[FRESH]):
        _change_rate(streams, state, streams.fresh[index], now)
    state.notes[FRESH] = 0


@internal
def _change_rate(streams: Streams, state: State, flow: int, now: int) -> None:
    streams.left[flow] -= moved(streams.rate[flow], now - streams.since[flow])
    streams.since[flow] = now
    rate = streams.paths.rate[streams.number[flow]]
    streams.rate[flow] = rate
    duration = UNKNOWN_PS if rate == 0 else time_for(streams.left[flow], rate)
    end = UNKNOWN_PS if duration > HORIZON_PS - now else now + duration
    state.end[streams.op[flow]] = end
    _settle(streams, state, flow, streams.place[flow], end)


@inlined
def _settle(streams: Streams, state: State, flow: int, place: int, end: int) -> None:
    """Move a flow up or down in the heap from this place to where its end belongs."""
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
    heap[place], ends[place] = flow, end
    streams.place[flow] = place
