"""Forecasts of the load of coming intervals, from the last minutes and earlier days."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY

if TYPE_CHECKING:
    import pandas as pd

EVERY = 15  # minutes between two decisions, and of the interval that each is about
EXCEEDED = 0.001  # share of the minutes in which a load may exceed capacity with a headroom
MOST = 3.0  # largest margin on an expected load
SMOOTHING = 5  # minutes of the trailing mean by which the load is smoothed
RECENT = 15  # minutes whose largest smoothed load counts as the load now
LONGEST = 56 * MINUTES_PER_DAY // EVERY  # errors from which a forecast learns, of eight weeks
REFERENCE = 9  # whole days that hold a load and that of its reference day


def _from_reference(load: FloatArray, first_weekday: int, day: int) -> tuple[FloatArray, int]:
    """Return the load from nine days before a day on, and the day of the week of its begin."""
    days = max(0, day - REFERENCE)
    return load[days * MINUTES_PER_DAY :], (first_weekday + days) % 7


def smoothed(load: FloatArray) -> FloatArray:
    """Trailing mean of five minutes, shorter at the start; (minutes,)."""
    # Sums of five values, unlike differences of longer sums, do not depend on what came before.
    sums = np.array(load, float)
    for back in range(1, SMOOTHING):
        sums[back:] += load[:-back]
    return sums / np.minimum(np.arange(1, len(load) + 1), SMOOTHING)


def recent(smooth: FloatArray, at: IntArray) -> FloatArray:
    """Largest smoothed load of the 15 minutes up to and with each minute ``at``."""
    return _largest_between(smooth, at - RECENT + 1, at + 1)


def same_time(smooth: FloatArray, at: IntArray, lag: IntArray, every: int) -> FloatArray:
    """Largest smoothed load of ``every`` minutes from ``at - lag``; NaN before the first minute."""
    first = at - lag
    has_load = first >= 0
    begin = np.where(has_load, first, 0)
    return np.where(has_load, _largest_between(smooth, begin, begin + every), np.nan)


def days_back(at: IntArray, first_weekday: int) -> IntArray:
    """Days back to the reference day of each minute; 0 where the load has none.

    The reference is the same day of the week before, and in the first week the last day of the
    same kind: a working day for working days, a weekend day for Saturdays and Sundays.
    """
    day = at // MINUTES_PER_DAY
    weekday = (first_weekday + day) % 7
    back = np.where(weekday == 0, 3, np.where(weekday == 5, 6, 1))
    back = np.where(day >= 7, 7, back)
    return np.where(back <= day, back, 0)


def predict(
    load: FloatArray, *, every: int, lead: int, first_weekday: int, decisions: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Expectations of all decisions so far, or of the last few, and the loads that followed."""
    # Decisions fall on the last minute of ``load`` and on every ``every``-th minute before it. Each
    # is about the interval of ``every`` minutes that begins ``lead`` minutes after the decision.
    # Returns ``expected, came`` (decisions,): largest smoothed load expected in the interval, and
    # observed; ``came`` is NaN where the interval has not ended.
    smooth = smoothed(load)
    last = len(load) - 1
    at = np.arange(last % every, last + 1, every)[-decisions:]
    begin = at + lead
    lag = days_back(begin, first_weekday) * MINUTES_PER_DAY
    # Without a reference day the lag points before the first minute, where the load is NaN.
    earlier = same_time(smooth, begin, np.where(lag > 0, lag, begin + 1), every)
    expected = np.fmax(recent(smooth, at), earlier)
    ended = begin + every <= len(load)
    came = np.full(len(at), np.nan)
    came[ended] = _largest_between(smooth, begin[ended], begin[ended] + every)
    return expected, came


class Margins:
    """Expected loads with a margin, from the errors of a run, which are remembered as they come."""

    def __init__(self, quantile: float) -> None:
        self.quantile = quantile
        # Observed over expected load of all decisions so far (NaN where nothing was expected), and
        # those of the last eight weeks by size; by pool and the minutes before the first decision
        self._errors: dict[tuple[int, int], tuple[list[float], list[float]]] = {}

    def expected(self, loads: FloatArray, minute: int, lead: int, first_weekday: int) -> FloatArray:
        """Return the expected loads of the next interval, with their margins; (pools,)."""
        if not minute:  # another run
            self._errors.clear()
        each = enumerate(loads)
        return np.array([self.expect(load, lead, first_weekday, pool) for pool, load in each])

    def expect(self, load: FloatArray, lead: int, first_weekday: int, pool: int = 0) -> float:
        """Expected load of the next interval, times the margin between 1 and ``MOST``."""
        first = (len(load) - 1) % EVERY
        errors, ranked = self._errors.setdefault((pool, first), ([], []))
        decisions = 1 + (len(load) - 1) // EVERY - len(errors)
        day = (first + EVERY * len(errors)) // MINUTES_PER_DAY
        load, first_weekday = _from_reference(load, first_weekday, day)
        how = {"every": EVERY, "lead": lead, "first_weekday": first_weekday}
        expected, came = predict(load, **how, decisions=decisions)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(expected > 0, came / expected, np.nan)
        for ratio in ratios[np.isfinite(came)].tolist():  # of intervals that have ended
            errors.append(ratio)
            if not math.isnan(ratio):
                insort(ranked, ratio)
            if len(errors) > LONGEST and not math.isnan(errors[-1 - LONGEST]):
                del ranked[bisect_left(ranked, errors[-1 - LONGEST])]
        return float(expected[-1] * min(max(_quantile(ranked, self.quantile), 1.0), MOST))


