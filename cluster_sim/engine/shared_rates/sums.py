"""Sums at each resource, which one solve of shared rates leaves to the next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, internal
from cluster_sim.engine.shared_rates.filling import (
    FEW,
    FEW_CLASSES,
    MANY,
    MANY_OF,
    UNLIMITED,
    VISITED,
    Filling,
    Paths,
    Seats,
)
from cluster_sim.schedule.table import IntArray

NOWHERE = -1
"""Place of what is not in the heap."""


class Sums(NamedTuple):
    """Sums over the classes that have flows at each resource, and the heap of a solve.

    Where sums are kept, ``Filling.spare`` is the capacity that no flow has, and ``Filling.weight``
    zero between solves.
    """

    kept: IntArray  # 1 for the resources at which they are kept
    whole: IntArray  # weight of all flows
    level: IntArray  # at which the resource is full, UNLIMITED for never [B/s] …
    top: IntArray  # … and the weight of the flows that have this rate
    rate: IntArray  # of the class on each seat, UNLIMITED while it rises, and …
    weight: IntArray  # … the weight of all its flows there: side by side, to be summed fast
    place: IntArray  # in the heap, of resources and behind these of classes
    far: IntArray  # what waits outside of the heap, as it is not due for long …
    due: IntArray  # … and the level at which each may be, UNLIMITED for all others
    new: IntArray  # classes that have had no flow up to this instant


def empty_sums(paths: Paths, filling: Filling) -> Sums:
    """Return the sums at resources without flows, and set the working space likewise."""
    classes, resources = len(paths.cap), len(paths.capacity)
    filling.spare[:] = paths.capacity
    filling.weight.fill(0)
    filling.sizes[FEW], filling.sizes[MANY] = FEW_CLASSES, resources // MANY_OF
    return Sums(
        kept=np.ones(resources, np.uint8),
        whole=np.zeros(resources, np.int64),
        level=np.full(resources, UNLIMITED, np.int64),
        top=np.zeros(resources, np.int64),
        rate=np.empty(len(paths.resource), np.int64),
        weight=np.empty(len(paths.resource), np.int64),
        place=np.full(resources + classes, NOWHERE, np.int32),
        far=np.empty(resources + classes, np.int32),
        due=np.full(resources + classes, UNLIMITED, np.int64),
        new=np.empty(classes, np.int32),
    )


@inlined
def count_in(filling: Filling, sums: Sums, resource: int, weight: int, rate: int) -> None:
    """Count flows of this weight and rate at a resource, or out again if the weight is negative."""
    sums.whole[resource] += weight
    filling.spare[resource] -= weight * rate
    if sums.level[resource] == rate:
        count_top(sums, resource, weight)


@inlined
def count_top(sums: Sums, resource: int, weight: int) -> None:
    """Count flows among those at the level of a full resource. Without any it limits none."""
    sums.top[resource] += weight
    if sums.top[resource] == 0:
        sums.level[resource] = UNLIMITED


@internal
def sum_up(
    paths: Paths,
    seats: Seats,
    filling: Filling,
    sums: Sums,
    resource: int,
    touched: bool,
) -> None:
    """Sum up the flows at a resource, after a solve that did not keep its sums.

    The highest rate on a full resource is its level. One that was touched may have been full.
    """
    spare, rising, whole, top, highest = paths.capacity[resource], 0, 0, 0, -1
    first = seats.ptr[resource]
    filling.sizes[VISITED] += seats.taken[resource]
    for place in range(first, first + seats.taken[resource]):
        share = seats.share[place]
        number = paths.owner[share]
        weight = paths.members[number] * paths.weight[share]
        rate = UNLIMITED if filling.rising[number] else paths.rate[number]
        sums.rate[place], sums.weight[place] = rate, weight
        whole += weight
        if rate == UNLIMITED:
            rising += weight
            continue
        spare -= weight * rate
        if rate > highest:
            highest, top = rate, 0
        if rate == highest:
            top += weight
    sums.kept[resource] = 1
    sums.whole[resource] = whole
    filling.spare[resource] = spare
    filling.weight[resource] = rising
    full = top > 0 and (touched or spare < top)
    sums.top[resource] = top if full else 0
    sums.level[resource] = highest if full else UNLIMITED


@inlined
def bound(filling: Filling, sums: Sums, resource: int, level: int) -> int:
    """Lowest level, from this one on, at which a resource may be full, or was full before."""
    top, rising = sums.top[resource], filling.weight[resource]
    room = filling.spare[resource] - (sums.whole[resource] - rising - top)
    if top + rising == 0:
        return UNLIMITED if room >= 0 else level
    if top == 0:
        return level if room < 0 else max(level, room // rising)
    room += top * sums.level[resource]
    reached = 0 if room < 0 else room // (top + rising)
    lowest: int = max(level, min(reached, sums.level[resource]))
    return lowest
