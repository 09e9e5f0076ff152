"""Columns of the compiled engine: those of ops that it reads, and those that it writes."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from cluster_sim.schedule.table import BoolArray, IntArray

NO_OP = cast(int, np.int64(-1))
"""Ends a chain of ops that are linked by ``State.next``. Not a literal, for each of which numba
would compile a version of a function."""


class Ops(NamedTuple):
    """The schedule, as the engine reads it. Columns that a schedule has no use for are empty."""

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

    An op is in one list at a time, so one ``next`` serves them all: the agenda (from when its last
    edge is counted until it is ready, and while it runs), the arrivals of an instant, the queue of
    its resource, or those parked at a dead one. ``end`` is its time in the agenda.
    """

    ready: IntArray
    start: IntArray
    end: IntArray
    pending: IntArray  # edges not yet counted
    next: IntArray
    child: IntArray  # first child in the heap of a queue; of a flow in flight its berth
    notes: IntArray  # see below


class Speeds(NamedTuple):
    """Faults, and the speeds P/Q that they leave. All empty when there are none."""

    time: IntArray  # of each fault, as its row has it …
    resource: IntArray
    to_top: IntArray
    to_bottom: IntArray
    fails: BoolArray
    top: IntArray  # P of each resource now
    bottom: IntArray  # Q
    parked: IntArray  # chain of the flows that wait for a dead resource, by resource
    lost: IntArray  # FAILED or DOOMED, by op
    due: IntArray  # when an edge from a start elapses, by edge; -1 while not counted
    attempts: IntArray  # (op, start, end) of each run that was lost, with room for all
    reached: IntArray  # ops to look at behind one that failed


class Calls(NamedTuple):
    """Routines of the schedule and their calls. All but ``clash`` are empty when there are none."""

    routine: IntArray  # that a join calls or is the last op of, -1 for none, by op
    first: IntArray  # op of each routine, and behind them the number of all ops
    pending: IntArray  # edges into each op
    caller: IntArray  # join for which each routine runs now, -1 for none
    clash: IntArray  # [routine that was called while it ran, or -1]


ARRIVED, LAST_ARRIVED, TROUBLE, STOP, ENDED, ATTEMPTS, FAULT, TOUCHED, STREAMS, FRESH = range(10)
NOTES = 10
"""Places in ``State.notes``: the ends of the chain of arrivals, an op that would pass the horizon
or -1, whether to stop after this instant, and how many ops ended, attempts, faults that happened,
resources touched, ends of flows planned and flows started at this instant there are."""
