"""Shared rates (rule 7): max-min fair in whole bytes a second, solved where something changed.

The level of all flows rises together. A resource is full at the level that its spare capacity
divided by the weight of its flows allows, rounded down; a flow is full at its own cap. The lowest
such level is taken, everything that is full at exactly this level is settled at once, and the rest
goes on rising. Levels only rise, and each is reached by the same resources in whatever order they
are examined. So the rates are the same to the bit if equal flows are counted as one class, and if
only what a change may reach is solved.

The level rises only on the resources on which something changed. Every other class is *held* at the
rate that it had, and is looked at again where that rate may be wrong. When a resource that it
crosses is full below that rate, the class falls to that level. When the resource that held it back
is full no longer at its level, and neither its cap nor another resource holds it there, it rises
with the others. A class whose rate changes disturbs the other resources that it crosses, and so on.

Whether a resource is full at a level depends on nothing but the rates below that level and on who
has none below it. So rates are final from the lowest up, whatever the order in which resources are
looked at, and the result has the bits of a solve from the start. A resource waits in the heap under
a bound, the lowest level at which it may be full. The bound takes one more than its rate from each
held class, for one that is settled at the very level at which the resource is full has no more
than the others although it could have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.compiler.jit import inlined, internal, lean
from cluster_sim.engine.shared_rates.tables import (
    CHANGED,
    FAR,
    HORIZON,
    LISTED,
    NEW,
    NOWHERE,
    QUEUED,
    UNLIMITED,
    VISITED,
    Paths,
    Solver,
    empty_solver,
    paths_of,
    sift,
)
from cluster_sim.schedule.table import LARGEST_CAPACITY, IntArray

# Flows come and go, and capacities and caps change.


@inlined
def touch(solver: Solver, resource: int) -> None:
    """Note that the flows on a resource, or its capacity, changed."""
    if not solver.listed[resource]:
        solver.listed[resource] = 1
        solver.resources[solver.sizes[LISTED]] = resource
        solver.sizes[LISTED] += 1


@inlined
def set_capacity(paths: Paths, solver: Solver, resource: int, capacity: int) -> None:
    """Change the rate that a resource divides."""
    solver.spare[resource] += capacity - paths.capacity[resource]
    paths.capacity[resource] = capacity
    touch(solver, resource)


@inlined
def set_cap(paths: Paths, solver: Solver, number: int, cap: int) -> None:
    """Change the rate cap of a class, which rises anew."""
    paths.cap[number] = cap
    if paths.members[number]:
        _let_rise(solver, number)
        for share in range(paths.ptr[number], paths.ptr[number + 1]):
            touch(solver, paths.resource[share])


@inlined
def _let_rise(solver: Solver, number: int) -> None:
    """List a class among those that rise from zero in the next solve."""
    if not solver.rising[number]:
        solver.rising[number] = 1
        solver.new[solver.sizes[NEW]] = number
        solver.sizes[NEW] += 1


@inlined
def join(paths: Paths, solver: Solver, number: int) -> None:
    """Add a flow to a class, and have the rates that this changes solved."""
    paths.members[number] += 1
    _count_in(paths, solver, number, 1)


@internal
def _count_in(paths: Paths, solver: Solver, number: int, flows: int) -> None:
    """Count new flows at their resources; the first make the class take part there."""
    first = paths.members[number] == flows
    if first:
        _let_rise(solver, number)
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource, weight = paths.resource[share], paths.weight[share]
        touch(solver, resource)
        if first:
            seat = paths.first[resource] + paths.taken[resource]
            paths.share[seat] = share
            paths.seat[share] = seat
            paths.taken[resource] += 1
        seat = paths.seat[share]
        solver.rate[seat] = paths.rate[number]
        solver.seat_weight[seat] = weight * paths.members[number]
        _count(solver, resource, weight * flows, paths.rate[number])


@internal
def leave(paths: Paths, solver: Solver, number: int) -> None:
    """Remove a flow from a class, and have the rates that this changes solved."""
    paths.members[number] -= 1
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource, weight, seat = paths.resource[share], paths.weight[share], paths.seat[share]
        touch(solver, resource)
        solver.seat_weight[seat] -= weight
        _count(solver, resource, -weight, paths.rate[number])
        if paths.members[number] == 0:  # the last share of the list takes the free seat
            paths.taken[resource] -= 1
            last = paths.first[resource] + paths.taken[resource]
            paths.share[seat] = paths.share[last]
            paths.seat[paths.share[seat]] = seat
            solver.rate[seat] = solver.rate[last]
            solver.seat_weight[seat] = solver.seat_weight[last]


@inlined
def _count(solver: Solver, resource: int, weight: int, rate: int) -> None:
    """Count flows of this weight and rate at a resource, or out again if the weight is negative."""
    solver.whole[resource] += weight
    solver.spare[resource] -= weight * rate
    if solver.level[resource] == rate:
        _count_top(solver, resource, weight)


@inlined
def _count_top(solver: Solver, resource: int, weight: int) -> None:
    """Count flows among those at the level of a full resource. Without any it limits none."""
    solver.top[resource] += weight
    if solver.top[resource] == 0:
        solver.level[resource] = UNLIMITED


@inlined
def solve(paths: Paths, solver: Solver) -> int:
    """Solve the rates that a change may reach; returns the number of ``solver.changed`` classes."""
    solver.sizes[CHANGED] = 0
    if solver.sizes[LISTED]:
        _update(paths, solver)
    return int(solver.sizes[CHANGED])


@inlined
def _change(paths: Paths, solver: Solver, number: int, level: int) -> None:
    if paths.rate[number] != level:
        paths.rate[number] = level
        solver.changed[solver.sizes[CHANGED]] = number
        solver.sizes[CHANGED] += 1


@internal
def _update(paths: Paths, solver: Solver) -> None:
    """Solve the new classes, and whatever else the touched resources change."""
    solver.sizes[HORIZON] = 0
    _begin(paths, solver)
    last, level = len(solver.full) - 1, 0
    while solver.sizes[QUEUED] or _look_far(paths, solver, level):
        level = solver.key[0]
        full, freed = _judge(paths, solver, level)
        for index in range(full):
            item = solver.full[index]
            if item >= len(paths.capacity):
                if solver.rising[item - len(paths.capacity)]:
                    _settle(paths, solver, item - len(paths.capacity), level)
            else:
                _settle_all(paths, solver, item, level)
        for index in range(freed):
            _release(paths, solver, solver.full[last - index], level)
    for index in range(solver.sizes[LISTED]):
        solver.listed[solver.resources[index]] = 0
    solver.sizes[LISTED] = 0
    solver.sizes[NEW] = 0


@inlined
def _begin(paths: Paths, solver: Solver) -> None:
    """Let the new classes rise from zero, and look at every touched resource."""
    for index in range(solver.sizes[NEW]):
        number = solver.new[index]
        if paths.members[number] == 0:  # all have left since
            solver.rising[number] = 0
            continue
        for share in range(paths.ptr[number], paths.ptr[number + 1]):
            resource = paths.resource[share]
            weight = paths.members[number] * paths.weight[share]
            _count(solver, resource, -weight, paths.rate[number])
            solver.whole[resource] += weight
            solver.weight[resource] += weight
            solver.rate[paths.seat[share]] = UNLIMITED
        _queue_cap(paths, solver, number)
    for index in range(solver.sizes[LISTED]):
        resource = solver.resources[index]
        _queue(solver, resource, _bound(solver, resource, 0))


@inlined
def _queue_cap(paths: Paths, solver: Solver, number: int) -> None:
    """Have a rising class settled at its cap."""
    if paths.cap[number] < UNLIMITED:
        _queue(solver, len(paths.capacity) + number, paths.cap[number])


@inlined
def _bound(solver: Solver, resource: int, level: int) -> int:
    """Lowest level, from this one on, at which a resource may be full, or was full before."""
    top, rising = solver.top[resource], solver.weight[resource]
    room = solver.spare[resource] - (solver.whole[resource] - rising - top)
    if top + rising == 0:
        return UNLIMITED if room >= 0 else level
    if top == 0:
        return level if room < 0 else max(level, room // rising)
    room += top * solver.level[resource]
    reached = 0 if room < 0 else room // (top + rising)
    lowest: int = max(level, min(reached, solver.level[resource]))
    return lowest


@inlined
def _judge(paths: Paths, solver: Solver, level: int) -> tuple[int, int]:
    """Take what is due at a level off the heap: how many are full, first, and are freed, last."""
    full, freed = 0, 0
    while solver.sizes[QUEUED] and solver.key[0] == level:
        item = solver.item[0]
        _take(solver)
        if item >= len(paths.capacity):
            solver.full[full] = item
            full += 1
            continue
        reached = _bound(solver, item, level)
        if reached == level:
            reached = _next_full(paths, solver, item, level)
            if reached == level:
                solver.full[full] = item
                full += 1
                continue
            if solver.level[item] == level:
                solver.level[item], solver.top[item] = UNLIMITED, 0
                freed += 1
                solver.full[len(solver.full) - freed] = item
            reached = min(reached, solver.level[item])
        if reached < UNLIMITED:
            _queue(solver, item, reached)
    return full, freed


@internal
def _next_full(paths: Paths, solver: Solver, resource: int, level: int) -> int:
    """Level at which a resource is full, if it is so at this one; else a bound above it."""
    spare, rising = paths.capacity[resource], 0
    first = paths.first[resource]
    solver.sizes[VISITED] += paths.taken[resource]
    for seat in range(first, first + paths.taken[resource]):
        if solver.rate[seat] >= level:
            rising += solver.seat_weight[seat]
        else:
            spare -= solver.seat_weight[seat] * solver.rate[seat]
    if rising == 0:
        return UNLIMITED
    reached = spare // rising
    if reached == level:
        solver.level[resource], solver.top[resource] = level, rising
    return int(reached)


@inlined
def _settle_all(paths: Paths, solver: Solver, resource: int, level: int) -> None:
    """Settle whatever is not below the level of a full resource."""
    first = paths.first[resource]
    for seat in range(first, first + paths.taken[resource]):
        if solver.rate[seat] > level:
            number = paths.owner[paths.share[seat]]
            if solver.rising[number]:
                _settle(paths, solver, number, level)
            else:
                _lower(paths, solver, number, level)


@internal
def _settle(paths: Paths, solver: Solver, number: int, level: int) -> None:
    """Give a rising class its rate. Its resources are in the heap, under bounds that still hold."""
    solver.rising[number] = 0
    _change(paths, solver, number, level)
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource = paths.resource[share]
        weight = paths.members[number] * paths.weight[share]
        solver.weight[resource] -= weight
        solver.spare[resource] -= weight * level
        solver.rate[paths.seat[share]] = level


@internal
def _lower(paths: Paths, solver: Solver, number: int, level: int) -> None:
    """Let a held class fall to a level; what was full where it was must be looked at again."""
    before = paths.rate[number]
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource = paths.resource[share]
        weight = paths.members[number] * paths.weight[share]
        solver.spare[resource] += weight * (before - level)
        solver.rate[paths.seat[share]] = level
        if solver.level[resource] == before:
            _count_top(solver, resource, -weight)
        place = solver.place[resource]
        if place == NOWHERE and level < solver.level[resource] < UNLIMITED:
            _queue(solver, resource, _bound(solver, resource, level))
    _change(paths, solver, number, level)


@inlined
def _release(paths: Paths, solver: Solver, resource: int, level: int) -> None:
    """Let rise what only this resource, which is full no longer, held at a level."""
    first = paths.first[resource]
    for seat in range(first, first + paths.taken[resource]):
        if solver.rate[seat] == level:
            number = paths.owner[paths.share[seat]]
            if not _held_back(paths, solver, number, level):
                _raise(paths, solver, number, level)


@inlined
def _held_back(paths: Paths, solver: Solver, number: int, level: int) -> bool:
    """Return whether a class has its cap, or crosses a resource that is full at its level."""
    if paths.cap[number] == level:
        return True
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        if solver.level[paths.resource[share]] == level:
            return True
    return False


@internal
def _raise(paths: Paths, solver: Solver, number: int, level: int) -> None:
    solver.rising[number] = 1
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource = paths.resource[share]
        weight = paths.members[number] * paths.weight[share]
        solver.weight[resource] += weight
        solver.spare[resource] += weight * level
        solver.rate[paths.seat[share]] = UNLIMITED
        _queue(solver, resource, _bound(solver, resource, level))
    _queue_cap(paths, solver, number)


@internal
def _look_far(paths: Paths, solver: Solver, level: int) -> bool:
    """Move the horizon on, and queue what is before it; return whether there is anything."""
    length, least = solver.sizes[FAR], UNLIMITED
    solver.sizes[FAR] = 0
    for index in range(length):
        item = solver.far[index]
        key = _due(paths, solver, item, level)
        solver.due[item] = key
        if key < UNLIMITED:
            least = min(least, key)
            solver.far[solver.sizes[FAR]] = item
            solver.sizes[FAR] += 1
    # Most of what is far, such as a port with hardly any load, has nothing to wait for by then.
    solver.sizes[HORIZON] = UNLIMITED if least > UNLIMITED // 4 else 2 * least + 1
    length = solver.sizes[FAR]
    solver.sizes[FAR] = 0
    for index in range(length):
        item = solver.far[index]
        key = solver.due[item]
        solver.due[item] = UNLIMITED
        _queue(solver, item, key)
    return bool(length)


@inlined
def _due(paths: Paths, solver: Solver, item: int, level: int) -> int:
    """Level at which something far may be full, UNLIMITED where it waits for nothing any more."""
    if item >= len(paths.capacity):
        rising = solver.rising[item - len(paths.capacity)]
        return solver.due[item] if rising else UNLIMITED
    reached = _bound(solver, item, level)
    return UNLIMITED if reached == UNLIMITED else max(reached, solver.due[item])


@internal
def _queue(solver: Solver, item: int, key: int) -> None:
    """Put an item into the heap, or forward in it; among the far ones if it is not due for long."""
    place = solver.place[item]
    is_far = solver.due[item] < UNLIMITED
    if is_far:
        solver.due[item] = min(solver.due[item], key)
    if key >= solver.sizes[HORIZON]:
        if key < UNLIMITED and place == NOWHERE and not is_far:
            solver.far[solver.sizes[FAR]] = item
            solver.sizes[FAR] += 1
            solver.due[item] = key
        return
    if place != NOWHERE and solver.key[place] <= key:
        return
    if place == NOWHERE:
        place = solver.sizes[QUEUED]
        solver.sizes[QUEUED] += 1
    sift(solver.key, solver.item, solver.place, solver.sizes[QUEUED], place, key, item)


@internal
def _take(solver: Solver) -> None:
    solver.place[solver.item[0]] = NOWHERE
    solver.sizes[QUEUED] -= 1
    length = solver.sizes[QUEUED]
    if length:
        key, item = solver.key[length], solver.item[length]
        sift(solver.key, solver.item, solver.place, length, 0, key, item)


# Flows that all run at once, without a schedule.

MOST_UNITS = 2**62  # largest sum of weights, which must fit in 64 bits


def max_min_rates(
    capacity_bytes_per_s: npt.ArrayLike,
    ptr: npt.ArrayLike,
    resource: npt.ArrayLike,
    *,
    weight: npt.ArrayLike = 1,
    cap_bytes_per_s: npt.ArrayLike = UNLIMITED,
    count: npt.ArrayLike = 1,
) -> IntArray:
    """Return the max-min fair rates of flows that run at once, as the engines compute them [B/s].

    Flow f crosses ``resource[ptr[f]:ptr[f + 1]]``, each once; 1 B/s of it takes ``weight`` B/s of
    the resource. ``cap_bytes_per_s``: highest rate of each flow, whatever the resources have to
    give. ``count``: number of equal flows that a row stands for, each of which has the rate of the
    row. Rates are rounded down, so up to (weight on the resource - 1) B/s of a full resource stay
    unused. Raises ValueError when columns do not fit together, or a value is out of range.

    A parking lot: one flow over both links, one on each.

    >>> max_min_rates([100, 60], [0, 2, 3, 4], [0, 1, 0, 1]).tolist()
    [30, 70, 30]
    """
    flows, shares = len(np.atleast_1d(ptr)) - 1, len(np.atleast_1d(resource))
    resources = len(np.atleast_1d(capacity_bytes_per_s))
    begins = _column(ptr, np.int64, flows + 1)
    crossed = _column(resource, np.int32, shares)
    if begins[0] != 0 or begins[-1] != shares or (np.diff(begins) < 0).any():
        raise ValueError(f"ptr does not cut {shares} shares into {flows} flows")
    _check_range("resource", crossed, 0, resources - 1)
    paths = paths_of(
        begins,
        crossed,
        _column(weight, np.int32, shares),
        _column(cap_bytes_per_s, np.int64, flows),
        _column(capacity_bytes_per_s, np.int64, resources),
    )._replace(members=_column(count, np.int64, flows))
    _check(paths)
    _solve_all(paths, empty_solver(paths))
    return np.where(np.diff(begins) > 0, paths.rate, paths.cap)


def _column(values: npt.ArrayLike, dtype: npt.DTypeLike, length: int) -> Any:
    """Return a column, from values or one value for all, in the layout that the solver takes."""
    return np.require(np.broadcast_to(np.asarray(values, dtype), length), dtype, ["C", "A", "W"])


def _check(paths: Paths) -> None:
    """Refuse columns that the compiled solver, which checks nothing, cannot take."""
    most = MOST_UNITS // max(1, len(paths.resource) * int(paths.weight.max(initial=1)))
    _check_range("weight", paths.weight, 1, np.iinfo(np.int32).max)
    _check_range("cap_bytes_per_s", paths.cap, 0, UNLIMITED)
    _check_range("capacity_bytes_per_s", paths.capacity, 0, LARGEST_CAPACITY)
    _check_range("count", paths.members, 1, most)


def _check_range(name: str, column: IntArray, least: int, most: int) -> None:
    if len(column) and not least <= column.min() <= column.max() <= most:
        raise ValueError(
            f"{name} reaches from {column.min()} to {column.max()}, outside {least} … {most}"
        )


@lean
def _solve_all(paths: Paths, solver: Solver) -> None:
    for number in range(len(paths.cap)):
        _count_in(paths, solver, number, paths.members[number])
    _update(paths, solver)
