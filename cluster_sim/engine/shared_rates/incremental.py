"""Shared rates (rule 7) after a few flows came or went: only what they move is solved anew.

The level rises as in :mod:`cluster_sim.engine.shared_rates.filling`, but only on the resources on
which something changed. Every other class is *held* at the rate that it had, and is looked at again
where that rate may be wrong. When a resource that it crosses is full below that rate, the class
falls to that level. When the resource that held it back is full no longer at its level, and neither
its cap nor another resource holds it there, it rises with the others. A class whose rate changes
disturbs the other resources that it crosses, and so on.

Whether a resource is full at a level depends on nothing but the rates below that level and on who
has none below it. So rates are final from the lowest up, whatever the order in which resources are
looked at, and the result has the bits of the whole solve. A resource waits in the heap under a
bound, the lowest level at which it may be full. The bound takes one more than its rate from each
held class, for one that is settled at the very level at which the resource is full has no more
than the others although it could have.
"""

from __future__ import annotations

from cluster_sim.engine.compiler.jit import inlined, internal
from cluster_sim.engine.shared_rates.filling import (
    CHANGED,
    FAR,
    HORIZON,
    LISTED,
    NEW,
    QUEUED,
    UNLIMITED,
    VISITED,
    Filling,
    Paths,
    Seats,
)
from cluster_sim.engine.shared_rates.sums import (
    NOWHERE,
    Sums,
    bound,
    count_in,
    count_top,
    sum_up,
)


@internal
def update(paths: Paths, seats: Seats, filling: Filling, sums: Sums) -> None:
    """Solve the new classes, and whatever else the touched resources change."""
    filling.sizes[CHANGED] = 0
    filling.sizes[HORIZON] = 0
    _begin(paths, seats, filling, sums)
    last, level = len(filling.full) - 1, 0
    while filling.sizes[QUEUED] or _look_far(paths, filling, sums, level):
        level = filling.key[0]
        full, freed = _judge(paths, seats, filling, sums, level)
        for index in range(full):
            item = filling.full[index]
            if item >= len(paths.capacity):
                if filling.rising[item - len(paths.capacity)]:
                    _settle(paths, seats, filling, sums, item - len(paths.capacity), level)
            else:
                _settle_all(paths, seats, filling, sums, item, level)
        for index in range(freed):
            _release(paths, seats, filling, sums, filling.full[last - index], level)


@inlined
def _begin(paths: Paths, seats: Seats, filling: Filling, sums: Sums) -> None:
    """Let the new classes rise from zero, and look at every touched resource."""
    for index in range(filling.sizes[NEW]):
        number = sums.new[index]
        filling.rising[number] = 1
        for share in range(paths.ptr[number], paths.ptr[number + 1]):
            resource = paths.resource[share]
            if sums.kept[resource]:
                weight = paths.members[number] * paths.weight[share]
                count_in(filling, sums, resource, -weight, paths.rate[number])
                sums.whole[resource] += weight
                filling.weight[resource] += weight
                sums.rate[seats.place[share]] = UNLIMITED
        _queue_cap(paths, filling, sums, number)
    for index in range(filling.sizes[LISTED]):
        resource = filling.resources[index]
        if not sums.kept[resource]:
            sum_up(paths, seats, filling, sums, resource, True)
        _queue(filling, sums, resource, bound(filling, sums, resource, 0))


@inlined
def _queue_cap(paths: Paths, filling: Filling, sums: Sums, number: int) -> None:
    """Have a rising class settled at its cap."""
    if paths.cap[number] < UNLIMITED:
        _queue(filling, sums, len(paths.capacity) + number, paths.cap[number])


