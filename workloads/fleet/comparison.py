"""Comparison of a run with the bound of foresight and with a split that never changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cluster_sim.progress import Watch, unwatched
from topologies.arrays import FloatArray
from workloads.confidence.interval import LEVEL, Interval
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.registry import bound_of
from workloads.fleet.results.summary import regret, summary
from workloads.fleet.results.timeline import role_server_ms
from workloads.fleet.scenario import Scenario, policy_of, run
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.ledger import MS
from workloads.fleet.state.roles import GROUPS
from workloads.options.fleet import PolicyInputs


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

    ``values, others`` (days,).

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


def compared(
    scenario: Scenario,
    done: FleetRun,
    results: Mapping[str, Any],
    settings: PolicyInputs,
    seed: int,
    watch: Watch = unwatched,
) -> dict[str, Any]:
    """Return :func:`workloads.fleet.results.summary.regret`, with intervals.

    The other policies run with their usual headroom, through the same demand and failures.
    ``regret_interval`` and ``gain_interval`` hold the two differences in chip-hours, from the days
    of the run; None for a run of less than two days.

    ``results``: summary of the run. ``settings``: settings of its policy. ``watch``: shows the
    progress.
    """
    usual = replace(settings, headroom=None)
    names = [bound_of(settings.policy), "static"]
    bound, static = (
        run(scenario, policy_of(name, scenario, usual), seed=seed)
        for name in watch(names, "fleet, to compare")
    )
    others = [summary(each, scenario.economics, scenario.prices) for each in (bound, static)]
    return {
        **regret(results, *others),
        "regret_interval": _difference(bound, done),
        "gain_interval": _difference(done, static),
    }


def _difference(run: FleetRun, other: FleetRun) -> dict[str, Any] | None:
    """Interval of the chip-hours that one run trains more than another, over the whole run."""
    ends = paired_interval(daily_training(run), daily_training(other))
    if ends is None:
        return None
    days = run.minutes / MINUTES_PER_DAY
    return replace(ends, low=ends.low * days, high=ends.high * days).document()
