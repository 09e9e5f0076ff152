"""Shared rates (rule 7): max-min fair in whole bytes a second, in compiled code.

The level of all flows rises together. A resource is full at the level that its spare capacity
divided by the weight of its flows allows, rounded down; a flow is full at its own cap. The lowest
such level is taken, everything that is full at exactly this level is settled at once, and the rest
goes on rising. Levels only rise, and each is reached by the same resources in whatever order they
are examined. So the rates are the same to the bit if equal flows are counted as one class, and if
only those components are solved in which something changed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, lean
from cluster_sim.schedule.table import IntArray

UNLIMITED = np.iinfo(np.int64).max
"""Rate cap of a flow without one [B/s]."""


class Paths(NamedTuple):
    """Classes of equal flows and the resources they cross.

    ``ptr`` (classes + 1,): shares of class c are ``ptr[c]:ptr[c + 1]``.
    ``resource, weight, owner`` (shares,): for each share its resource, how many B/s of the resource
        1 B/s of a flow takes, and the class that the share belongs to.
    ``cap`` (classes,): rate cap of each flow of the class [B/s].
    ``capacity`` (resources,): rate that each resource divides among its flows [B/s].
    ``members, rate`` (classes,): number of flows in the class now, and the rate of each [B/s].
    """

    ptr: IntArray
    resource: IntArray
    weight: IntArray
    owner: IntArray
    cap: IntArray
    capacity: IntArray
    members: IntArray
    rate: IntArray


class Seats(NamedTuple):
    """The shares of classes that have flows now, in one list for each resource.

    ``ptr`` (resources + 1,): where the room for the list of each resource begins.
    ``share`` (shares,): the shares in use at resource r are ``share[ptr[r]:ptr[r] + taken[r]]``.
    ``taken`` (resources,): lengths of the lists.
    ``place`` (shares,): index in ``share`` of each share in use, by which it is removed without a
        search.
    """

    ptr: IntArray
    share: IntArray
    taken: IntArray
    place: IntArray


LISTED, CLASSES, CHANGED, NEW, QUEUED, FAR, HORIZON, FEW, MANY, ALL, VISITED = range(11)
"""Places in ``Filling.sizes``: how many resources and classes are listed, rates changed, and
classes are new since the last solve; in an incremental solve, how many items are in the heap, how
many are far, and the level from which on they are; up to how many classes a component is solved
from the start, from how many touched resources on everything is, and whether it is at the next
solve; how many classes incremental solves looked at, counted at each resource."""
FEW_CLASSES = 24
"""Classes up to which a component is small: filling it takes less than keeping account of it."""
MANY_OF = 8
"""One part in so many of all resources touched at one instant makes a whole solve cheaper."""


class Filling(NamedTuple):
    """Working space of the solver, and its results."""

    resources: IntArray  # list of the touched resources, then of the rest of their components
    classes: IntArray  # list of the classes in these components
    changed: IntArray  # list of the classes whose rate has changed
    sizes: IntArray  # lengths of these lists, and other counts
    listed: IntArray  # 1 for each resource in the list
    rising: IntArray  # 1 for each class whose rate is not final
    spare: IntArray  # capacity not yet given to settled flows, by resource
    weight: IntArray  # sum of the weights of flows not yet settled, by resource
    full: IntArray  # items that are full at one level
    key: IntArray  # heap of levels …
    item: IntArray  # … and of the items full there: a resource, or a class numbered after them


@lean
def fill_all(paths: Paths, seats: Seats, filling: Filling) -> None:
    """Raise the level until every listed class is settled; for calls from Python."""
    fill(paths, seats, filling)


@inlined
def fill(paths: Paths, seats: Seats, filling: Filling) -> None:
    """Raise the level until every listed class is settled."""
    heap = _begin(paths, seats, filling)
    rising = filling.sizes[CLASSES]
    resources = len(paths.capacity)
    filling.sizes[CHANGED] = 0
    while rising:
        full, heap, level = _next_level(filling, heap, resources)
        for index in range(full):
            item = filling.full[index]
            if item >= resources:
                rising -= _settle(paths, filling, item - resources, level)
                continue
            first = seats.ptr[item]
            for place in range(first, first + seats.taken[item]):
                number = paths.owner[seats.share[place]]
                rising -= _settle(paths, filling, number, level)


@inlined
def _begin(paths: Paths, seats: Seats, filling: Filling) -> int:
    """Sum the weights, and put each item on the heap at the first level where it may be full.

    A resource that one class has to itself bounds that class as a cap does, and is not on the heap
    itself. A class is left out if a resource that it shares is sure to be full no later.
    """
    for index in range(filling.sizes[LISTED]):
        resource = filling.resources[index]
        filling.spare[resource] = paths.capacity[resource]
        filling.weight[resource] = 0
    heap = 0
    for index in range(filling.sizes[CLASSES]):
        number = filling.classes[index]
        reached, common = paths.cap[number], UNLIMITED
        for share in range(paths.ptr[number], paths.ptr[number + 1]):
            resource = paths.resource[share]
            weight = paths.members[number] * paths.weight[share]
            filling.weight[resource] += weight
            if seats.taken[resource] == 1:
                reached = min(reached, paths.capacity[resource] // weight)
            else:
                common = min(common, paths.capacity[resource] // weight)
        if reached < common or common == UNLIMITED:
            heap = _push(filling, heap, reached, len(paths.capacity) + number)
    for index in range(filling.sizes[LISTED]):
        resource = filling.resources[index]
        if seats.taken[resource] > 1:
            level = filling.spare[resource] // filling.weight[resource]
            heap = _push(filling, heap, level, resource)
    return heap


@inlined
def _next_level(filling: Filling, heap: int, resources: int) -> tuple[int, int, int]:
    """Take all items off the heap that are full at the lowest level.

    Keys are lower bounds: the level at which a resource is full rises when other flows on it
    settle at lower rates. Such a resource goes back onto the heap with its level of now.
    """
    full, level = 0, UNLIMITED
    while heap and filling.key[0] <= level:
        item = filling.item[0]
        if item >= resources:
            if filling.rising[item - resources]:
                level = filling.key[0]
                filling.full[full] = item
                full += 1
        elif filling.weight[item]:
            beyond = filling.spare[item] - filling.key[0] * filling.weight[item]
            if beyond >= filling.weight[item]:  # it has risen since
                _sink(filling, heap, filling.spare[item] // filling.weight[item], item)
                continue
            level = filling.key[0]
            filling.full[full] = item
            full += 1
        heap -= 1
        if heap:
            _sink(filling, heap, filling.key[heap], filling.item[heap])
    return full, heap, level


@inlined
def _settle(paths: Paths, filling: Filling, number: int, level: int) -> int:
    """Give a class its final rate; returns 1, or 0 if it was settled before."""
    if not filling.rising[number]:
        return 0
    filling.rising[number] = 0
    if paths.rate[number] != level:
        paths.rate[number] = level
        filling.changed[filling.sizes[CHANGED]] = number
        filling.sizes[CHANGED] += 1
    for share in range(paths.ptr[number], paths.ptr[number + 1]):
        resource = paths.resource[share]
        weight = paths.members[number] * paths.weight[share]
        filling.weight[resource] -= weight
        filling.spare[resource] -= weight * level
    return 1


@inlined
def _push(filling: Filling, heap: int, key: int, item: int) -> int:
    """Add an item to a heap of length ``heap``; returns the new length."""
    place = heap
    while place:
        parent = (place - 1) >> 1
        if filling.key[parent] <= key:
            break
        filling.key[place], filling.item[place] = filling.key[parent], filling.item[parent]
        place = parent
    filling.key[place], filling.item[place] = key, item
    return heap + 1


@inlined
def _sink(filling: Filling, heap: int, key: int, item: int) -> None:
    """Replace the top of a heap of length ``heap`` by an item, which sinks to where it belongs."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= heap:
            break
        if child + 1 < heap and filling.key[child + 1] < filling.key[child]:
            child += 1
        if filling.key[child] >= key:
            break
        filling.key[place], filling.item[place] = filling.key[child], filling.item[child]
        place = child
    filling.key[place], filling.item[place] = key, item


def working_space(classes: int, resources: int) -> Filling:
    """Return empty working space for up to these numbers of classes and resources."""
    return Filling(
        resources=np.empty(resources, np.int32),
        classes=np.empty(classes, np.int32),
        changed=np.empty(classes, np.int32),
        sizes=np.zeros(11, np.int64),
        listed=np.zeros(resources, np.uint8),
        rising=np.zeros(classes, np.uint8),
        spare=np.empty(resources, np.int64),
        weight=np.empty(resources, np.int64),
        full=np.empty(classes + resources, np.int32),
        key=np.empty(classes + resources, np.int64),
        item=np.empty(classes + resources, np.int32),
    )
