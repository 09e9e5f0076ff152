"""Flows in flight: the work that is left of each, and the time at which the next one ends (rule 7).

Rates change at many instants, so that updating every flow at each change would be slow. Flows that
agree in path, weights, cap and slot form a class with one rate, whose work is counted once.
"""

from __future__ import annotations

from cluster_sim.engine.compiler.jit import inlined, internal
from cluster_sim.engine.fast.columns import FRESH, NO_OP, State
from cluster_sim.engine.fast.ends import (
    MICROBYTES,
    end_of,
    list_due,
    moved,
    remove,
    set_end,
)
from cluster_sim.engine.fast.in_flight import Streams
from cluster_sim.engine.fast.in_step import (
    fall_in_step,
    first_in_step,
    take_first,
    take_out,
)
from cluster_sim.engine.shared_rates import components
from cluster_sim.engine.shared_rates.groups import touch_group
from cluster_sim.engine.times import UNKNOWN_PS


@internal
def enter(streams: Streams, state: State, op: int, number: int, size: int, now: int) -> None:
    """Start a flow; its rate is solved at the end of this instant."""
    berth = streams.vacant[0]
    if berth == NO_OP:
        berth = streams.vacant[1]
        streams.vacant[1] += 1
        streams.place[len(streams.groups.small) + berth] = NO_OP
    else:
        streams.vacant[0] = streams.after[berth]
    streams.op[berth], streams.number[berth] = op, number
    streams.left[berth], streams.begun[berth] = size * MICROBYTES, now
    components.join(
        streams.paths, streams.seats, streams.filling, streams.sums, streams.groups, number
    )
    streams.fresh[state.notes[FRESH]] = berth
    state.notes[FRESH] += 1
    state.child[op] = berth
    state.end[op] = UNKNOWN_PS


@internal
def take_ended(streams: Streams, state: State, now: int) -> int:
    """Take out the flows that end at this instant, and list their ops in ``ended``.

    The groups keep their places in the heap, which they get anew when this instant is solved.

    Returns
    -------
    int
        Number of these flows.
    """
    ended, groups = 0, streams.groups
    for index in range(list_due(streams, state, now)):
        item = streams.due[index]
        if item >= len(groups.small):
            berth = item - len(groups.small)
            _unchain(streams, state, berth)
            streams.ended[ended] = _vacate(streams, berth)
            ended += 1
            continue
        for number in range(groups.first[item], groups.first[item + 1]):
            if streams.end[number] == now:
                ended = _take_in_step(streams, number, now, ended)
    return ended


@inlined
def _take_in_step(streams: Streams, number: int, now: int, ended: int) -> int:
    """Take out the flows in step of a class that are done by now, at least one.

    By rule 7 a flow ends at the first picosecond at which ``moved`` is no less than what is left.
    So this test finds those that end now without a division for each.
    """
    done = streams.work[number] + moved(streams.rate[number], now - streams.since[number])
    berth = first_in_step(streams, number)
    while berth != NO_OP and streams.left[berth] - done <= 0:  # a difference, as sums may wrap
        take_first(streams, number, berth)
        streams.ended[ended] = _vacate(streams, berth)
        ended += 1
        berth = first_in_step(streams, number)
    streams.stale[number] = 1
    return ended


@internal
def leave(streams: Streams, state: State, berth: int) -> None:
    """Take out a flow that is interrupted, wherever it is in its class."""
    number = streams.number[berth]
    streams.stale[number] = 1
    if streams.place[len(streams.groups.small) + berth] != NO_OP:
        _unchain(streams, state, berth)
    else:
        take_out(streams, number, berth)
    _vacate(streams, berth)


@inlined
def _vacate(streams: Streams, berth: int) -> int:
    """Free a berth for the next flow, and return the op that was there."""
    number = streams.number[berth]
    components.leave(
        streams.paths, streams.seats, streams.filling, streams.sums, streams.groups, number
    )
    op: int = streams.op[berth]
    streams.op[berth] = NO_OP
    streams.after[berth] = streams.vacant[0]
    streams.vacant[0] = berth
    return op


@inlined
def solve(streams: Streams, state: State, now: int) -> None:
    """Solve the rates that change at this instant, and update when those flows end."""
    groups, filling = streams.groups, streams.filling
    changed = components.solve(streams.paths, streams.seats, filling, streams.sums, groups)
    for index in range(changed):
        _change_rate(streams, state, filling.changed[index], now)
    for index in range(state.notes[FRESH]):
        berth = streams.fresh[index]
        number = streams.number[berth]
        if first_in_step(streams, number) == NO_OP and streams.loose[number] == NO_OP:
            streams.since[number] = now
            streams.rate[number] = streams.paths.rate[number]
        if streams.since[number] == now:
            fall_in_step(streams, berth)
        else:
            _chain(streams, state, berth, now)
    state.notes[FRESH] = 0
    for index in range(groups.length[0]):
        groups.listed[groups.touched[index]] = 0
        _plan(streams, state, groups.touched[index])
    groups.length[0] = 0


@inlined
def _change_rate(streams: Streams, state: State, number: int, now: int) -> None:
    """Count the work of a class up to now; from here on all its flows are in step."""
    rate = streams.rate[number]
    streams.work[number] += moved(rate, now - streams.since[number])
    streams.since[number] = now
    streams.rate[number] = streams.paths.rate[number]
    streams.stale[number] = 1
    touch_group(streams.groups, streams.groups.of_class[number])
    while streams.loose[number] != NO_OP:
        berth = streams.loose[number]
        streams.left[berth] -= moved(rate, now - streams.begun[berth])
        _unchain(streams, state, berth)
        fall_in_step(streams, berth)


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
    set_end(streams, state, len(streams.groups.small) + berth, end)


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
    remove(streams, state, len(streams.groups.small) + berth)


@inlined
def _plan(streams: Streams, state: State, group: int) -> None:
    """Update when the first of the flows in step of a group ends."""
    earliest = UNKNOWN_PS
    for number in range(streams.groups.first[group], streams.groups.first[group + 1]):
        if streams.stale[number]:
            streams.stale[number] = 0
            streams.end[number] = _end_in_step(streams, number)
        earliest = min(earliest, streams.end[number])
    if earliest < UNKNOWN_PS:
        set_end(streams, state, group, earliest)
    elif streams.place[group] != NO_OP:
        remove(streams, state, group)


@inlined
def _end_in_step(streams: Streams, number: int) -> int:
    """Instant at which the first of the flows in step of a class ends, UNKNOWN_PS for none [ps]."""
    berth = first_in_step(streams, number)
    if berth == NO_OP:
        return UNKNOWN_PS
    left = streams.left[berth] - streams.work[number]
    return end_of(left, streams.rate[number], streams.since[number])
