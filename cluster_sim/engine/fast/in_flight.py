"""Tables of the flows in flight, each in a berth, and of their classes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.fast.columns import NO_OP
from cluster_sim.engine.shared_rates.tables import Groups, Paths, Solver
from cluster_sim.engine.times import UNKNOWN_PS
from cluster_sim.schedule.table import IntArray


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
