"""Expected demand of a night in several simple forms, each from earlier nights alone."""

from __future__ import annotations

import numpy as np

from topologies.arrays import FloatArray
from workloads.fleet.lending.nights import Nights

RECENT, WEEKS = 5, 3
"""Nights in an average: the last ones of the same kind, and of the same weekday."""
SMALLEST = 0.02
"""Share of the typical need that is added to every expectation, so that none is zero."""

FORMS = ("last week", "recent nights", "both", "both, by level", "both, mostly by level")
"""Names of the forms, in the order of the rows that :func:`expectations` returns."""


def expectations(nights: Nights, number: int) -> FloatArray:
    """Expected need of each window of one night by every form; (forms, windows) [units].

    ``last week`` is the last night of the same weekday (of the same kind, working day or weekend,
    where there is none); ``recent nights`` is the mean of the last five of the same kind; ``both``
    is the mean of these five and the last three of the same weekday. The last two forms multiply
    ``both`` by the load of the hour before the decision over the load of the same hour on those
    nights (their geometric mean), to the power of 0.5 and 0.8.
    """
    earlier = np.arange(nights.ended[number])
    weekday = nights.weekday
    weekend = weekday >= 5
    alike = earlier[weekend[earlier] == weekend[number]]
    alike = alike if len(alike) else earlier
    same_day = earlier[weekday[earlier] == weekday[number]]
    both = np.concatenate([same_day[-WEEKS:], alike[-RECENT:]])
    last = same_day[-1] if len(same_day) else alike[-1]
    least = SMALLEST * float(nights.need[earlier].mean())
    level = nights.level + max(least, 1e-12)
    busier = float(np.exp(np.mean(np.log(level[number] / level[both]))))
    mean = nights.busiest[both].mean(axis=0)
    forms = np.stack(
        [
            nights.busiest[last],
            nights.busiest[alike[-RECENT:]].mean(axis=0),
            mean,
            mean * busier**0.5,
            mean * busier**0.8,
        ]
    )
    result: FloatArray = forms + max(least, 1e-12)
    return result
