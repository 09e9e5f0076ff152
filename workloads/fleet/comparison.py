"""Comparison of a run with the bound of foresight and with a split that never changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cluster_sim.progress import Watch, unwatched
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.registry import bound_of
from workloads.fleet.results.paired import daily_training, paired_interval
from workloads.fleet.results.summary import regret, summary
from workloads.fleet.scenario import Scenario, policy_of, run
from workloads.fleet.simulation import FleetRun
from workloads.options.fleet import PolicyInputs


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

    Parameters
    ----------
    scenario : Scenario
    done : FleetRun
    results : mapping
        Summary of the run.
    settings : PolicyInputs
        Settings of its policy.
    seed : int
    watch : function of (sequence, str), optional
        Shows the progress.
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
