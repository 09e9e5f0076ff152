"""Stretches of time in which ops ran, by groups of ops, from which measures are made.

Half-open intervals of a group may overlap. Sorted by start, a union is one running maximum, and the
time for which a category is the first of a list the difference of two unions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import compiled
from cluster_sim.engine.times import DONE, RUNNING
from cluster_sim.schedule.table import Codes, Label
from cluster_sim.trace.trace import Trace
from topologies.support.arrays import BoolArray, IntArray, present
from topologies.support.errors import InputError, suggestion

BLOCK_ROWS = 2**20  # rows processed at once: enough for numpy, few enough for the processor's cache
TYPES = (np.int32, np.int64, np.int64)
"""Types of groups, starts and ends for which the loops over rows are compiled."""


@dataclass(frozen=True, eq=False)
class Intervals:
    """Half-open intervals ``[start, end)`` of groups 0 … groups − 1; empty ones have no effect."""

    group: IntArray
    start_ps: IntArray
    end_ps: IntArray
    groups: int  # some of which may have no interval

    def __len__(self) -> int:
        return len(self.group)


def shares_ps(
    intervals: Intervals, category: IntArray, categories: int, total_ps: int | None = None
) -> tuple[IntArray, IntArray]:
    """Attribute each group's time to the first active category, and measure all active time [ps].

    ``category`` (rows,): from 0; the smaller takes precedence, and ``categories`` or more is left
    out. What comes after ``total_ps``, by default the latest end, is not counted. Returns (groups,
    categories + 1), of which the last column is the time in which none is active, so that each row
    sums to ``total_ps`` exactly; and (groups, categories).

    >>> spans = Intervals(np.array([0, 0]), np.array([0, 3]), np.array([5, 8]), 1)
    >>> first, active = shares_ps(spans, np.array([1, 0]), 2)
    >>> first.tolist(), active.tolist()
    ([[5, 3, 0]], [[5, 5]])
    """
    total = int(intervals.end_ps.max(initial=0)) if total_ps is None else total_ps
    code = np.asarray(category, np.uint16)
    columns = (intervals.group, intervals.start_ps, intervals.end_ps)
    group, start, end = (np.ascontiguousarray(c, t) for c, t in zip(columns, TYPES, strict=True))
    spans = _Spans(group, start, end, code)
    unions = _Unions(
        np.zeros((2, categories), np.int64),
        np.zeros((intervals.groups, categories + 1), np.int64),
        np.zeros((intervals.groups, categories), np.int64),
    )
    unions.together[:, categories] = total
    for rows in _blocks(intervals, code < categories, total):
        _cover(rows, spans, total, unions)
    first = unions.together
    first[:, 1:] -= first[:, :-1].copy()
    return first, unions.alone


class _Spans(NamedTuple):
    """Columns of intervals with the category of each, in the types that loops are compiled for."""

    group: IntArray
    start_ps: IntArray
    end_ps: IntArray
    category: IntArray


class _Unions(NamedTuple):
    """Lengths of unions while a loop goes through rows in order of group and start [ps]."""

    reach: IntArray  # (2, categories): latest end of categories 0 … k together, and of k alone
    together: IntArray  # (groups, categories or more): time covered by categories 0 … k together
    alone: IntArray  # (groups, categories): time covered by category k


def gaps(intervals: Intervals, total_ps: int) -> tuple[Intervals, IntArray]:
    """Find each group's gaps to ``total_ps``, and the first row that starts behind each or -1."""
    busy, first_row = _pieces(intervals)
    # A gap before each piece, and one after the last of each group.
    after = np.searchsorted(busy.group, np.arange(intervals.groups), side="right")
    group = np.insert(busy.group, after, np.arange(intervals.groups))
    end = np.insert(busy.start_ps, after, total_ps)
    row = np.insert(first_row, after, -1)
    start = np.zeros(len(end), np.int64)
    start[1:] = np.insert(busy.end_ps, after, 0)[:-1]
    is_gap = end > start
    return Intervals(group[is_gap], start[is_gap], end[is_gap], intervals.groups), row[is_gap]


