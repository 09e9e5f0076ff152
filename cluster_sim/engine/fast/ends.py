"""Ends of flows: the arithmetic of rule 7 in 64 bits, and the heap of the next ends."""

from __future__ import annotations

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, internal
from cluster_sim.engine.fast.columns import NO_OP, STREAMS, State
from cluster_sim.engine.fast.in_flight import Streams
from cluster_sim.engine.times import UNKNOWN_PS
from cluster_sim.schedule.table import HORIZON_PS

MICROBYTES = 10**6
"""Microbytes in a byte."""
PER_MICROBYTE = 10**6
"""Rate [B/s] times duration [ps] that moves one microbyte."""
NEARLY_EXACT = 2.0**50
"""Durations [ps] up to which two roundings of a float are less than 1 ps."""


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


@inlined
def end_of(left: int, rate: int, since: int) -> int:
    """Instant at which work is done [ps]; UNKNOWN_PS without a rate or past the horizon."""
    duration = UNKNOWN_PS if rate == 0 else time_for(left, rate)
    return UNKNOWN_PS if duration > HORIZON_PS - since else since + duration


@inlined
def list_due(streams: Streams, state: State, now: int) -> int:
    """List the items of the heap that end at this instant, the earliest; return their number.

    Below an item that ends later, all do.
    """
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
    """Set the end of an item of the heap: of a group's next flow, or of a loose flow."""
    place = streams.place[item]
    if place == NO_OP:
        place = state.notes[STREAMS]
        state.notes[STREAMS] += 1
    _settle(streams, state, item, place, end)


@internal
def remove(streams: Streams, state: State, item: int) -> None:
    """Take an item, which is a group or a loose flow, out of the heap of ends."""
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
