"""Gaps of a demand file: periods without a row that cannot have been without requests."""

from __future__ import annotations

import numpy as np

from topologies.arrays import BoolArray, FloatArray
from workloads.demand.trace import MINUTES_PER_DAY

SURE = 20.0
"""Requests of a period from which an empty one is a gap: chance does it once in 5e8."""
SHORT = 120
"""Minutes of a gap that is bridged by a line; a longer one takes the same hours of another day."""


def filled(
    requests: FloatArray, present: BoolArray, minutes: int, *, counts: bool
) -> tuple[FloatArray, BoolArray]:
    """Fill the gaps of a series, and say where they were.

    A stretch of periods without a row stays without requests where its neighbours have so few that
    chance explains it. Otherwise nobody counted: a short gap is bridged by a line, a longer one
    takes the same hours of the nearest day that has them.

    Parameters
    ----------
    requests : float array (periods,)
        0 where there is no row.
    present : bool array (periods,)
        Whether there is a row.
    minutes : int
        Length of a period.
    counts : bool
        Whether ``requests`` counts requests; a shape has no empty periods, only gaps.

    Returns
    -------
    requests : float array (periods,)
    gaps : bool array (periods,)

    Examples
    --------
    >>> there = np.array([True, False, True])
    >>> values, gaps = filled(np.array([100.0, 0.0, 140.0]), there, 1, counts=True)
    >>> values.tolist(), gaps.tolist()
    ([100.0, 120.0, 140.0], [False, True, False])
    >>> filled(np.array([3.0, 0.0, 2.0]), there, 1, counts=True)[0].tolist()
    [3.0, 0.0, 2.0]
    """
    gaps = np.zeros(len(present), bool)
    result = requests.copy()
    day = max(1, MINUTES_PER_DAY // minutes)
    for first, last in _stretches(~present):
        before, after = requests[first - 1], requests[last]
        if counts and (before + after) / 2 < SURE:
            continue
        gaps[first:last] = True
        line = np.linspace(before, after, last - first + 2)[1:-1]
        long = (last - first) * minutes > SHORT
        result[first:last] = _other_day(requests, present, first, last, day, line) if long else line
    return result, gaps


def _stretches(absent: BoolArray) -> list[tuple[int, int]]:
    """First and last, exclusive, of every run; the first and last period always have a row."""
    change = np.flatnonzero(np.diff(absent.astype(np.int8)))
    return [(int(first) + 1, int(last) + 1) for first, last in change.reshape(-1, 2)]


def _other_day(
    requests: FloatArray, present: BoolArray, first: int, last: int, day: int, line: FloatArray
) -> FloatArray:
    """Requests of the same hours of the nearest day that has them, an earlier one first."""
    values = line.copy()
    open_ = np.ones(last - first, bool)
    place = np.arange(first, last)
    for back in sorted(range(-len(present) // day, len(present) // day + 1), key=abs):
        other = place + back * day
        fills = open_ & (other >= 0) & (other < len(present))
        fills[fills] = present[other[fills]]
        values[fills] = requests[other[fills]]
        open_ &= ~fills
    return values
