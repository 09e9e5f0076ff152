"""Algebra of half-open time intervals by group, exact in integers and by array arithmetic.

A group is whatever time is counted for, usually a rank; intervals of one group may overlap. The
rows of a group are sorted by start once; the length of a union is then one running maximum, and
the time for which a category is the first of a list is the difference of two unions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule import IntArray

BLOCK_ROWS = 2**20
"""Rows worked on at once: enough for numpy, few enough for the processor's cache."""


@dataclass(frozen=True, eq=False)
class Intervals:
    """Half-open intervals ``[start, end)`` of groups 0 … groups − 1; empty ones count for nothing.

    Attributes
    ----------
    group, start_ps, end_ps : int array (rows,)
    groups : int
    """

    group: IntArray
    start_ps: IntArray
    end_ps: IntArray
    groups: int

    def __len__(self) -> int:
        return len(self.group)


def union_ps(intervals: Intervals) -> IntArray:
    """Time in which at least one interval of a group is on [ps], int64 (groups,).

    Examples
    --------
    >>> spans = Intervals(np.array([0, 0, 1]), np.array([0, 3, 2]), np.array([5, 8, 4]), 2)
    >>> union_ps(spans).tolist()
    [8, 2]
    """
    return attribute_ps(intervals, np.zeros(len(intervals), np.int8), 1)[:, 0]


def attribute_ps(
    intervals: Intervals, category: IntArray, categories: int, total_ps: int | None = None
) -> IntArray:
    """Give every instant of every group to the first category that is on.

    Parameters
    ----------
    intervals : Intervals
    category : int array (rows,)
        0 … categories − 1; the smaller goes first.
    categories : int
    total_ps : int, optional
        Length of each group's time [ps], from 0; by default the latest end. Nothing after it
        counts.

    Returns
    -------
    int64 array (groups, categories + 1)
        [ps]; the last column is the time with nothing on. Each row sums to ``total_ps`` exactly.

    Examples
    --------
    >>> spans = Intervals(np.array([0, 0]), np.array([0, 3]), np.array([5, 8]), 1)
    >>> attribute_ps(spans, np.array([1, 0]), 2, total_ps=10).tolist()
    [[5, 3, 2]]
    """
    total = int(intervals.end_ps.max(initial=0)) if total_ps is None else total_ps
    covered = np.zeros((intervals.groups, categories + 1), np.int64)
    covered[:, categories] = total
    for rows in _blocks(intervals.group, intervals.start_ps, total):
        _cover(covered, rows, intervals, category, total)
    covered[:, 1:] -= covered[:, :-1].copy()
    return covered


def merged(intervals: Intervals) -> Intervals:
    """Join intervals of a group that touch or overlap; the result is in order of group and start.

    Examples
    --------
    >>> m = merged(Intervals(np.array([0, 0, 0]), np.array([5, 0, 9]), np.array([9, 6, 11]), 1))
    >>> m.start_ps.tolist(), m.end_ps.tolist()
    ([0], [11])
    """
    pieces, _ = _pieces(intervals)
    return pieces


def gaps(intervals: Intervals, total_ps: int) -> tuple[Intervals, IntArray]:
    """Times of each group from 0 to ``total_ps`` in which none of its intervals is on.

    Returns
    -------
    Intervals
        In order of group and time.
    int array (gaps,)
        The row that starts where the gap ends, the smallest of several; -1 at ``total_ps``.

    Examples
    --------
    >>> g, row = gaps(Intervals(np.array([0, 0]), np.array([2, 6]), np.array([4, 7]), 2), 9)
    >>> list(zip(g.group.tolist(), g.start_ps.tolist(), g.end_ps.tolist(), row.tolist()))
    [(0, 0, 2, 0), (0, 4, 6, 1), (0, 7, 9, -1), (1, 0, 9, -1)]
    """
    busy, first_row = _pieces(intervals)
    # A gap before each piece, and one after the last of each group.
    after = np.searchsorted(busy.group, np.arange(intervals.groups), side="right")
    group = np.insert(busy.group, after, np.arange(intervals.groups))
    end = np.insert(busy.start_ps, after, total_ps)
    row = np.insert(first_row, after, -1)
    start = np.zeros(len(end), np.int64)
    start[1:] = np.insert(busy.end_ps, after, 0)[:-1]
    real = end > start
    return Intervals(group[real], start[real], end[real], intervals.groups), row[real]


