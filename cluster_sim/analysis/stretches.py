"""Stretches of time in which ops ran, and labels as groups of ops, from which measures are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cluster_sim.analysis.intervals import Intervals, gaps, shares_ps
from cluster_sim.engine.times import DONE, RUNNING
from cluster_sim.schedule.table import Codes, Label
from cluster_sim.trace.trace import Trace
from topologies.arrays import IntArray
from topologies.errors import InputError, suggestion


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretches of time in which ops ran, also those that were lost or still ran at the end."""

    op: IntArray
    start_ps: IntArray
    end_ps: IntArray  # where the run was cut short, that instant


def stretches(trace: Trace) -> Stretches:
    """Return the stretches of all ops and lost attempts, whose sum is busy time (rule 8)."""
    times, lost = trace.times, trace.times.attempts
    if not len(lost) and bool((times.status == DONE).all()):
        return Stretches(np.arange(len(trace), dtype=np.int32), times.start_ps, times.end_ps)
    op = np.flatnonzero((times.status == DONE) | (times.status == RUNNING)).astype(np.int32)
    end = times.end_ps[op]
    end[end < 0] = end_of_run_ps(trace)
    return Stretches(
        np.concatenate([op, lost.op]),
        np.concatenate([times.start_ps[op], lost.start_ps]),
        np.concatenate([end, lost.end_ps]),
    )


def end_of_run_ps(trace: Trace) -> int:
    """Return when the run was over [ps]: its latest end, or the instant at which it was stopped."""
    stopped = trace.times.stopped_ps
    latest = int(max(trace.total_ps, trace.times.attempts.end_ps.max(initial=0)))
    return latest if stopped is None else max(stopped, latest)


def drawn_on(trace: Trace) -> IntArray:
    """Return the resource that each op is drawn on: its slot, else its first share, else -1."""
    resource, flows = trace.schedule.resource.astype(np.int64), trace.schedule.flows
    if len(flows):
        bare = resource[flows.op] < 0
        resource[flows.op[bare]] = flows.resource[flows.ptr[:-1][bare]]
    return resource


def groups_of(trace: Trace, label: str) -> tuple[IntArray, Sequence[Any] | IntArray]:
    """Return a label as codes 0 … n − 1 of its n values, and the values, in order."""
    column = label_of(trace, label)
    if isinstance(column, Codes):
        return column.code, column.names
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    # np.unique sorts; where values are small, to count them takes a fraction of the time.
    if low < 0 or high > 4 * len(column):
        values, code = np.unique(column, return_inverse=True)
        return code, values
    present = np.bincount(column, minlength=high + 1) > 0
    values = np.flatnonzero(present)
    if len(values) == high + 1:
        return column, values
    return (np.cumsum(present) - 1)[column], values


def label_of(trace: Trace, name: str) -> Label:
    """Return a label of the schedule, and refuse one that it does not have."""
    labels = trace.schedule.labels
    if name not in labels:
        names = ", ".join(labels) or "none"
        raise InputError(f"no label {name}.{suggestion(name, labels)} The schedule has: {names}.")
    return labels[name]


Order = Sequence[str] | Mapping[str, Sequence[str]]
"""Categories, those that take precedence first: names of a label, or category → its names."""


@dataclass(frozen=True, eq=False)
class CategoryTimes:
    """Time of each category in each group of ops, such as the ops of a rank."""

    groups: Any  # (groups,): value of the label by which ops are grouped
    names: list[str]  # of the categories, those that take precedence first
    active_ps: IntArray  # (groups, categories): time in which a category was active …
    exposed_ps: IntArray  # … and in which it was the first of the list to be [ps]


def category_times(
    trace: Trace, order: Order, *, by: str = "rank", what: str = "what"
) -> CategoryTimes:
    """Measure how long each category was active in each group, and how long it was the first."""
    names, running, code = categories_of(trace, order, what)
    groups, values = by_group(trace, by, running)
    first, active = shares_ps(groups, code, len(names), end_of_run_ps(trace))
    return CategoryTimes(values, names, active, first[:, : len(names)])


def idle_gaps(trace: Trace, *, by: str = "rank") -> tuple[Intervals, IntArray, Any]:
    """Find the gaps in which no op of a group was running, in order of group and time.

    Returns the gaps, the first op of the group to start after each (-1 at the end of the run), and
    the value of the label of each group.
    """
    ran = stretches(trace)
    groups, values = by_group(trace, by, ran)
    idle, row = gaps(groups, end_of_run_ps(trace))
    return idle, np.where(row < 0, -1, ran.op[row]) if len(ran.op) else row, values


def categories_of(trace: Trace, order: Order, what: str) -> tuple[list[str], Stretches, IntArray]:
    """Return the categories, all stretches, and the category of each, their number for none."""
    label = label_of(trace, what)
    if not isinstance(label, Codes):
        raise InputError(f"label {what} holds numbers; give a label of names.")
    members = order if isinstance(order, Mapping) else {name: [name] for name in order}
    number: dict[str, int] = {}
    for k, names in enumerate(members.values()):
        for name in names:
            number.setdefault(name, k)  # a name in two categories counts for the first
    code_of = np.array([number.get(name, len(members)) for name in label.names], np.uint16)
    ran = stretches(trace)
    return list(members), ran, code_of[label.code[ran.op]]


def by_group(trace: Trace, by: str, ran: Stretches) -> tuple[Intervals, Any]:
    """Return stretches as intervals of the groups of a label, and the value of each group."""
    code, values = groups_of(trace, by)
    return Intervals(code[ran.op], ran.start_ps, ran.end_ps, len(values)), values
