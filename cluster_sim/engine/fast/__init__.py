"""The compiled engine, which follows the rules of the reference engine on arrays of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.fast.columns import (
    ATTEMPTS,
    ENDED,
    FAULT,
    NO_OP,
    NOTES,
    STOP,
    TROUBLE,
    Ops,
    Speeds,
    State,
    empty_agenda,
    empty_queues,
    empty_streams,
)
from cluster_sim.engine.fast.loop import Run, calls_of, held_back, no_calls, play
from cluster_sim.engine.faults import Faults
from cluster_sim.engine.shared_rates.tables import share_tables
from cluster_sim.engine.times import DONE, NEVER, Attempts, HorizonError, Times, settle
from cluster_sim.schedule.repeats import Routines
from cluster_sim.schedule.table import HORIZON_PS, IntArray, Schedule


def simulate(
    schedule: Schedule,
    faults: Faults,
    until_ps: int | None = None,
    until_ops: Sequence[int] = (),
    routines: Routines | None = None,
) -> Times:
    """Run a schedule in compiled code; with ``routines``, return times outside of them."""
    run, outside = new_run(schedule, faults, until_ops), len(schedule)
    state = run.state
    if routines is not None:
        outside = routines.outside
        run = run._replace(calls=calls_of(schedule, routines))
        held_back(routines, state.pending)
    now = play(run, HORIZON_PS if until_ps is None else until_ps)
    if run.calls.clash[0] != NO_OP:
        raise ValueError(f"routine {run.calls.clash[0]} is called while it runs")
    if state.notes[TROUBLE] != NO_OP:
        raise HorizonError.of(int(state.notes[TROUBLE]))
    stopped = now if until_ps is not None or state.notes[STOP] else None
    moving = moving_flows(run)
    if stopped is None and len(moving):
        raise HorizonError.of(int(moving.min()))
    rows = run.speeds.attempts[: state.notes[ATTEMPTS]]
    rows = rows[np.lexsort((rows[:, 0], rows[:, 2]))]
    # Copies, where routines have ops of their own, so that the columns of all ops are freed.
    columns = (state.ready, state.start, state.end)
    ready, start, end = (c if routines is None else c[:outside].copy() for c in columns)
    times = Times(
        ready_ps=ready,
        start_ps=start,
        end_ps=end,
        status=run.speeds.lost if len(faults) else np.zeros(outside, np.uint8),
        attempts=Attempts(rows[:, 0].astype(np.int32), rows[:, 1], rows[:, 2]),
        dead=np.flatnonzero(run.speeds.top == 0).astype(np.int32),
        stopped_ps=stopped,
    )
    faults_ahead = bool(state.notes[FAULT] < len(faults))
    if state.notes[ENDED] == len(schedule) == outside and not faults_ahead:
        times.status.fill(DONE)
        return replace(times, stopped_ps=None)
    pending = state.pending[:outside]
    return settle(times, pending, now=now, on_its_way=len(moving) > 0 or faults_ahead)


def new_run(
    schedule: Schedule, faults: Faults, until_ops: Sequence[int], berths: int | None = None
) -> Run:
    """Return the tables of a run before its first instant, with room for ``berths`` flows."""
    # np.unique loads numpy's masked arrays, which takes longer than many a run
    faulty = np.unique(faults.resource) if len(faults) else faults.resource
    number, slot, paths, solver = share_tables(schedule, faulty)
    room = _most_in_flight(schedule) if berths is None else berths
    return Run(
        ops=_ops(schedule, until_ops, number),
        state=empty_state(len(schedule)),
        agenda=empty_agenda(len(schedule)),
        queues=empty_queues(_column(schedule.resources.slots, np.int64)),
        streams=empty_streams(room, _column(slot, np.int64), paths, solver),
        speeds=_speeds(schedule, faults),
        calls=no_calls(),
    )


def _column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> Any:
    """Return values as an array of the one memory layout for which the engine is compiled."""
    return np.require(values, dtype, ["C", "A", "W"])


def _ops(schedule: Schedule, until_ops: Sequence[int], number: IntArray) -> Ops:
    """Columns of the ops; ``number`` is the class of each flow."""
    edges, flows = schedule.edges, schedule.flows
    flow = np.zeros(len(schedule) if len(flows) else 0, np.int32)
    flow[flows.op] = number
    watched = np.zeros(len(schedule) if len(until_ops) else 0, np.bool_)
    watched[list(until_ops)] = True
    return Ops(
        kind=_column(schedule.kind, np.uint8),
        resource=_column(schedule.resource, np.int32),
        duration=_column(schedule.duration_ps, np.int64),
        priority=_column(schedule.priority, np.int32),
        ptr=_column(edges.ptr, np.int64),
        dst=_column(edges.dst, np.int32),
        lag=_column(edges.lag_ps, np.int64),
        from_start=_column([] if edges.from_start is None else edges.from_start, np.bool_),
        flow=flow,
        size=_column(schedule.size_bytes if len(flows) else [], np.int64),
        watched=watched,
    )


def empty_state(ops: int) -> State:
    """Return the state of this many ops before any of them has arrived."""
    notes = np.zeros(NOTES, np.int64)
    notes[TROUBLE] = NO_OP
    return State(
        ready=np.zeros(ops, np.int64),
        start=np.full(ops, NEVER, np.int64),
        end=np.full(ops, NEVER, np.int64),
        pending=np.zeros(ops, np.int32),
        next=np.empty(ops, np.int32),
        arrived=np.empty(ops + 1, np.int32),
        child=np.empty(ops, np.int32),
        notes=notes,
    )


def _speeds(schedule: Schedule, faults: Faults) -> Speeds:
    resources = len(schedule.resources) if len(faults) else 0
    starts = len(faults) and schedule.edges.from_start is not None
    return Speeds(
        time=_column(faults.time_ps, np.int64),
        resource=_column(faults.resource, np.int32),
        to_top=_column(faults.numerator, np.int64),
        to_bottom=_column(faults.denominator, np.int64),
        fails=_column(faults.fails, np.bool_),
        top=np.ones(resources, np.int64),
        bottom=np.ones(resources, np.int64),
        parked=np.full(resources, NO_OP, np.int64),
        lost=np.zeros(len(schedule) if len(faults) else 0, np.uint8),
        due=np.full(len(schedule.edges) if starts else 0, NEVER, np.int64),
        attempts=np.empty((_most_attempts(schedule, faults), 3), np.int64),
        reached=np.empty(len(schedule) if faults.fails.any() else 0, np.int32),
    )


def _most_attempts(schedule: Schedule, faults: Faults) -> int:
    """Bound the lost runs of ops: those on the slots of resources that die, and their flows."""
    if not len(faults):
        return 0
    deaths = np.bincount(faults.resource[faults.numerator == 0], minlength=len(schedule.resources))
    holds = np.bincount(schedule.resource[schedule.resource >= 0], minlength=len(deaths))
    shares = np.bincount(schedule.flows.resource, minlength=len(deaths))
    most = np.minimum(holds, schedule.resources.slots) + shares
    # With edges from starts, ops may also be lost that began on the start of a failed op.
    edges = schedule.edges.from_start if faults.fails.any() else None
    return int(deaths @ most) + (0 if edges is None else int(np.count_nonzero(edges)))


def _most_in_flight(schedule: Schedule) -> int:
    """Bound the flows in flight at once: one for each slot, and all flows without a slot."""
    held = schedule.resource[schedule.flows.op]
    slots = np.zeros(len(schedule.resources), np.int64)
    slots[held[held >= 0]] = 1
    slots *= schedule.resources.slots
    return min(len(held), int(slots.sum()) + int(np.count_nonzero(held < 0)))


def moving_flows(run: Run) -> IntArray:
    """Return the ops of the flows in flight whose rate is not 0."""
    streams = run.streams
    berths = np.flatnonzero(streams.op[: streams.vacant[1]] != NO_OP)
    return streams.op[berths[streams.paths.rate[streams.number[berths]] > 0]]