def _pieces(intervals: Intervals) -> tuple[Intervals, IntArray]:
    """Merged intervals, and for each the smallest row that starts where it starts."""
    on = np.flatnonzero(intervals.end_ps > intervals.start_ps)
    group, start, end = intervals.group[on], intervals.start_ps[on], intervals.end_ps[on]
    total = int(end.max(initial=0))
    found: list[tuple[IntArray, ...]] = [(np.empty(0, np.int64),) * 4]
    for rows in _blocks(group, start, total):
        base = (group[rows].astype(np.int64) - int(group[rows[0]])) * (total + 1)
        begin, reach = base + start[rows], np.maximum.accumulate(base + end[rows])
        new = np.ones(len(rows), np.bool_)
        new[1:] = begin[1:] > reach[:-1]
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(rows)) - 1
        same = np.flatnonzero(np.append(True, begin[1:] > begin[:-1]))
        smallest = np.minimum.reduceat(on[rows], same)[np.searchsorted(same, first)]
        ends = reach[last] - base[last]
        found.append((group[rows[first]], start[rows[first]], ends, smallest))
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    group, start, end, smallest = columns
    return Intervals(group, start, end, intervals.groups), smallest


def _cover(
    covered: IntArray, rows: IntArray, intervals: Intervals, category: IntArray, total: int
) -> None:
    """Write, for the groups of some rows, the length of the union of categories 0 … k at k."""
    group = intervals.group[rows].astype(np.int64)
    first = int(group[0])
    base = (group - first) * (total + 1)
    begin = base + np.minimum(intervals.start_ps[rows], total)
    end = base + np.minimum(intervals.end_ps[rows], total)
    code = category[rows]
    last = int(group[-1]) + 1
    for k in range(covered.shape[1] - 1):
        on = np.flatnonzero(code <= k)
        if not len(on):
            continue
        until = end[on]
        new_from = begin[on]
        new_from[1:] = np.maximum(new_from[1:], np.maximum.accumulate(until)[:-1])
        running = np.concatenate([[0], np.cumsum(np.maximum(until - new_from, 0))])
        edges = np.searchsorted(group[on], np.arange(first, last + 1))
        covered[first:last, k] = np.diff(running[edges])


def _blocks(group: IntArray, start: IntArray, total: int) -> Iterator[IntArray]:
    """Row numbers by group and start, a block of whole groups at a time."""
    order = stable_order(group)
    bounds = np.searchsorted(group[order], np.arange(int(group.max(initial=-1)) + 2))
    most_groups = max(1, 2**62 // (total + 1))
    low = 0
    while low < len(bounds) - 1:
        high = int(np.searchsorted(bounds, bounds[low] + BLOCK_ROWS, side="right")) - 1
        high = min(max(high, low + 1), low + most_groups)
        rows = order[bounds[low] : bounds[high]]
        if len(rows):
            key = (group[rows].astype(np.int64) - low) * (total + 1)
            key += np.minimum(start[rows], total)
            sorted_already = bool(np.all(key[1:] >= key[:-1]))
            yield rows if sorted_already else rows[np.argsort(key)]
        low = high


def stable_order(codes: IntArray) -> IntArray:
    """Rows ordered by a small non-negative code, equals in place: 16 bits at a time (radix)."""
    if np.all(codes[1:] >= codes[:-1]):
        return np.arange(len(codes))
    if codes.dtype.itemsize <= 2:
        return np.argsort(codes, kind="stable")
    order = np.argsort((codes & 0xFFFF).astype(np.uint16), kind="stable")
    high = int(codes.max()) >> 16
    if high:
        order = order[np.argsort((codes[order] >> 16).astype(np.uint16), kind="stable")]
    return order
