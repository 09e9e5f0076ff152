"""The agenda: a radix heap of ops by time, for a clock that never runs backwards.

Bucket b holds the times whose highest bit that differs from the clock is bit b - 1. The earliest
time is in the lowest occupied bucket. When the clock moves on to it, the ops of that bucket spread
over lower buckets, so that each op moves at most once for each bit. If all ops of a bucket have the
same time, as is frequent in collectives, they are taken out together in one step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, leading_zeros, trailing_zeros
from cluster_sim.engine.fast.columns import NO_OP, State
from cluster_sim.schedule.table import IntArray

BITS = 64
NOTHING = np.iinfo(np.int64).max  # time of an empty agenda


class Agenda(NamedTuple):
    """Chains of ops, one for each bucket, with the earliest and latest time of each."""

    head: IntArray
    tail: IntArray
    earliest: IntArray
    latest: IntArray
    clock: IntArray  # [occupied buckets as bits, time that the buckets are relative to]


def empty_agenda() -> Agenda:
    """Return an agenda at time 0."""
    return Agenda(
        np.empty(BITS, np.int64),
        np.empty(BITS, np.int64),
        np.empty(BITS, np.int64),
        np.empty(BITS, np.int64),
        np.zeros(2, np.int64),
    )


@inlined
def push(agenda: Agenda, state: State, op: int) -> None:
    """Add an op at the time in its ``end``, which must not be before the clock."""
    time = state.end[op]
    bucket = BITS - leading_zeros(time ^ agenda.clock[1])
    if (agenda.clock[0] >> bucket) & 1:
        state.next[agenda.tail[bucket]] = op
        agenda.earliest[bucket] = min(agenda.earliest[bucket], time)
        agenda.latest[bucket] = max(agenda.latest[bucket], time)
    else:
        agenda.clock[0] |= 1 << bucket
        agenda.head[bucket] = op
        agenda.earliest[bucket] = time
        agenda.latest[bucket] = time
    agenda.tail[bucket] = op
    state.next[op] = NO_OP


@inlined
def next_time(agenda: Agenda) -> int:
    """Earliest time of any op in the agenda [ps]."""
    if agenda.clock[0] == 0:
        return NOTHING
    earliest: int = agenda.earliest[trailing_zeros(agenda.clock[0])]
    return earliest


@inlined
def take_instant(agenda: Agenda, state: State, now: int) -> int:
    """Move the clock to ``now``, the earliest time, and take out the chain of ops at that time."""
    bucket = trailing_zeros(agenda.clock[0])
    agenda.clock[0] &= agenda.clock[0] - 1
    agenda.clock[1] = now
    op: int = agenda.head[bucket]
    if agenda.latest[bucket] == now:
        return op
    first, last = NO_OP, NO_OP
    while op != NO_OP:
        following = state.next[op]
        if state.end[op] != now:
            push(agenda, state, op)
        else:
            if first == NO_OP:
                first = op
            else:
                state.next[last] = op
            last = op
        op = following
    state.next[last] = NO_OP
    return first


@inlined
def take_all(agenda: Agenda, state: State) -> int:
    """Take all ops out of the agenda, as one chain."""
    first = NO_OP
    while agenda.clock[0]:
        bucket = trailing_zeros(agenda.clock[0])
        agenda.clock[0] &= agenda.clock[0] - 1
        op = agenda.head[bucket]
        while op != NO_OP:
            following = state.next[op]
            state.next[op] = first
            first = op
            op = following
    return first
