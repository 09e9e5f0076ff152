"""Division of a history of demand into nights: the same hours of every day."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY, period_means

SMOOTHING = 15
"""Minutes over which demand is averaged before the largest value of a window is taken."""
BEFORE = 60
"""Minutes before the decision whose mean need is the level of the day."""


@dataclass(frozen=True, eq=False)
class Nights:
    """Nights of a history, and the coming night, which has no demand yet.

    Attributes
    ----------
    need : float array (nights, minutes)
        Units that each minute of a past night needed.
    edges : int array (windows + 1,)
        Minutes of the night at which its windows begin and end.
    busiest : float array (nights, windows)
        Largest 15-minute mean of the need in each window.
    level : float array (nights + 1,)
        Mean need of the hour before the decision; the coming night comes last.
    weekday : int array (nights + 1,)
        Day of the week in the middle of the night, 0 for Monday.
    ended : int array (nights + 1,)
        Number of earlier nights that had ended when this night was decided on.
    """

    need: FloatArray
    edges: IntArray
    busiest: FloatArray
    level: FloatArray
    weekday: IntArray
    ended: IntArray

    def __len__(self) -> int:
        return len(self.need)

    @property
    def minutes(self) -> int:
        """Length of a night [minutes]."""
        return int(self.edges[-1])


def cut_nights(
    need: FloatArray, *, first_minute_of_week: int, lead: int, minutes: int, window: int = 60
) -> Nights:
    """Cut a history that ends at the moment of decision into nights.

    Parameters
    ----------
    need : float array (minutes,)
        Units that each minute of the history needed.
    first_minute_of_week : int
        Minute of the week at which the history begins; 0 is Monday 00:00.
    lead : int
        Minutes from the end of the history to the beginning of the night.
    minutes : int
        Length of the night, at most a day.
    window : int
        Length of the windows of the night [minutes]; the last window may be shorter.

    Raises
    ------
    InputError
        For a night that is empty or longer than a day, and a history without a whole night.
    """
    if not 1 <= minutes <= MINUTES_PER_DAY or lead < 0 or window < 1:
        raise InputError(
            f"a night of {minutes} minutes, {lead} after the history, in windows of {window}; "
            "it lasts 1 to 1,440 minutes and begins at the end of the history or later."
        )
    begin = _begins(len(need), lead, minutes)
    past = begin[:-1]
    rows = np.stack([need[first : first + minutes] for first in past])
    edges = np.unique(np.append(np.arange(0, minutes, window), minutes))
    smooth = period_means(rows, min(SMOOTHING, minutes))
    decided = begin - lead
    sums = np.concatenate([[0.0], np.cumsum(need)])
    middle = (first_minute_of_week + begin + minutes // 2) // MINUTES_PER_DAY
    return Nights(
        need=rows,
        edges=edges,
        busiest=np.maximum.reduceat(smooth, edges[:-1], axis=1),
        level=(sums[decided] - sums[np.maximum(decided - BEFORE, 0)])
        / np.minimum(BEFORE, np.maximum(decided, 1)),
        weekday=middle % 7,
        ended=np.searchsorted(past + minutes, decided, side="right"),
    )


def _begins(length: int, lead: int, minutes: int) -> IntArray:
    """First minutes of all nights in order of time, the coming night last."""
    coming = length + lead
    back = np.arange((coming // MINUTES_PER_DAY) + 1)[::-1]
    begin = coming - back * MINUTES_PER_DAY
    decided = begin - lead
    inside = (decided >= 1) & ((begin + minutes <= length) | (back == 0))
    if inside.sum() < 2:
        raise InputError(
            f"a history of {length / MINUTES_PER_DAY:.3g} days holds no whole night of "
            f"{minutes / 60:.3g} h; give at least five days."
        )
    return np.asarray(begin[inside], np.int64)
