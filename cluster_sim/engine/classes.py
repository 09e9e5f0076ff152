"""Flows that are equal in everything a rate can depend on, so that one rate is solved for all."""

from __future__ import annotations

import numpy as np

from cluster_sim.engine.rates import Filling, Paths, Seats, working_space
from cluster_sim.schedule.table import NO_RESOURCE, Flows, IntArray, Schedule

ODD = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio in 64 bits: multiplying by it scatters small integers (Knuth, volume 3)."""


def classify(flows: Flows, slot: IntArray) -> tuple[IntArray, IntArray]:
    """Find flows with the same path, weights, cap and slot.

    Parameters
    ----------
    flows : Flows
    slot : int array (flows,)
        Whatever else sets flows apart.

    Returns
    -------
    number : int32 array (flows,)
        Class of each flow.
    example : int64 array (classes,)
        A flow of each class.
    """
    length = np.diff(flows.ptr)
    position = np.arange(len(flows.resource)) - np.repeat(flows.ptr[:-1], length)
    shares = _scatter(_scatter(_scatter(position) ^ _bits(flows.resource)) ^ _bits(flows.weight))
    marks = np.add.reduceat(shares, flows.ptr[:-1]) if len(flows) else np.empty(0, np.uint64)
    for column in (flows.cap_bytes_per_s, slot):
        marks = _scatter(marks ^ _bits(column))
    _, example, number = np.unique(marks, return_index=True, return_inverse=True)
    like = example[number]
    differs = (length != length[like]) | (slot != slot[like])
    differs |= flows.cap_bytes_per_s != flows.cap_bytes_per_s[like]
    other = np.minimum(np.repeat(flows.ptr[like], length) + position, len(flows.resource) - 1)
    unequal = (flows.resource != flows.resource[other]) | (flows.weight != flows.weight[other])
    differs |= np.bincount(np.repeat(np.arange(len(flows)), length), unequal, len(flows)) > 0
    strangers = np.flatnonzero(differs)  # of the same mark by chance
    number[strangers] = len(example) + np.arange(len(strangers))
    return number.astype(np.int32), np.concatenate([example, strangers]).astype(np.int64)


def share_tables(
    schedule: Schedule, faulty: IntArray
) -> tuple[IntArray, IntArray, Paths, Seats, Filling]:
    """All that the solver needs for the flows of a schedule.

    Parameters
    ----------
    schedule : Schedule
    faulty : int array
        Resources whose speed may change: a flow that holds a slot of one has its cap scaled.

    Returns
    -------
    number : int32 array (flows,)
        Class of each flow.
    slot : int32 array (classes,)
        The faulty resource of which the flows of the class hold a slot, -1 for none.
    paths, seats, filling
        Of the classes, none of which has a flow yet; all empty for a schedule without flows.
    """
    flows = schedule.flows
    resources = len(schedule.resources) if len(flows) else 0
    held = schedule.resource[flows.op]
    held = np.where(np.isin(held, faulty), held, NO_RESOURCE)
    number, example = classify(flows, held)
    length = np.diff(flows.ptr)[example]
    ptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    share = np.repeat(flows.ptr[example] - ptr[:-1], length) + np.arange(ptr[-1])
    paths = Paths(
        ptr=ptr,
        resource=flows.resource[share].astype(np.int32),
        weight=flows.weight[share].astype(np.int32),
        owner=np.repeat(np.arange(len(example), dtype=np.int32), length),
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
    return number, held[example].astype(np.int32), paths, seats, filling


def _bits(values: IntArray) -> IntArray:
    return np.asarray(values, np.int64).view(np.uint64)


def _scatter(values: IntArray) -> IntArray:
    mixed = np.asarray(values).astype(np.uint64) * ODD
    return np.asarray(mixed ^ (mixed >> np.uint64(29)))