def _pieces(intervals: Intervals) -> tuple[Intervals, IntArray]:
    """Return merged intervals, and for each the smallest row that starts where it starts."""
    total = int(intervals.end_ps.max(initial=0))
    pieces: list[tuple[IntArray, ...]] = [(np.empty(0, np.int64),) * 4]
    for rows in _blocks(intervals, intervals.end_ps > intervals.start_ps, total):
        group = intervals.group[rows]
        # Groups are laid one behind the other on one axis of time, so that a single running
        # maximum serves them all.
        base = (group.astype(np.int64) - int(group[0])) * (total + 1)
        begin = base + intervals.start_ps[rows]
        reach = np.maximum.accumulate(base + intervals.end_ps[rows])
        new = np.ones(len(rows), np.bool_)
        new[1:] = begin[1:] > reach[:-1]
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(rows)) - 1
        same = np.flatnonzero(np.append(True, begin[1:] > begin[:-1]))
        smallest = np.minimum.reduceat(rows, same)[np.searchsorted(same, first)]
        starts, ends = (reached - base[first] for reached in (begin[first], reach[last]))
        pieces.append((group[first], starts, ends, smallest))
    group, start, end, smallest = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return Intervals(group, start, end, intervals.groups), smallest


def _blocks(intervals: Intervals, counted: BoolArray, total: int) -> Iterator[IntArray]:
    """Yield the rows that are counted, by group and start, in blocks of whole groups."""
    order, bounds = _by_group(intervals, counted)
    most_groups = max(1, 2**62 // (total + 1))  # keys of group and start must fit in 64 bits
    low = 0
    while low < len(bounds) - 1:
        high = int(np.searchsorted(bounds, bounds[low] + BLOCK_ROWS, side="right")) - 1
        high = min(max(high, low + 1), low + most_groups)
        rows = order[bounds[low] : bounds[high]]
        if len(rows):
            key = (intervals.group[rows].astype(np.int64) - low) * (total + 1)
            key += np.minimum(intervals.start_ps[rows], total)
            # Ops are numbered nearly in the order of their starts; a stable sort (timsort) only
            # merges such runs.
            yield rows[np.argsort(key, kind="stable")]
        low = high


def _by_group(intervals: Intervals, counted: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the rows that are counted in order of group, and where each group begins."""
    rows = np.flatnonzero(counted).astype(np.int32)
    group = intervals.group[rows]
    ends = np.bincount(group, minlength=intervals.groups).cumsum()
    return rows[stable_order(group)], np.concatenate([[0], ends])


@compiled
def _cover(rows: IntArray, spans: _Spans, total: int, unions: _Unions) -> None:
    """Add, group by group, the time that each row covers beyond the rows before it."""
    reach, now = unions.reach, -1
    for row in rows:
        if spans.group[row] != now:
            now = spans.group[row]
            reach[:] = 0
        code, start = spans.category[row], spans.start_ps[row]
        until = min(spans.end_ps[row], total)
        if until > reach[1, code]:
            unions.alone[now, code] += max(0, until - max(start, reach[1, code]))
            reach[1, code] = until
        for k in range(code, reach.shape[1]):
            if until <= reach[0, k]:
                break
            unions.together[now, k] += max(0, until - max(start, reach[0, k]))
            reach[0, k] = until


def stable_order(codes: IntArray) -> IntArray:
    """Return the stable order of codes from 0 on, by numpy's radix sort of 16 bits at a time."""
    if np.all(codes[1:] >= codes[:-1]):
        return np.arange(len(codes))
    if codes.dtype.itemsize <= 2:
        return np.argsort(codes, kind="stable")
    order = np.argsort((codes & 0xFFFF).astype(np.uint16), kind="stable")
    high = int(codes.max()) >> 16
    if high:
        order = order[np.argsort((codes[order] >> 16).astype(np.uint16), kind="stable")]
    return order


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
    if column.min(initial=0) < 0 or column.max(initial=0) > 4 * len(column):
        values, code = np.unique(column, return_inverse=True)
        return code, values
    return present(column)[::-1]


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
    """Find each group's gaps, the first op to start after each or -1, and groups' labels."""
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
