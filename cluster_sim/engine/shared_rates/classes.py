"""Classes of flows that are equal in all that rates depend on: one rate is solved for each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.compiler.jit import inlined, lean
from cluster_sim.engine.shared_rates.filling import Filling, Paths, Seats, working_space
from cluster_sim.engine.shared_rates.groups import Groups, group_classes
from cluster_sim.schedule.table import NO_RESOURCE, Flows, IntArray, Schedule

ODD = 0x1E3779B97F4A7C15
"""An odd number of scattered bits: multiplying by it scatters small integers (Knuth, volume 3)."""
FEW = 2**12
"""A quarter of the classes that the first table has room for; each later one has four times as
many."""


def classify(flows: Flows, slot: IntArray) -> tuple[IntArray, IntArray]:
    """Find flows with the same path, weights, cap and slot.

    ``slot`` (flows,): a further number in which flows of one class agree.

    Returns ``number`` (flows,): class of each flow, counted as they first occur. ``example``
    (classes,): the first flow of each class.
    """
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


class Columns(NamedTuple):
    """Columns in which flows may differ, see :class:`cluster_sim.schedule.table.Flows`."""

    ptr: IntArray
    resource: IntArray
    weight: IntArray
    cap: IntArray
    slot: IntArray


@lean
def _classify(flows: Columns, table: IntArray, example: IntArray, number: IntArray) -> int:
    """Number the classes of the flows with a hash table of classes, by open addressing.

    Returns the number of classes, or -1 if ``example`` has no room for all of them.
    """
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
    """Return a hash of a flow."""
    mark = flows.cap[flow] * ODD ^ flows.slot[flow]
    for share in range(flows.ptr[flow], flows.ptr[flow + 1]):
        mark = (mark ^ (mark >> 31)) * ODD + (flows.resource[share] << 20)
        mark ^= flows.weight[share]
    mark *= ODD
    scattered: int = mark ^ (mark >> 32)
    return scattered


@inlined
def _equal(flows: Columns, one: int, other: int) -> bool:
    """Return whether two flows belong to the same class."""
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


def share_tables(
    schedule: Schedule, faulty: IntArray
) -> tuple[IntArray, IntArray, Paths, Seats, Filling, Groups]:
    """Build the tables of flows and shares that the solver needs for a schedule.

    ``faulty``: resources whose speed may change: a flow that holds a slot of one has its cap
    scaled.

    Returns ``number`` (flows,): class of each flow. ``slot`` (classes,): the faulty resource of
    which the flows of the class hold a slot, -1 for none. ``paths, seats, filling, groups``: tables
    of the classes, before any flow starts; all empty for a schedule without flows.
    """
    flows = schedule.flows
    resources = len(schedule.resources) if len(flows) else 0
    held = schedule.resource[flows.op]
    # A slot matters to a rate only where a fault may scale the caps of those that hold it.
    held = np.where(np.isin(held, faulty), held, NO_RESOURCE)
    number, example = classify(flows, held)
    ptr, share = _shares(flows, example)
    order, groups = group_classes(ptr, flows.resource[share], resources)
    if (order[1:] < order[:-1]).any():
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order))
        _renumber(number, place)
        example = example[order]
        ptr, share = _shares(flows, example)
    paths = Paths(
        ptr=ptr,
        resource=flows.resource[share].astype(np.int32),
        weight=flows.weight[share].astype(np.int32),
        owner=np.repeat(np.arange(len(example), dtype=np.int32), np.diff(ptr)),
        cap=flows.cap_bytes_per_s[example].astype(np.int64),
        capacity=schedule.resources.capacity[:resources].astype(np.int64),
        members=np.zeros(len(example), np.int64),
        rate=np.zeros(len(example), np.int64),
    )
    seats = Seats(
        ptr=np.concatenate([[0], np.cumsum(np.bincount(paths.resource, minlength=resources))]),
        share=np.empty(len(share), np.int32),
        taken=np.zeros(resources, np.int32),
        place=np.empty(len(share), np.int32),
    )
    filling = working_space(len(example), resources)
    return number, held[example].astype(np.int32), paths, seats, filling, groups


@lean
def _renumber(number: IntArray, place: IntArray) -> None:
    """Replace the classes of flows by their new numbers, in the memory that they have."""
    for flow in range(len(number)):
        number[flow] = place[number[flow]]


def _shares(flows: Flows, example: IntArray) -> tuple[IntArray, IntArray]:
    """Return where the shares of each class begin, and all their shares, in order."""
    length = np.diff(flows.ptr)[example]
    ptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    return ptr, np.repeat(flows.ptr[example] - ptr[:-1], length) + np.arange(ptr[-1])


def _column(values: IntArray, dtype: npt.DTypeLike) -> IntArray:
    return np.ascontiguousarray(values, dtype)
