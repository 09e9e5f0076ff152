"""Gaps of a demand file: periods without a row that must have had requests all the same."""

from __future__ import annotations

import numpy as np

from topologies.arrays import BoolArray, FloatArray
from workloads.demand.trace import MINUTES_PER_DAY

SURE = 20.0
"""Mean requests of the neighbours from which an empty period is a gap. A Poisson period of that
mean is empty by chance once in 5e8."""
SHORT = 120
"""Longest gap that is bridged by a line [minutes]; a longer one takes the same hours of another
day."""


def filled(
    requests: FloatArray, present: BoolArray, minutes: int, *, counts: bool
) -> tuple[FloatArray, BoolArray]:
    """Fill the gaps of a series, and return their places.

    Periods without a row stay without requests if their neighbours have so few that chance explains
    it. Otherwise they are a gap, in which nobody counted: a short gap is bridged by a line, a
    longer one takes the same hours of the nearest day that has them.

    Parameters
    ----------
    requests : float array (periods,)
        Requests of each period; 0 where it has no row.
    present : bool array (periods,)
        Whether the period has a row.
    minutes : int
        Length of a period.
    counts : bool
        Whether ``requests`` counts requests; every period of a shape without a row is a gap.

    Returns
    -------
    requests : float array (periods,)
        Requests with the gaps filled.
    gaps : bool array (periods,)
        Whether the period was filled.

    Examples
    --------
    >>> present = np.array([True, False, True])
    >>> values, gaps = filled(np.array([100.0, 0.0, 140.0]), present, 1, counts=True)
    >>> values.tolist(), gaps.tolist()
    ([100.0, 120.0, 140.0], [False, True, False])
    >>> filled(np.array([3.0, 0.0, 2.0]), present, 1, counts=True)[0].tolist()
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
    """Begin and end (exclusive) of every run of absent periods."""
    # The first and the last period always have a row, so changes come in pairs.
    change = np.flatnonzero(np.diff(absent.astype(np.int8)))
    return [(int(first) + 1, int(last) + 1) for first, last in change.reshape(-1, 2)]


def _other_day(
    requests: FloatArray, present: BoolArray, first: int, last: int, day: int, line: FloatArray
) -> FloatArray:
    """Requests of the same hours of the nearest day that has them, an earlier day first.

    ``day`` are the periods of a day. Periods that no day has keep the values of ``line``.
    """
    values = line.copy()
    is_open = np.ones(last - first, bool)
    place = np.arange(first, last)
    for days in sorted(range(-len(present) // day, len(present) // day + 1), key=abs):
        other = place + days * day
        fills = is_open & (other >= 0) & (other < len(present))
        fills[fills] = present[other[fills]]
        values[fills] = requests[other[fills]]
        is_open &= ~fills
    return values
