"""Queues of ops that are ready for a resource and wait for a slot, smallest first (rule 4).

Most ops come in the order in which they will start, and are appended to a list. An op that comes
out of order goes into a pairing heap beside the list. The smaller of the two heads starts next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import inlined
from cluster_sim.engine.fast.columns import NO_OP, TOUCHED, Ops, State
from cluster_sim.schedule.table import IntArray


class Queues(NamedTuple):
    """One queue for each resource."""

    free: IntArray  # free slots
    head: IntArray  # first op of the list
    tail: IntArray  # last op of the list
    root: IntArray  # root of the heap
    marked: IntArray  # 1 when the resource is in ``touched``
    touched: IntArray  # resources where an op may start at this instant


def empty_queues(slots: IntArray) -> Queues:
    """Return queues without ops, all slots free."""
    resources = len(slots)
    return Queues(
        slots.copy(),
        np.full(resources, NO_OP, np.int64),
        np.empty(resources, np.int64),
        np.full(resources, NO_OP, np.int64),
        np.zeros(resources, np.uint8),
        np.empty(resources, np.int64),
    )


@inlined
def touch(queues: Queues, state: State, resource: int) -> None:
    """Mark a resource as one where an op may start at this instant."""
    if not queues.marked[resource]:
        queues.marked[resource] = 1
        queues.touched[state.notes[TOUCHED]] = resource
        state.notes[TOUCHED] += 1


@inlined
def free_slot(queues: Queues, state: State, resource: int) -> None:
    """Free a slot of a resource; if ops wait for one, mark the resource."""
    queues.free[resource] += 1
    if queues.head[resource] != NO_OP or queues.root[resource] != NO_OP:
        touch(queues, state, resource)


@inlined
def before(ops: Ops, state: State, one: int, other: int) -> bool:
    """Return whether one op starts before another, by priority, ready time and number (rule 4)."""
    if ops.priority[one] != ops.priority[other]:
        return bool(ops.priority[one] < ops.priority[other])
    if state.ready[one] != state.ready[other]:
        return bool(state.ready[one] < state.ready[other])
    return one < other


@inlined
def enqueue(queues: Queues, ops: Ops, state: State, resource: int, op: int) -> None:
    """Add a ready op to the queue of a resource."""
    tail = queues.tail[resource]
    if queues.head[resource] == NO_OP:
        queues.head[resource] = op
    elif before(ops, state, tail, op):
        state.next[tail] = op
    else:
        state.child[op] = NO_OP
        queues.root[resource] = meld(ops, state, queues.root[resource], op)
        return
    queues.tail[resource] = op
    state.next[op] = NO_OP


@inlined
def dequeue(queues: Queues, ops: Ops, state: State, resource: int) -> int:
    """Take out and return the smallest op, or ``NO_OP`` if the queue is empty."""
    head: int = queues.head[resource]
    root: int = queues.root[resource]
    if root == NO_OP or (head != NO_OP and before(ops, state, head, root)):
        if head != NO_OP:
            queues.head[resource] = state.next[head]
        return head
    queues.root[resource] = without_root(ops, state, root)
    return root


@inlined
def meld(ops: Ops, state: State, one: int, other: int) -> int:
    """Merge two heaps, whose siblings are linked by ``next``; return the root."""
    if one == NO_OP:
        return other
    if before(ops, state, other, one):
        one, other = other, one
    state.next[other] = state.child[one]
    state.child[one] = other
    return one


@inlined
def without_root(ops: Ops, state: State, root: int) -> int:
    """Merge the children of a root to one heap: by pairs, then the pairs from last to first."""
    pairs = NO_OP
    child = state.child[root]
    while child != NO_OP:
        other = state.next[child]
        following = NO_OP
        if other != NO_OP:
            following = state.next[other]
            child = meld(ops, state, child, other)
        state.next[child] = pairs
        pairs = child
        child = following
    heap = NO_OP
    while pairs != NO_OP:
        following = state.next[pairs]
        heap = meld(ops, state, heap, pairs)
        pairs = following
    return heap