@inlined
def _judge(paths: Paths, seats: Seats, filling: Filling, sums: Sums, level: int) -> tuple[int, int]:
    """Take what is due at a level off the heap.

    Returns ``full``: resources that are full and classes whose cap this is: the first of
    ``filling.full``. ``freed``: resources that were full at this level, and are not: the last of
    ``filling.full``.
    """
    full, freed = 0, 0
    while filling.sizes[QUEUED] and filling.key[0] == level:
        item = filling.item[0]
        _take(filling, sums)
        if item >= len(paths.capacity):
            filling.full[full] = item
            full += 1
            continue
        reached = bound(filling, sums, item, level)
        if reached == level:
            reached = _next_full(paths, seats, filling, sums, item, level)
            if reached == level:
                filling.full[full] = item
                full += 1
                continue
            if sums.level[item] == level:
                sums.level[item], sums.top[item] = UNLIMITED, 0
                freed += 1
                filling.full[len(filling.full) - freed] = item
            reached = min(reached, sums.level[item])
        if reached < UNLIMITED:
            _queue(filling, sums, item, reached)
    return full, freed


@internal
def _next_full(
    paths: Paths, seats: Seats, filling: Filling, sums: Sums, resource: int, level: int
) -> int:
    """Level at which a resource is full, if it is so at this one; else a bound above it."""
    spare, rising = paths.capacity[resource], 0
    first = seats.ptr[resource]
    filling.sizes[VISITED] += seats.taken[resource]
    for place in range(first, first + seats.taken[resource]):
        if sums.rate[place] >= level:
            rising += sums.weight[place]
        else:
            spare -= sums.weight[place] * sums.rate[place]
    if rising == 0:
        return UNLIMITED
    reached = spare // rising
    if reached == level:
        sums.level[resource], sums.top[resource] = level, rising
    return int(reached)


@inlined
def _settle_all(
    paths: Paths, seats: Seats, filling: Filling, sums: Sums, resource: int, level: int
) -> None:
    """Settle whatever is not below the level of a full resource."""
    first = seats.ptr[resource]
    for place in range(first, first + seats.taken[resource]):
        if sums.rate[place] > level:
            number = paths.owner[seats.share[place]]
            if filling.rising[number]:
                _settle(paths, seats, filling, sums, number, level)
            else:
                _lower(paths, seats, filling, sums, number, level)


@internal
def _settle(
    paths: Paths, seats: Seats, filling: Filling, sums: Sums, number: int, level: int
) -> None:
    """Give a rising class its rate. Its resources are in the heap, under bounds that still hold."""
    filling.rising[number] = 0
    _change(paths, filling, number, level)
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource = paths.resource[share]
        weight = paths.members[number] * paths.weight[share]
        filling.weight[resource] -= weight
        filling.spare[resource] -= weight * level
        sums.rate[seats.place[share]] = level


@internal
def _lower(
    paths: Paths, seats: Seats, filling: Filling, sums: Sums, number: int, level: int
) -> None:
    """Let a held class fall to a level; what was full where it was must be looked at again."""
    before = paths.rate[number]
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource = paths.resource[share]
        if not sums.kept[resource]:
            sum_up(paths, seats, filling, sums, resource, False)
        weight = paths.members[number] * paths.weight[share]
        filling.spare[resource] += weight * (before - level)
        sums.rate[seats.place[share]] = level
        if sums.level[resource] == before:
            count_top(sums, resource, -weight)
        place = sums.place[resource]
        if place == NOWHERE and level < sums.level[resource] < UNLIMITED:
            _queue(filling, sums, resource, bound(filling, sums, resource, level))
    _change(paths, filling, number, level)


@inlined
def _change(paths: Paths, filling: Filling, number: int, level: int) -> None:
    """Note another rate of a class."""
    if paths.rate[number] != level:
        paths.rate[number] = level
        filling.changed[filling.sizes[CHANGED]] = number
        filling.sizes[CHANGED] += 1


@inlined
def _release(
    paths: Paths, seats: Seats, filling: Filling, sums: Sums, resource: int, level: int
) -> None:
    """Let rise what only this resource, which is full no longer, held at a level."""
    first = seats.ptr[resource]
    for place in range(first, first + seats.taken[resource]):
        if sums.rate[place] == level:
            number = paths.owner[seats.share[place]]
            if not _held_back(paths, seats, filling, sums, number, level):
                _raise(paths, seats, filling, sums, number, level)


