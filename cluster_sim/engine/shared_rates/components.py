"""Flows come and go: which rates are solved anew, and how.

A component that never has more than a few classes is solved from the start, by itself
(:mod:`cluster_sim.engine.shared_rates.groups`). Of any other, what is linked by the flows of now is
solved from the start if it is small. Else only what changes is solved
(:mod:`cluster_sim.engine.shared_rates.incremental`), or all of it where much changed at once, or a
capacity did.
"""

from __future__ import annotations

from cluster_sim.engine.compiler.jit import inlined, internal
from cluster_sim.engine.shared_rates.filling import (
    ALL,
    CHANGED,
    CLASSES,
    FEW,
    LISTED,
    MANY,
    NEW,
    Filling,
    Paths,
    Seats,
    fill,
)
from cluster_sim.engine.shared_rates.groups import Groups, fill_small, touch_group
from cluster_sim.engine.shared_rates.incremental import update
from cluster_sim.engine.shared_rates.sums import Sums, count_in


@inlined
def touch(filling: Filling, resource: int) -> None:
    """Note that the flows on a resource, or its capacity, changed."""
    if not filling.listed[resource]:
        filling.listed[resource] = 1
        filling.resources[filling.sizes[LISTED]] = resource
        filling.sizes[LISTED] += 1


@inlined
def touch_resource(filling: Filling, groups: Groups, resource: int) -> None:
    """Note that the capacity of a resource changed."""
    if groups.of_resource[resource] >= 0:
        touch_group(groups, groups.of_resource[resource])
    else:
        touch(filling, resource)


@inlined
def join(
    paths: Paths, seats: Seats, filling: Filling, sums: Sums, groups: Groups, number: int
) -> None:
    """Add a flow to a class, and have the rates that this changes solved."""
    paths.members[number] += 1
    touch_group(groups, groups.of_class[number])
    if groups.small[groups.of_class[number]]:
        for share in range(paths.ptr[number], paths.ptr[number + 1]):
            sums.whole[paths.resource[share]] += paths.weight[share]
    else:
        _count_in(paths, seats, filling, sums, number)


@internal
def _count_in(paths: Paths, seats: Seats, filling: Filling, sums: Sums, number: int) -> None:
    """Count a new flow at its resources; the first makes the class take part there."""
    if paths.members[number] == 1:
        sums.new[filling.sizes[NEW]] = number
        filling.sizes[NEW] += 1
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource = paths.resource[share]
        touch(filling, resource)
        if paths.members[number] == 1:
            place = seats.ptr[resource] + seats.taken[resource]
            seats.share[place] = share
            seats.place[share] = place
            seats.taken[resource] += 1
        if sums.kept[resource]:
            place, weight = seats.place[share], paths.weight[share]
            sums.rate[place] = paths.rate[number]
            sums.weight[place] = weight * paths.members[number]
            count_in(filling, sums, resource, weight, paths.rate[number])


@inlined
def leave(
    paths: Paths, seats: Seats, filling: Filling, sums: Sums, groups: Groups, number: int
) -> None:
    """Remove a flow from a class, and have the rates that this changes solved."""
    paths.members[number] -= 1
    touch_group(groups, groups.of_class[number])
    if groups.small[groups.of_class[number]]:
        for share in range(paths.ptr[number], paths.ptr[number + 1]):
            sums.whole[paths.resource[share]] -= paths.weight[share]
    else:
        _count_out(paths, seats, filling, sums, number)


@internal
def _count_out(paths: Paths, seats: Seats, filling: Filling, sums: Sums, number: int) -> None:
    """Count a flow out at its resources; with the last the class leaves them."""
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource = paths.resource[share]
        touch(filling, resource)
        place = seats.place[share]
        if sums.kept[resource]:
            weight = paths.weight[share]
            sums.weight[place] -= weight
            count_in(filling, sums, resource, -weight, paths.rate[number])
        if paths.members[number] == 0:  # the last share of the list takes the free place
            seats.taken[resource] -= 1
            last = seats.ptr[resource] + seats.taken[resource]
            seats.share[place] = seats.share[last]
            seats.place[seats.share[place]] = place
            sums.rate[place] = sums.rate[last]
            sums.weight[place] = sums.weight[last]


@inlined
def solve(paths: Paths, seats: Seats, filling: Filling, sums: Sums, groups: Groups) -> int:
    """Solve the rates of all flows that a change may reach.

    Returns the length of ``filling.changed``, the classes whose rate has changed.
    """
    filling.sizes[CHANGED] = 0
    if filling.sizes[LISTED]:
        solve_large(paths, seats, filling, sums)
    for index in range(groups.length[0]):
        if groups.small[groups.touched[index]]:
            fill_small(paths, groups, filling, sums.whole, groups.touched[index])
    return int(filling.sizes[CHANGED])


@internal
def solve_large(paths: Paths, seats: Seats, filling: Filling, sums: Sums) -> None:
    """Solve the components that the touched resources belong to."""
    small = spread(paths, seats, filling, filling.sizes[FEW])
    if small or not solve_part(paths, seats, filling, sums):
        fill(paths, seats, filling)
        for index in range(filling.sizes[LISTED]):
            sums.kept[filling.resources[index]] = 0
    for index in range(filling.sizes[LISTED]):
        filling.listed[filling.resources[index]] = 0
    filling.sizes[LISTED] = 0
    filling.sizes[NEW] = 0
    filling.sizes[ALL] = 0


@internal
def solve_part(paths: Paths, seats: Seats, filling: Filling, sums: Sums) -> bool:
    """Solve what changes in large components; else list the whole of them, and return False."""
    if filling.sizes[ALL] or filling.sizes[LISTED] > filling.sizes[MANY]:
        spread(paths, seats, filling, len(paths.cap))
        return False
    update(paths, seats, filling, sums)
    return True


@inlined
def spread(paths: Paths, seats: Seats, filling: Filling, most: int) -> bool:
    """List the components that the touched resources belong to, if they have so few classes.

    Where they have more, nothing is listed but what was touched.
    """
    index, classes, touched = 0, 0, filling.sizes[LISTED]
    while index < filling.sizes[LISTED]:
        resource = filling.resources[index]
        first = seats.ptr[resource]
        if classes > most or seats.taken[resource] > most:
            _forget(filling, touched, classes)
            return False
        for place in range(first, first + seats.taken[resource]):
            number = paths.owner[seats.share[place]]
            if not filling.rising[number]:
                filling.rising[number] = 1
                filling.classes[classes] = number
                classes += 1
                for share in range(paths.ptr[number], paths.ptr[number + 1]):
                    touch(filling, paths.resource[share])
        index += 1
    filling.sizes[CLASSES] = classes
    return True


@inlined
def _forget(filling: Filling, touched: int, classes: int) -> None:
    """Take off the lists what was put there, but for the touched resources, the first ones."""
    for index in range(classes):
        filling.rising[filling.classes[index]] = 0
    for index in range(touched, filling.sizes[LISTED]):
        filling.listed[filling.resources[index]] = 0
    filling.sizes[LISTED] = touched
