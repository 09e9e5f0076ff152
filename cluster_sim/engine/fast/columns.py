"""Columns of the compiled engine: the ops that it reads, and the state that it writes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.shared_rates.tables import Groups, Paths, Solver
from cluster_sim.engine.times import UNKNOWN_PS
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

    An op is in one list at a time, so a single ``next`` serves all lists: the agenda (from when its
    last edge is counted until it is ready, and again while it runs), the arrivals of an instant,
    the queue of its resource, or the flows parked at a dead resource. While an op is in the agenda,
    ``end`` is its time there.
    """

    ready: IntArray
    start: IntArray
    end: IntArray
    pending: IntArray  # edges not yet counted
    next: IntArray
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


ARRIVED, LAST_ARRIVED, TROUBLE, STOP, ENDED, ATTEMPTS, FAULT, TOUCHED, STREAMS, FRESH = range(10)
NOTES = 10
"""Places in ``State.notes``. ARRIVED and LAST_ARRIVED are the ends of the chain of arrivals,
TROUBLE is an op that would pass the horizon, or -1, and STOP is whether to stop after this instant.
The others are counts: ops that ENDED, ATTEMPTS that were lost, faults that happened (FAULT),
resources TOUCHED at this instant, planned ends of flows (STREAMS), and flows started at this
instant (FRESH)."""


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
    head: IntArray  # first of the line of flows in step, by work left; -1 for none
    tail: IntArray  # last of this line
    root: IntArray  # root of the heap of flows in step that came out of order; -1 for none
    loose: IntArray  # first of the chain of loose flows, -1 for none
    end: IntArray  # when the first of the flows in step ends [ps], UNKNOWN_PS for none
    stale: IntArray  # 1 if ``end`` is to be computed anew at this instant
    # One element for each berth.
    op: IntArray  # op of the flow in a berth, -1 for none
    number: IntArray  # class of the flow
    left: IntArray  # microbytes left at ``begun``; for a flow in step, that plus ``work`` then
    begun: IntArray  # time at which the flow was brought up to date [ps]
    child: IntArray  # first child in the heap of the class
    after: IntArray  # next sibling in the heap, or next flow in a line or chain
    before: IntArray  # previous flow in the chain of loose flows
    # The order in which flows end.
    vacant: IntArray  # [first of the chain of vacant berths, berths ever used]
    heap: IntArray  # heap by next end: groups, and loose flows as number of groups + berth
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
    groups: Groups


def empty_streams(
    berths: int, slot: IntArray, paths: Paths, solver: Solver, groups: Groups
) -> Streams:
    """Return tables with room for ``berths`` flows in flight, of which there are none yet."""
    classes, items = len(slot), len(groups.small) + berths
    place = np.empty(items, np.int32)  # that of a berth is set when it is first used
    place[: len(groups.small)] = NO_OP
    return Streams(
        slot=slot,
        work=np.zeros(classes, np.int64),
        since=np.zeros(classes, np.int64),
        rate=np.zeros(classes, np.int64),
        head=np.full(classes, NO_OP, np.int32),
        tail=np.full(classes, NO_OP, np.int32),
        root=np.full(classes, NO_OP, np.int32),
        loose=np.full(classes, NO_OP, np.int32),
        end=np.full(classes, UNKNOWN_PS, np.int64),
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
        groups=groups,
    )
