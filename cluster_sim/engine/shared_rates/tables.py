"""Tables of the solver of shared rates: classes of equal flows, and working space."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.compiler.jit import inlined, internal, lean
from cluster_sim.schedule.table import NO_RESOURCE, Flows, IntArray, Schedule, pointers

UNLIMITED = np.iinfo(np.int64).max  # rate cap of a flow without one [B/s]
NOWHERE = -1  # place of what is not in the heap


class Paths(NamedTuple):
    """Classes of equal flows and the resources they cross; each such pair is a share."""

    ptr: IntArray  # (classes + 1,): shares of class c are ptr[c]:ptr[c + 1]
    resource: IntArray  # (shares,)
    weight: IntArray  # (shares,): B/s of the resource that 1 B/s of a flow takes
    owner: IntArray  # (shares,): class that the share belongs to
    cap: IntArray  # (classes,): rate cap of each flow of the class [B/s]
    capacity: IntArray  # (resources,): rate that each resource divides among its flows [B/s]
    members: IntArray  # (classes,): number of flows in the class now …
    rate: IntArray  # … and the rate of each [B/s]
    # The shares of classes that have flows now sit in one list of seats for each resource.
    first: IntArray  # (resources,): first seat of each resource
    taken: IntArray  # (resources,): seats in use
    share: IntArray  # (shares,): share on each seat
    seat: IntArray  # (shares,): seat of each share in use, by which it is removed without a search


LISTED, CHANGED, NEW, QUEUED, FAR, HORIZON, VISITED = range(7)
"""Places in ``Solver.sizes``: lengths of the lists of touched resources, of changed and of new
classes, of the heap, and of what is far; the level from which on something is far; how many classes
solves looked at, counted at each resource."""


class Solver(NamedTuple):
    """Working space of the solver, and sums at each resource that one solve leaves to the next."""

    sizes: IntArray
    resources: IntArray  # list of the touched resources
    listed: IntArray  # 1 for each resource in the list
    new: IntArray  # list of the classes that rise from zero in the next solve
    rising: IntArray  # 1 for each class whose rate is not final
    changed: IntArray  # list of the classes whose rate has changed
    # By resource.
    whole: IntArray  # weight of all flows
    spare: IntArray  # capacity that no settled flow has
    weight: IntArray  # weight of the rising flows, zero between solves
    level: IntArray  # at which the resource is full, UNLIMITED for never [B/s] …
    top: IntArray  # … and the weight of the flows that have this rate
    # By seat, side by side to be summed fast.
    rate: IntArray  # of the class, UNLIMITED while it rises
    seat_weight: IntArray  # weight of all its flows there
    # The heap, of resources and behind these of classes.
    full: IntArray  # items that are full at one level
    key: IntArray
    item: IntArray
    place: IntArray  # in the heap, NOWHERE for none
    far: IntArray  # list of what waits outside of the heap, as it is not due for long …
    due: IntArray  # … and the level at which each may be, UNLIMITED for all others


def empty_solver(paths: Paths) -> Solver:
    """Return working space for classes without flows."""
    classes, resources, seats = len(paths.cap), len(paths.capacity), len(paths.resource)
    items = classes + resources
    return Solver(
        sizes=np.zeros(7, np.int64),
        resources=np.empty(resources, np.int32),
        listed=np.zeros(resources, np.uint8),
        new=np.empty(classes, np.int32),
        rising=np.zeros(classes, np.uint8),
        changed=np.empty(classes, np.int32),
        whole=np.zeros(resources, np.int64),
        spare=paths.capacity.copy(),
        weight=np.zeros(resources, np.int64),
        level=np.full(resources, UNLIMITED, np.int64),
        top=np.zeros(resources, np.int64),
        rate=np.empty(seats, np.int64),
        seat_weight=np.empty(seats, np.int64),
        full=np.empty(items, np.int32),
        key=np.empty(items, np.int64),
        item=np.empty(items, np.int32),
        place=np.full(items, NOWHERE, np.int32),
        far=np.empty(items, np.int32),
        due=np.full(items, UNLIMITED, np.int64),
    )


@internal
def sift(
    keys: IntArray, items: IntArray, places: IntArray, length: int, place: int, key: int, item: int
) -> None:
    """Move an item of a binary heap, whose place ``places`` has, to where its key belongs."""
    while place:
        parent = (place - 1) >> 1
        if keys[parent] <= key:
            break
        keys[place], items[place] = keys[parent], items[parent]
        places[items[place]] = place
        place = parent
    while True:
        child = 2 * place + 1
        if child >= length:
            break
        if child + 1 < length and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[place], items[place] = keys[child], items[child]
        places[items[place]] = place
        place = child
    keys[place], items[place] = key, item
    places[item] = place


def paths_of(
    ptr: IntArray, resource: IntArray, weight: IntArray, cap: IntArray, capacity: IntArray
) -> Paths:
    """Return the paths of classes without flows from columns of :class:`Paths`."""
    classes = len(cap)
    length = np.bincount(resource, minlength=len(capacity))
    return Paths(
        ptr=ptr,
        resource=resource,
        weight=weight,
        owner=np.repeat(np.arange(classes, dtype=np.int32), np.diff(ptr)),
        cap=cap,
        capacity=capacity,
        members=np.zeros(classes, np.int64),
        rate=np.zeros(classes, np.int64),
        first=np.cumsum(length) - length,
        taken=np.zeros(len(capacity), np.int32),
        share=np.empty(len(resource), np.int32),
        seat=np.empty(len(resource), np.int32),
    )


def share_tables(schedule: Schedule, faulty: IntArray) -> tuple[IntArray, IntArray, Paths, Solver]:
    """Build tables: the class of each flow, ``faulty`` slot of each class or -1, and solver's."""
    flows = schedule.flows
    resources = len(schedule.resources) if len(flows) else 0
    held = schedule.resource[flows.op]
    # A slot matters to a rate only where a fault may scale the caps of those that hold it.
    held = np.where(np.isin(held, faulty), held, NO_RESOURCE)
    number, example = classify(flows, held)
    length = np.diff(flows.ptr)[example]
    ptr = pointers(length)
    share = np.repeat(flows.ptr[example] - ptr[:-1], length) + np.arange(ptr[-1])
    paths = paths_of(
        ptr,
        flows.resource[share].astype(np.int32),
        flows.weight[share].astype(np.int32),
        flows.cap_bytes_per_s[example].astype(np.int64),
        schedule.resources.capacity[:resources].astype(np.int64),
    )
    return number, held[example].astype(np.int32), paths, empty_solver(paths)


