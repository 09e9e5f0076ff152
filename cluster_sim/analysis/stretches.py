"""Stretches of time in which ops ran, and labels as groups of ops, from which measures are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
