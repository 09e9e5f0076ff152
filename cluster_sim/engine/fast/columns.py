"""Tables of the compiled engine: the ops that it reads, the state that it writes, and its two
lists.

The agenda is a radix heap of entries by time, for a clock that never runs backwards. Bucket b holds
the times whose highest bit that differs from the clock is bit b - 1. The earliest time is in the
lowest occupied bucket. When the clock moves on to it, the entries of that bucket spread over lower
buckets, so that each moves at most once for each bit. Entries are few, as ops that have arrived and
not ended are, and stay in the processor's cache, where the columns of all ops do not. What happens
at an instant is listed, so that the columns of its ops can be fetched ahead of their turn.

A queue holds the ops that are ready for a resource and wait for a slot, smallest first (rule 4).
Most ops come in the order in which they will start, and are appended to a list. An op that comes
out of order goes into a pairing heap beside the list. The smaller of the two heads starts next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, leading_zeros, trailing_zeros
from cluster_sim.engine.shared_rates.tables import Paths, Solver
from cluster_sim.schedule.table import BoolArray, IntArray

NO_OP = -1  # end of a chain of ops that are linked by State.next


class Ops(NamedTuple):
    """The schedule as the engine reads it; columns that a schedule does not use are empty."""

    kind: IntArray
    resource: IntArray
    duration: IntArray
    priority: IntArray
    ptr: IntArray
    dst: IntArray
    lag: IntArray
    from_start: BoolArray  # (edges,) or empty
    flow: IntArray  # class of the flow that an op is, (ops,) or empty
    size: IntArray  # bytes of a flow, (ops,) or empty
    watched: BoolArray  # ops whose end stops the run, (ops,) or empty


class State(NamedTuple):
    """The state of each op.

    An op is in one list at a time, so a single ``next`` serves both: the queue of its resource, and
    the flows parked at a dead one. While a fixed op runs, ``end`` is when it will end.
    """

    ready: IntArray
    start: IntArray
    end: IntArray
    pending: IntArray  # edges not yet counted
    next: IntArray
    arrived: IntArray  # ring of the ops that arrived at this instant
    child: IntArray  # first child in the heap of a queue; for a flow in flight, its berth
    notes: IntArray  # counters and flags, see ``NOTES``


class Speeds(NamedTuple):
    """Faults, and the speed P/Q of each resource after them; all empty without faults."""

    time: IntArray  # of each fault [ps], as are the next four
    resource: IntArray
    to_top: IntArray  # P of the resource after the fault
    to_bottom: IntArray  # Q
    fails: BoolArray  # whether ops that are lost fail for good
    top: IntArray  # P of each resource now
    bottom: IntArray  # Q
    parked: IntArray  # first flow of the chain that waits for a dead resource, by resource
    lost: IntArray  # FAILED or DOOMED, by op
    due: IntArray  # when an edge from a start elapses, by edge; -1 while not counted
    attempts: IntArray  # (op, start, end) of each run that was lost, with room for all
    reached: IntArray  # stack of ops whose followers are still to be doomed


class Calls(NamedTuple):
    """Routines of the schedule and their calls; without routines, all but ``clash`` are empty."""

    routine: IntArray  # routine that a join calls or whose last op it is, -1 for none, by op
    first: IntArray  # first op of each routine, and behind them the number of all ops
    pending: IntArray  # edges into each op
    caller: IntArray  # join for which each routine runs now, -1 for none
    clash: IntArray  # [routine that was called while it ran, or -1]


ARRIVED, SETTLED, TROUBLE, STOP, ENDED, ATTEMPTS, FAULT, TOUCHED, STREAMS, FRESH, ANEW = range(11)
NOTES = 11
"""Places in ``State.notes``. ARRIVED and SETTLED are the ends of the ring of arrivals,
TROUBLE is an op that would pass the horizon, or -1, and STOP is whether to stop after this instant.
The others are counts: ops that ENDED, ATTEMPTS that were lost, faults that happened (FAULT),
resources TOUCHED at this instant, planned ends of flows (STREAMS), flows started at this instant
(FRESH), and classes whose next end is to be found anew at it (ANEW)."""


class Streams(NamedTuple):
    """The flows in flight, each in a berth, and the classes for which rates are solved.

    All flows of a class have one rate. Flows that saw the same rate changes since they were last
    brought up to date are *in step*: each change takes the same work off all of them. So a class
    counts that work once, and only its flow with the least work left can end next. A flow that
    starts without changing the rate of its class is *loose* until the next change, which is the
    first that brings it up to date (rule 7). The berth of a flow is in ``State.child`` of its op.
    """

    # One element for each class.
    slot: IntArray  # faulty resource whose speed scales the class's cap, -1 for none
    work: IntArray  # microbytes that a flow in step has moved up to ``since``
    since: IntArray  # last change of the rate [ps]
    rate: IntArray  # rate from then on [B/s]
    root: IntArray  # root of the heap of flows in step, by work left; -1 for none
    loose: IntArray  # first of the chain of loose flows, -1 for none
    anew: IntArray  # list of the classes whose flows in step, or their rate, changed …
    stale: IntArray  # … 1 for each in it
    # One element for each berth.
    op: IntArray  # op of the flow in a berth, -1 for none
    number: IntArray  # class of the flow
    left: IntArray  # microbytes left at ``begun``; for a flow in step, that plus ``work`` then
    begun: IntArray  # time at which the flow was brought up to date [ps]
    child: IntArray  # first child in the heap of the class
    after: IntArray  # next sibling in the heap, or next flow in a chain
    before: IntArray  # previous flow in the chain of loose flows
    # The order in which flows end.
    vacant: IntArray  # [first of the chain of vacant berths, berths ever used]
    heap: IntArray  # heap by next end: classes, and loose flows as number of classes + berth
    ends: IntArray  # end of each item of the heap [ps], so that sifting reads nothing else
    place: IntArray  # place of each item in the heap, -1 for none
    fresh: IntArray  # berths of flows that started at this instant
    due: IntArray  # items of the heap that end at this instant …
    ended: IntArray  # … and the ops that do
    # Inputs and state of the solver of rates.
    nominal_cap: IntArray
    nominal_capacity: IntArray
    paths: Paths
    solver: Solver


def empty_streams(berths: int, slot: IntArray, paths: Paths, solver: Solver) -> Streams:
    """Return tables with room for ``berths`` flows in flight, of which there are none yet."""
    classes, items = len(slot), len(slot) + berths
    place = np.empty(items, np.int32)  # that of a berth is set when it is first used
    place[:classes] = NO_OP
    return Streams(
        slot=slot,
        work=np.zeros(classes, np.int64),
        since=np.zeros(classes, np.int64),
        rate=np.zeros(classes, np.int64),
        root=np.full(classes, NO_OP, np.int32),
        loose=np.full(classes, NO_OP, np.int32),
        anew=np.empty(classes, np.int32),
        stale=np.zeros(classes, np.uint8),
        op=np.empty(berths, np.int32),
        number=np.empty(berths, np.int32),
        left=np.empty(berths, np.int64),
        begun=np.empty(berths, np.int64),
        child=np.empty(berths, np.int32),
        after=np.empty(berths, np.int32),
        before=np.empty(berths, np.int32),
        vacant=np.array([NO_OP, 0], np.int64),
        heap=np.empty(items, np.int32),
        ends=np.empty(items, np.int64),
        place=place,
        fresh=np.empty(berths, np.int32),
        due=np.empty(items, np.int32),
        ended=np.empty(berths, np.int32),
        nominal_cap=paths.cap.copy(),
        nominal_capacity=paths.capacity.copy(),
        paths=paths,
        solver=solver,
    )


BITS = 64
NOTHING = np.iinfo(np.int64).max  # time of an empty agenda


class Agenda(NamedTuple):
    """Chains of entries, one for each bucket, with the earliest and latest time of each."""

    head: IntArray
    tail: IntArray
    earliest: IntArray
    latest: IntArray
    clock: IntArray  # [occupied buckets as bits, time that the buckets are relative to]
    vacant: IntArray  # [first of the chain of vacant entries, entries ever used]
    time: IntArray  # of each entry [ps], as are the next two
    what: IntArray  # op that ends, or ~op of one that becomes ready
    after: IntArray  # next entry of the chain
    instant: IntArray  # what happens at the instant that was taken out


def empty_agenda(ops: int) -> Agenda:
    """Return an agenda at time 0, with room for this many ops."""
    return Agenda(
        np.empty(BITS, np.int64),
        np.empty(BITS, np.int64),
        np.empty(BITS, np.int64),
        np.empty(BITS, np.int64),
        np.zeros(2, np.int64),
        np.array([NO_OP, 0], np.int64),
        np.empty(ops, np.int64),
        np.empty(ops, np.int32),
        np.empty(ops, np.int32),
        np.empty(ops, np.int32),
    )


@inlined
def push(agenda: Agenda, what: int, time: int) -> None:
    """Add what happens to an op at a time, which must not be before the clock."""
    entry = agenda.vacant[0]
    if entry == NO_OP:
        entry = agenda.vacant[1]
        agenda.vacant[1] += 1
    else:
        agenda.vacant[0] = agenda.after[entry]
    agenda.time[entry] = time
    agenda.what[entry] = what
    put(agenda, entry, time)


@inlined
def put(agenda: Agenda, entry: int, time: int) -> None:
    """Append an entry to the bucket of its time."""
    bucket = BITS - leading_zeros(time ^ agenda.clock[1])
    if (agenda.clock[0] >> bucket) & 1:
        agenda.after[agenda.tail[bucket]] = entry
        agenda.earliest[bucket] = min(agenda.earliest[bucket], time)
        agenda.latest[bucket] = max(agenda.latest[bucket], time)
    else:
        agenda.clock[0] |= 1 << bucket
        agenda.head[bucket] = entry
        agenda.earliest[bucket] = time
        agenda.latest[bucket] = time
    agenda.tail[bucket] = entry
    agenda.after[entry] = NO_OP


@inlined
def vacate(agenda: Agenda, entry: int) -> None:
    """Free an entry that was taken out, for the next one."""
    agenda.after[entry] = agenda.vacant[0]
    agenda.vacant[0] = entry


@inlined
def next_time(agenda: Agenda) -> int:
    """Earliest time of any entry of the agenda [ps]."""
    if agenda.clock[0] == 0:
        return NOTHING
    earliest: int = agenda.earliest[trailing_zeros(agenda.clock[0])]
    return earliest


@inlined
def take_instant(agenda: Agenda, now: int) -> int:
    """Move the clock to ``now``, the earliest time, and list what happens then; return how much."""
    bucket = trailing_zeros(agenda.clock[0])
    agenda.clock[0] &= agenda.clock[0] - 1
    agenda.clock[1] = now
    entry: int = agenda.head[bucket]
    last: int = agenda.tail[bucket]
    first, listed = entry, 0
    if agenda.latest[bucket] == now:
        while entry != NO_OP:
            agenda.instant[listed] = agenda.what[entry]
            listed += 1
            entry = agenda.after[entry]
        agenda.after[last] = agenda.vacant[0]
        agenda.vacant[0] = first
        return listed
    while entry != NO_OP:
        following = agenda.after[entry]
        if agenda.time[entry] != now:
            put(agenda, entry, agenda.time[entry])
        else:
            agenda.instant[listed] = agenda.what[entry]
            listed += 1
            vacate(agenda, entry)
        entry = following
    return listed


@inlined
def take_all(agenda: Agenda) -> int:
    """Take all entries out of the agenda, as one chain."""
    first = NO_OP
    while agenda.clock[0]:
        bucket = trailing_zeros(agenda.clock[0])
        agenda.clock[0] &= agenda.clock[0] - 1
        entry = agenda.head[bucket]
        while entry != NO_OP:
            following = agenda.after[entry]
            agenda.after[entry] = first
            first = entry
            entry = following
    return first


class Queues(NamedTuple):
    """One queue for each resource."""

    free: IntArray  # free slots
    head: IntArray  # first op of the list
    tail: IntArray  # last op of the list
    tail_priority: IntArray  # of that op
    tail_ready: IntArray  # of that op [ps]
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
        np.empty(resources, np.int64),
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
def before(tables: tuple[Ops, State], one: int, other: int) -> bool:
    """Return whether one op starts before another, by priority, ready time and number (rule 4)."""
    ops, state = tables
    return precedes(
        ops.priority[one], state.ready[one], one, ops.priority[other], state.ready[other], other
    )


@inlined
def precedes(
    priority: int, ready: int, op: int, other_priority: int, other_ready: int, other: int
) -> bool:
    """Return whether an op starts before another one, by what rule 4 compares."""
    if priority != other_priority:
        return priority < other_priority
    if ready != other_ready:
        return ready < other_ready
    return op < other


@inlined
def enqueue(queues: Queues, ops: Ops, state: State, resource: int, op: int) -> None:
    """Add a ready op to the queue of a resource."""
    tail = queues.tail[resource]
    priority, ready = ops.priority[op], state.ready[op]
    if queues.head[resource] == NO_OP:
        queues.head[resource] = op
    elif precedes(
        queues.tail_priority[resource], queues.tail_ready[resource], tail, priority, ready, op
    ):
        state.next[tail] = op
    else:
        state.child[op] = NO_OP
        root = queues.root[resource]
        queues.root[resource] = meld(before, (ops, state), state.next, state.child, root, op)
        return
    queues.tail[resource] = op
    queues.tail_priority[resource] = priority
    queues.tail_ready[resource] = ready
    state.next[op] = NO_OP


@inlined
def dequeue(queues: Queues, ops: Ops, state: State, resource: int) -> int:
    """Take out and return the smallest op, or ``NO_OP`` if the queue is empty."""
    head: int = queues.head[resource]
    root: int = queues.root[resource]
    if root == NO_OP or (head != NO_OP and before((ops, state), head, root)):
        if head != NO_OP:
            queues.head[resource] = state.next[head]
        return head
    queues.root[resource] = without_root(before, (ops, state), state.next, state.child, root)
    return root


Before = Callable[[Any, int, int], bool]
"""Function that returns whether one item of a heap leaves it before another, from some tables."""


@inlined
def meld(
    is_before: Before, tables: Any, following: IntArray, child: IntArray, one: int, other: int
) -> int:
    """Merge two pairing heaps, whose siblings are linked by ``following``; return the root."""
    if one == NO_OP:
        return other
    if other == NO_OP:
        return one
    if is_before(tables, other, one):
        one, other = other, one
    following[other] = child[one]
    child[one] = other
    return one


@inlined
def without_root(
    is_before: Before, tables: Any, following: IntArray, child: IntArray, root: int
) -> int:
    """Merge the children of a root to one heap: by pairs, then the pairs from last to first."""
    pairs = NO_OP
    item = child[root]
    child[root] = NO_OP
    while item != NO_OP:
        other = following[item]
        rest = NO_OP
        if other != NO_OP:
            rest = following[other]
            item = meld(is_before, tables, following, child, item, other)
        following[item] = pairs
        pairs = item
        item = rest
    heap = NO_OP
    while pairs != NO_OP:
        rest = following[pairs]
        heap = meld(is_before, tables, following, child, heap, pairs)
        pairs = rest
    return heap