ODD = 0x1E3779B97F4A7C15
"""An odd number of scattered bits: multiplying by it scatters small integers (Knuth, volume 3)."""
FEW = 2**12
"""A quarter of the classes that the first table has room for; each later one has four times as
many."""


class Columns(NamedTuple):
    """Columns in which flows may differ, see :class:`cluster_sim.schedule.table.Flows`."""

    ptr: IntArray
    resource: IntArray
    weight: IntArray
    cap: IntArray
    slot: IntArray


def classify(flows: Flows, slot: IntArray) -> tuple[IntArray, IntArray]:
    """Number flows of one path, weights, cap and slot; returns numbers, and first of each."""
    if not len(flows):
        return np.empty(0, np.int32), np.empty(0, np.int64)
    columns = Columns(
        _column(flows.ptr, np.int64),
        _column(flows.resource, np.int32),
        _column(flows.weight, np.int32),
        _column(flows.cap_bytes_per_s, np.int64),
        _column(slot, np.int64),
    )
    number, room, classes = np.empty(len(flows), np.int32), FEW, -1
    while classes < 0:
        room *= 4
        example = np.empty(room, np.int64)
        classes = _classify(columns, np.full(2 * room, -1, np.int32), example, number)
    return number, example[:classes].copy()


def _column(values: IntArray, dtype: npt.DTypeLike) -> IntArray:
    return np.ascontiguousarray(values, dtype)


@lean
def _classify(flows: Columns, table: IntArray, example: IntArray, number: IntArray) -> int:
    """Number classes by a hash table with open addressing; return how many, -1 without room."""
    classes, mask = 0, len(table) - 1
    for flow in range(len(number)):
        place = _scattered(flows, flow) & mask
        while table[place] >= 0 and not _equal(flows, flow, example[table[place]]):
            place = (place + 1) & mask
        if table[place] < 0:
            if classes == len(example):
                return -1
            table[place] = classes
            example[classes] = flow
            classes += 1
        number[flow] = table[place]
    return classes


@inlined
def _scattered(flows: Columns, flow: int) -> int:
    mark = flows.cap[flow] * ODD ^ flows.slot[flow]
    for share in range(flows.ptr[flow], flows.ptr[flow + 1]):
        mark = (mark ^ (mark >> 31)) * ODD + (flows.resource[share] << 20)
        mark ^= flows.weight[share]
    mark *= ODD
    scattered: int = mark ^ (mark >> 32)
    return scattered


@inlined
def _equal(flows: Columns, one: int, other: int) -> bool:
    first, second = flows.ptr[one], flows.ptr[other]
    length = flows.ptr[one + 1] - first
    if flows.cap[one] != flows.cap[other] or flows.slot[one] != flows.slot[other]:
        return False
    if flows.ptr[other + 1] - second != length:
        return False
    for share in range(length):
        if flows.resource[first + share] != flows.resource[second + share]:
            return False
        if flows.weight[first + share] != flows.weight[second + share]:
            return False
    return True
