"""Interval of the difference between two runs of the same demand and the same failures."""

from __future__ import annotations

import math

import numpy as np

from topologies.arrays import FloatArray
from workloads.confidence.interval import LEVEL, Interval
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.results.timeline import role_server_ms
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.ledger import MS
from workloads.fleet.state.roles import GROUPS


def daily_training(run: FleetRun) -> FloatArray:
    """Chip-hours of training in each whole day of a run; (days,)."""
    spent = role_server_ms(run)[::MINUTES_PER_DAY, list(GROUPS["training"])].sum(axis=1)
    result: FloatArray = np.diff(spent) * run.chips_per_server / (3600.0 * MS)
    return result


def paired_interval(values: FloatArray, others: FloatArray) -> Interval | None:
    """Interval of the mean difference of a day, from days that two runs have in common.

    Both runs meet the same demand and the same failures, so that what these do to a day cancels
    in its difference, and the interval is narrower than those of two means. It is Student's for
    the mean of the differences, as if days were independent, and says how far another stretch of
    such days may differ. None for less than two days.

    Parameters
    ----------
    values, others : float array (days,)

    Examples
    --------
    >>> ends = paired_interval(np.array([7.0, 3.0, 9.0]), np.array([5.0, 2.0, 6.0]))
    >>> round(ends.low, 3), round(ends.high, 3)
    (0.911, 3.089)
    >>> paired_interval(np.array([7.0]), np.array([5.0])) is None
    True
    """
    days = len(values)
    if days < 2:
        return None
    from scipy import special  # slow to import

    differences = values - others
    deviation = float(differences.std(ddof=1)) / math.sqrt(days)
    half = float(special.stdtrit(days - 1, 0.5 + LEVEL / 2)) * deviation
    mean = float(differences.mean())
    return Interval(mean - half, mean + half, basis=f"{days} days, paired")
