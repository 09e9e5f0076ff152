"""Flows in step: those of one class whose work is counted together, by how much is left of each.

Flows of equal size that started one after the other have their work left in this order. So most are
appended to a line, and one that comes out of order goes into a pairing heap beside it, as in the
queues of resources. The smaller of the two heads ends next.
"""

from __future__ import annotations

from cluster_sim.engine.compiler.jit import inlined, internal
from cluster_sim.engine.fast.columns import NO_OP
from cluster_sim.engine.fast.in_flight import Streams


@inlined
def first_in_step(streams: Streams, number: int) -> int:
    """Return the flow in step with the least work left, NO_OP for none."""
    head: int = streams.head[number]
    root: int = streams.root[number]
    if root == NO_OP or (head != NO_OP and streams.left[head] - streams.left[root] <= 0):
        return head
    return root


@inlined
def fall_in_step(streams: Streams, berth: int) -> None:
    """Put a flow that is up to date among the flows in step of its class.

    Flows of equal size that started one after the other have their work left in the same order. So
    most are appended to the line; one that comes out of order goes into the heap beside it.
    """
    number = streams.number[berth]
    streams.left[berth] += streams.work[number]  # may pass 64 bits: only differences are used
    streams.stale[number] = 1
    tail = streams.tail[number]
    if streams.head[number] == NO_OP:
        streams.head[number] = berth
    elif streams.left[berth] - streams.left[tail] >= 0:
        streams.after[tail] = berth
    else:
        streams.child[berth] = NO_OP
        streams.root[number] = _meld(streams, streams.root[number], berth)
        return
    streams.tail[number] = berth
    streams.after[berth] = NO_OP


@inlined
def take_first(streams: Streams, number: int, berth: int) -> None:
    """Take out the flow in step with the least work left, which is in this berth."""
    if berth == streams.head[number]:
        streams.head[number] = streams.after[berth]
    else:
        streams.root[number] = _without_root(streams, berth)


@internal
def take_out(streams: Streams, number: int, berth: int) -> None:
    """Take out a flow in step, wherever it is."""
    if _leave_line(streams, number, berth):
        return
    kept, item = NO_OP, streams.root[number]
    while item != NO_OP:
        rest = _without_root(streams, item)
        if item != berth:
            kept = _meld(streams, kept, item)
        item = rest
    streams.root[number] = kept


@inlined
def _leave_line(streams: Streams, number: int, berth: int) -> bool:
    """Take a flow out of the line of its class, if it is there."""
    before, item = NO_OP, streams.head[number]
    while item != berth:
        if item == NO_OP:
            return False
        before, item = item, streams.after[item]
    if before == NO_OP:
        streams.head[number] = streams.after[berth]
    else:
        streams.after[before] = streams.after[berth]
    if streams.tail[number] == berth:
        streams.tail[number] = before
    return True


@inlined
def _meld(streams: Streams, one: int, other: int) -> int:
    """Merge two heaps of a class, whose siblings are linked by ``after``; return the root."""
    if one == NO_OP:
        return other
    if other == NO_OP:
        return one
    if streams.left[other] - streams.left[one] < 0:
        one, other = other, one
    streams.after[other] = streams.child[one]
    streams.child[one] = other
    return one


@internal
def _without_root(streams: Streams, root: int) -> int:
    """Merge the children of a root to one heap: by pairs, then the pairs from last to first."""
    pairs = NO_OP
    child = streams.child[root]
    streams.child[root] = NO_OP
    while child != NO_OP:
        other = streams.after[child]
        following = NO_OP
        if other != NO_OP:
            following = streams.after[other]
            child = _meld(streams, child, other)
        streams.after[child] = pairs
        pairs = child
        child = following
    heap = NO_OP
    while pairs != NO_OP:
        following = streams.after[pairs]
        heap = _meld(streams, heap, pairs)
        pairs = following
    return heap