def _quantile(ranked: Sequence[float], quantile: float) -> float:
    """Quantile of sorted values, interpolated as numpy does; 1 of none."""
    if not ranked:
        return 1.0
    place = (len(ranked) - 1) * quantile
    low, high = ranked[int(place)], ranked[min(int(place) + 1, len(ranked) - 1)]
    part = place % 1
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part


def largest_ahead(
    load: FloatArray, *, every: int, steps: int, lead: int, first_weekday: int
) -> FloatArray:
    """Largest smoothed load expected in each of the coming intervals; (steps,)."""
    # The first interval has the expectation of ``predict``. Later ones follow the reference day,
    # times the load now over the load at the same time of that day; this factor is at most 2, at
    # least 0.5, and fades over the plan. Without a reference day the load now is expected to stay.
    load, first_weekday = _from_reference(load, first_weekday, (len(load) - 1) // MINUTES_PER_DAY)
    smooth = smoothed(load)
    last = len(load) - 1
    now = float(recent(smooth, np.array([last]))[0])
    begin = last + lead + every * np.arange(steps)
    lag = days_back(begin, first_weekday) * MINUTES_PER_DAY
    earlier = same_time(smooth, begin, np.where(lag > 0, lag, begin + 1), every)
    then = same_time(smooth, np.array([last]), np.array([max(int(lag[0]), 1)]), 1)
    has_ratio = lag[0] > 0 and np.isfinite(then[0]) and then[0] > 0
    ratio = float(np.clip(now / then[0], 0.5, 2.0)) if has_ratio else 1.0
    fading = ratio ** (1 - np.arange(steps) / steps)
    expected = np.where(np.isfinite(earlier), earlier * fading, now)
    expected[0] = np.fmax(now, earlier[0])
    result: FloatArray = expected
    return result


def _largest_between(values: FloatArray, first: IntArray, end: IntArray) -> FloatArray:
    """Maxima of ``values`` from ``first`` to before ``end``, windows that have one width."""
    # Parts of a window outside of the array count for nothing.
    if not len(first):
        return np.empty(0)
    width = int((end - first).max())
    minute = first[:, None] + np.arange(width)
    inside = (minute >= 0) & (minute < len(values))
    return np.asarray(
        values[np.where(inside, minute, 0)].max(axis=1, initial=-np.inf, where=inside)
    )


def lendable(load: FloatArray, *, lead_minutes: Sequence[int] = (5, 15, 30, 60)) -> pd.DataFrame:
    """Headroom and freed capacity by lead time, for two controllers."""
    # Capacity is decided every 15 minutes and takes effect ``lead`` minutes later. ``reactive``
    # expects the largest five-minute mean of the last 15 minutes, ``with yesterday`` the larger of
    # that and the same interval 24 hours ago. The headroom is the smallest factor on the
    # expectation by which the load exceeds capacity in at most 0.1 % of the minutes. The first day
    # serves as history only. Returns ``lead_minutes, controller, headroom, freed`` (share of the
    # peak capacity).
    import pandas as pd  # names of policies are listed without it

    smooth = smoothed(np.asarray(load, float))
    longest = max(lead_minutes, default=0)
    if len(smooth) <= MINUTES_PER_DAY + longest:
        raise InputError(
            f"a load of {len(smooth) / MINUTES_PER_DAY:.3g} days is too short for changes that "
            f"take {longest:,} minutes: the first day serves as history only. Give at least "
            f"{-(-(MINUTES_PER_DAY + longest + 1) // MINUTES_PER_DAY)} days."
        )
    rows = []
    for lead in lead_minutes:
        at = np.arange(MINUTES_PER_DAY, len(smooth) - lead, EVERY)
        begin = at + lead
        now = recent(smooth, at)
        yesterday = same_time(smooth, begin, np.full(len(begin), MINUTES_PER_DAY), EVERY)
        for name, expected in (("reactive", now), ("with yesterday", np.fmax(now, yesterday))):
            minute = (begin[:, None] + np.arange(EVERY)).ravel()
            capacity = np.repeat(expected, EVERY)[minute < len(smooth)]
            came = smooth[minute[minute < len(smooth)]]
            headroom = float(np.quantile(came / capacity, 1 - EXCEEDED))
            kept = np.minimum(headroom * capacity, smooth.max()).mean() / smooth.max()
            rows.append((lead, name, headroom, float(1 - kept)))
    return pd.DataFrame(rows, columns=["lead_minutes", "controller", "headroom", "freed"])
