"""Columns of the compiled engine: the ops that it reads, and the state that it writes."""

from __future__ import annotations

from typing import NamedTuple

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
