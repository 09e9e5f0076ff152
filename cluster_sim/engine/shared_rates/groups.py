"""Groups of classes: a small component together, any other class by itself.

Classes that cross one resource, or are linked so over others, belong to one component whatever
flows there are later. Where it has few classes, its rates are solved together from the start at
each change (:func:`fill_small`), and one place in the heap of ends serves them all: a change moves
the ends of most of them anyway. A class of a large component is a group of its own, and its
component is solved in part (:mod:`cluster_sim.engine.shared_rates.components`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, internal, lean
from cluster_sim.engine.shared_rates.filling import (
    CHANGED,
    FEW_CLASSES,
    UNLIMITED,
    Filling,
    Paths,
)
from cluster_sim.schedule.table import IntArray

NO_GROUP = -1


class Groups(NamedTuple):
    """Groups of classes, and a list of those groups at which something changed.

    ``of_class`` (classes,): group of each class.
    ``of_resource`` (resources,): group whose classes cross a resource, if it is a small component;
        else NO_GROUP.
    ``first`` (groups + 1,): classes of group g are ``first[g]`` up to ``first[g + 1]``.
    ``ptr, resource`` (groups + 1,), (resources of small components,): a small component of group g
        has ``resource[ptr[g]:ptr[g + 1]]``.
    ``small`` (groups,): 1 for a small component.
    ``touched, listed, length`` (groups,), (groups,), (1,): list of the groups that changed at this
        instant, 1 for each in it, and its length.
    """

    of_class: IntArray
    of_resource: IntArray
    first: IntArray
    ptr: IntArray
    resource: IntArray
    small: IntArray
    touched: IntArray
    listed: IntArray
    length: IntArray


@inlined
def touch_group(groups: Groups, group: int) -> None:
    """Note that flows of a group came or went, or that one of its rates or capacities changed."""
    if not groups.listed[group]:
        groups.listed[group] = 1
        groups.touched[groups.length[0]] = group
        groups.length[0] += 1


@internal
def fill_small(paths: Paths, groups: Groups, filling: Filling, whole: IntArray, group: int) -> None:
    """Raise the level until every class of a small component is settled.

    This does what :func:`cluster_sim.engine.shared_rates.filling.fill` does, at each level by a
    walk over all that still rises: with so few classes it takes less than a heap.
    """
    first, behind = groups.ptr[group], groups.ptr[group + 1]
    for index in range(first, behind):
        resource = groups.resource[index]
        filling.spare[resource] = paths.capacity[resource]
        filling.weight[resource] = whole[resource]
    rising = 0
    for number in range(groups.first[group], groups.first[group + 1]):
        if paths.members[number]:
            filling.classes[rising] = number
            rising += 1
    while rising:
        level = UNLIMITED
        for index in range(first, behind):
            resource = groups.resource[index]
            if filling.weight[resource]:
                filling.key[resource] = filling.spare[resource] // filling.weight[resource]
                level = min(level, filling.key[resource])
        for index in range(rising):
            level = min(level, paths.cap[filling.classes[index]])
        rising = _settle_full(paths, filling, rising, level)


@inlined
def _settle_full(paths: Paths, filling: Filling, rising: int, level: int) -> int:
    """Settle the classes that are full at a level; returns the number of those that rise on."""
    left = 0
    for index in range(rising):
        number = filling.classes[index]
        full = paths.cap[number] == level
        for share in range(paths.ptr[number], paths.ptr[number + 1]):
            full = full or filling.key[paths.resource[share]] == level
        if not full:
            filling.classes[index], filling.classes[left] = filling.classes[left], number
            left += 1
        elif paths.rate[number] != level:
            paths.rate[number] = level
            filling.changed[filling.sizes[CHANGED]] = number
            filling.sizes[CHANGED] += 1
    if left:  # the full ones, now behind those, leave their share
        for index in range(left, rising):
            number = filling.classes[index]
            for share in range(paths.ptr[number], paths.ptr[number + 1]):
                resource = paths.resource[share]
                weight = paths.members[number] * paths.weight[share]
                filling.weight[resource] -= weight
                filling.spare[resource] -= weight * level
    return left


def group_classes(ptr: IntArray, resource: IntArray, resources: int) -> tuple[IntArray, Groups]:
    """Put classes into groups.

    ``ptr, resource`` (classes + 1,), (shares,): class c crosses ``resource[ptr[c]:ptr[c + 1]]``.
    ``resources``: number of resources.

    Returns ``order`` (classes,): the classes in the order in which groups are of one piece.
    ``groups``: groups of the classes as they are numbered in this order.
    """
    classes = len(ptr) - 1
    component = np.empty(classes, np.int32)  # by the number of one of its resources
    root = np.arange(resources, dtype=np.int32)
    if classes:
        _find_components(ptr, np.ascontiguousarray(resource, np.int32), root, component)
    alone = np.flatnonzero(component == NO_GROUP)  # classes that cross nothing
    component[alone] = resources + np.arange(len(alone))
    order = np.argsort(component, kind="stable")
    component = component[order]
    size = np.bincount(component, minlength=resources)
    together = size[component] <= FEW_CLASSES
    begins = np.ones(classes, np.bool_)
    begins[1:] = (component[1:] != component[:-1]) | ~together[1:]
    first = np.flatnonzero(begins)
    count = len(first)
    group_of = np.full(len(size), NO_GROUP, np.int32)
    group_of[component[first[together[first]]]] = np.flatnonzero(together[first])
    of_resource = group_of[root]
    crossed = np.argsort(of_resource, kind="stable")[np.count_nonzero(of_resource < 0) :]
    length = np.bincount(of_resource[crossed], minlength=count)
    return order, Groups(
        of_class=(np.cumsum(begins) - 1).astype(np.int32),
        of_resource=of_resource,
        first=np.append(first, classes).astype(np.int32),
        ptr=np.concatenate([[0], np.cumsum(length)]).astype(np.int32),
        resource=crossed.astype(np.int32),
        small=together[first].astype(np.uint8),
        touched=np.empty(count, np.int32),
        listed=np.zeros(count, np.uint8),
        length=np.zeros(1, np.int64),
    )


@lean
def _find_components(
    ptr: IntArray, resource: IntArray, root: IntArray, component: IntArray
) -> None:
    """Unite the resources that each class crosses; ``root`` is each resource's own at first."""
    for number in range(len(component)):
        for share in range(ptr[number] + 1, ptr[number + 1]):
            one, other = _root(root, resource[share - 1]), _root(root, resource[share])
            root[max(one, other)] = min(one, other)
    for index in range(len(root)):
        root[index] = _root(root, index)
    for number in range(len(component)):
        if ptr[number] < ptr[number + 1]:
            component[number] = root[resource[ptr[number]]]
        else:
            component[number] = NO_GROUP


@inlined
def _root(root: IntArray, resource: int) -> int:
    """Return the resource that stands for a component, and shorten the way to it."""
    while root[resource] != resource:
        root[resource] = root[root[resource]]
        resource = root[resource]
    return resource