@inlined
def _held_back(
    paths: Paths, seats: Seats, filling: Filling, sums: Sums, number: int, level: int
) -> bool:
    """Return whether a class has its cap, or crosses a resource that is full at its level."""
    if paths.cap[number] == level:
        return True
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource = paths.resource[share]
        if not sums.kept[resource]:
            sum_up(paths, seats, filling, sums, resource, False)
        if sums.level[resource] == level:
            return True
    return False


@internal
def _raise(
    paths: Paths, seats: Seats, filling: Filling, sums: Sums, number: int, level: int
) -> None:
    """Let a held class rise with the level."""
    filling.rising[number] = 1
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource = paths.resource[share]
        weight = paths.members[number] * paths.weight[share]
        filling.weight[resource] += weight
        filling.spare[resource] += weight * level
        sums.rate[seats.place[share]] = UNLIMITED
        _queue(filling, sums, resource, bound(filling, sums, resource, level))
    _queue_cap(paths, filling, sums, number)


@internal
def _look_far(paths: Paths, filling: Filling, sums: Sums, level: int) -> bool:
    """Move the horizon on, and queue what is before it; return whether there is anything.

    Most of what is far, such as a port with hardly any load, has nothing to wait for by then.
    """
    length, least = filling.sizes[FAR], UNLIMITED
    filling.sizes[FAR] = 0
    for index in range(length):
        item = sums.far[index]
        key = _due(paths, filling, sums, item, level)
        sums.due[item] = key
        if key < UNLIMITED:
            least = min(least, key)
            sums.far[filling.sizes[FAR]] = item
            filling.sizes[FAR] += 1
    filling.sizes[HORIZON] = UNLIMITED if least > UNLIMITED // 4 else 2 * least + 1
    length = filling.sizes[FAR]
    filling.sizes[FAR] = 0
    for index in range(length):
        item = sums.far[index]
        key = sums.due[item]
        sums.due[item] = UNLIMITED
        _queue(filling, sums, item, key)
    return bool(length)


@inlined
def _due(paths: Paths, filling: Filling, sums: Sums, item: int, level: int) -> int:
    """Level at which something far may be full, UNLIMITED where it waits for nothing any more."""
    if item >= len(paths.capacity):
        rising = filling.rising[item - len(paths.capacity)]
        return sums.due[item] if rising else UNLIMITED
    reached = bound(filling, sums, item, level)
    return UNLIMITED if reached == UNLIMITED else max(reached, sums.due[item])


@internal
def _queue(filling: Filling, sums: Sums, item: int, key: int) -> None:
    """Put an item into the heap, or forward in it; among the far ones if it is not due for long."""
    place = sums.place[item]
    is_far = sums.due[item] < UNLIMITED
    if is_far:
        sums.due[item] = min(sums.due[item], key)
    if key >= filling.sizes[HORIZON]:
        if key < UNLIMITED and place == NOWHERE and not is_far:
            sums.far[filling.sizes[FAR]] = item
            filling.sizes[FAR] += 1
            sums.due[item] = key
        return
    if place != NOWHERE and filling.key[place] <= key:
        return
    if place == NOWHERE:
        place = filling.sizes[QUEUED]
        filling.sizes[QUEUED] += 1
    while place:
        parent = (place - 1) >> 1
        if filling.key[parent] <= key:
            break
        filling.key[place], filling.item[place] = filling.key[parent], filling.item[parent]
        sums.place[filling.item[place]] = place
        place = parent
    filling.key[place], filling.item[place] = key, item
    sums.place[item] = place


@internal
def _take(filling: Filling, sums: Sums) -> None:
    """Take the first item off the heap."""
    sums.place[filling.item[0]] = NOWHERE
    filling.sizes[QUEUED] -= 1
    length = filling.sizes[QUEUED]
    if length == 0:
        return
    key, item, place = filling.key[length], filling.item[length], 0
    while True:
        child = 2 * place + 1
        if child >= length:
            break
        if child + 1 < length and filling.key[child + 1] < filling.key[child]:
            child += 1
        if filling.key[child] >= key:
            break
        filling.key[place], filling.item[place] = filling.key[child], filling.item[child]
        sums.place[filling.item[place]] = place
        place = child
    filling.key[place], filling.item[place] = key, item
    sums.place[item] = place
