"""Fleet in one call: from a cluster, a demand and a policy to the use of every chip-hour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from cluster_sim.processes import on_all_cores
from cluster_sim.progress import Watch, unwatched
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.support import display
from topologies.support.arguments import Seed, checked
from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError, shown
from workloads.confidence.interval import LEVEL, Interval
from workloads.demand import Demand
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.intervals import fleet_intervals
from workloads.fleet.policies.registry import bound_of
from workloads.fleet.policies.view import Policy
from workloads.fleet.results import GROUPS, regret, role_chip_ms, summary, timeline
from workloads.fleet.scenario import (
    Scenario,
    check_question,
    fleet_options,
    policy_of,
    read_demand,
    read_models,
    run,
    scenario,
    what_ifs,
)
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.store import MS
from workloads.models.huggingface import MODEL_REMEDY
from workloads.models.model import Model
from workloads.options.fleet import (
    DemandInputs,
    FleetInputs,
    FleetOptions,
    LimitInputs,
    MoneyInputs,
    PolicyInputs,
)


def daily_training(run: FleetRun) -> FloatArray:
    """Chip-hours of training in each whole day of a run; (days,)."""
    spent = role_chip_ms(run)[::MINUTES_PER_DAY, list(GROUPS["training"])].sum(axis=1)
    return np.asarray(np.diff(spent) / (3600.0 * MS))


def paired_interval(values: FloatArray, others: FloatArray) -> Interval | None:
    """Interval of the mean difference of a day, from days that two runs have in common.

    Both runs meet the same demand and the same failures, so that what these do to a day cancels
    in its difference, and the interval is narrower than those of two means. It is Student's for
    the mean of the differences, as if days were independent, and says how far another stretch of
    such days may differ. None for less than two days.

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


Machinery = Cluster | str | Sequence[Cluster | str]
"""Machines of a fleet: one cluster or several, or their names."""
OPTIONS = (FleetInputs, DemandInputs, PolicyInputs, LimitInputs, MoneyInputs)
"""Options of a fleet that are keywords."""


@display.by_facts("Fleet")
@dataclass(frozen=True, eq=False)
class FleetResult:
    """A fleet's run through a demand.

    Attributes
    ----------
    scenario : Scenario
        Inputs of the run.
    run : FleetRun
        Record of every minute.
    seed : int
    function : callable, optional
        Policy that was passed as a function.
    watch : callable
        Shows the progress of further runs, for intervals and comparison.
    """

    scenario: Scenario
    run: FleetRun
    seed: int = 0
    function: Policy | None = None
    watch: Watch = unwatched

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Headline numbers by their key in ``cluster-sim fleet --json``."""
        return summary(self.run, self.scenario.prices)

    @cached_property
    def intervals(self) -> dict[str, Any]:
        """Intervals of the results, see :func:`workloads.fleet.intervals.fleet_intervals`."""
        name, function = self.scenario.options.policy.policy, self.function
        return fleet_intervals(
            self.scenario,
            self.summary,
            lambda changed: function or policy_of(name, changed),
            seed=self.seed,
            watch=self.watch,
            stated_sizes=function is not None,
        )

    def frame(self) -> pd.DataFrame:
        """Roles, load and power, one row a minute."""
        return timeline(self.run)

    @cached_property
    def regret(self) -> dict[str, Any]:
        """Training compared with the bound of foresight and with a split that never changes."""
        scenario = self.scenario
        names = [bound_of(scenario.options.policy.policy), "static"]

        def other(name: str) -> tuple[dict[str, Any], FloatArray]:
            done = run(scenario, policy_of(name, scenario, headroom=None), seed=self.seed)
            return summary(done, scenario.prices), daily_training(done)

        task = "fleet, to compare (--no-compare for none)"
        (bound, most), (static, least) = on_all_cores(other, names, self.watch, task=task)
        more, days = regret(self.summary, bound, static), self.run.minutes / MINUTES_PER_DAY
        # Chip-hours that one run trains more than the other, over the whole run
        trained = daily_training(self.run)
        pairs = {"regret_interval": (most, trained), "gain_interval": (trained, least)}
        for name, (one, two) in pairs.items():
            ends = paired_interval(one, two)
            if ends is not None:
                ends = replace(ends, low=ends.low * days, high=ends.high * days)
            more[name] = None if ends is None else ends.document()
        return more

    @property
    def _facts(self) -> dict[str, object]:
        numbers = self.summary
        hours = numbers["chip_hours"]
        return {
            "chips": f"{numbers['chips']:,}",
            "within the SLO": f"{numbers['slo_attainment']:.3%}",
            "inference": f"{numbers['inference_chip_hours'] / hours:.1%} of chip-hours",
            "training": f"{numbers['training_chip_hours'] / hours:.1%}",
            "role changes": f"{numbers['role_changes']:,}",
        }


@checked(model=MODEL_REMEDY, cluster=CLUSTER_REMEDY)
def run_fleet(
    cluster: Machinery | Mapping[str, Machinery],
    demand: Demand | str | Sequence[str] = "azure-code",
    *,
    policy: Policy | str = "forecast",
    model: Model | str | None = None,
    days: float | None = None,
    scale_to_peak: float | None = None,
    seed: Seed = 0,
    **keywords: Any,
) -> FleetResult:
    """Run a fleet that serves by day and trains by night.

    Parameters
    ----------
    cluster : Cluster, str, sequence of them or mapping
        A cluster or its name, several kinds of them (``serve_on`` says which serve), or a mapping
        with those of each ``region``; scale-up domains change between serving and training.
    demand : Demand, str or sequence of str
        A bundled demand by name, or a CSV file; several arrive side by side.
    policy : Policy or str
        A name that ``cluster-sim fleet --policy`` takes, or a policy of your own.
    model : Model or str, optional
        The model that is served, and trained by the default jobs; by default Llama-3.1-405B.
        Several with their shares of the requests: ``"llama-3.1-405b=20%,llama-3.1-8b=80%"``.
    days : float, optional
        Length of the run [days]; by default up to a week.
    scale_to_peak : float, optional
        Share of the fleet that the busiest hour needs; by default 0.9 for a demand without counts.
    seed : int
        The only source of randomness.
    **keywords
        Other options of ``cluster-sim fleet``, such as ``training="jobs.csv"``, ``power_cap=300``
        [MW] or ``slo="tpot=50ms"``; see :mod:`workloads.options.fleet`.

    Returns
    -------
    FleetResult
        ``summary`` and its ``intervals``, ``frame()`` minute by minute, ``regret``.

    Raises
    ------
    InputError
        For an unknown demand, policy or word, and for a model that a unit cannot serve.

    Examples
    --------
    >>> run_fleet("trn2-ultraserver:20", policy="static", unit_rate=6.0, days=0.05).summary["chips"]
    1280
    """
    stated = {"policy": _name_of(policy), "days": days, "scale_to_peak": scale_to_peak}
    options = fleet_options(run_fleet, OPTIONS, keywords, **stated)
    _check_run(options)
    (clusters, places), models = _clusters(cluster), read_models(model)
    requests = read_demand(demand, options)
    base = scenario(clusters, requests, options, models=models, seed=seed, places=places)
    _, built = what_ifs(base, options.demand.what_if)[-1]
    function = None if isinstance(policy, str) else policy
    done = run(built, function or policy_of(str(policy), built), seed=seed)
    return FleetResult(built, done, seed, function)


def _clusters(named: Machinery | Mapping[str, Machinery]) -> tuple[list[Cluster], list[str]]:
    """Return clusters as they are, or those that texts name, and the region of each."""
    regions = named if isinstance(named, Mapping) else {"": named}
    several = [
        (as_cluster(one), place)
        for place, each in regions.items()
        for one in ([each] if isinstance(each, Cluster | str) else each)
    ]
    if not several:
        raise InputError("run_fleet has no cluster; name one, such as 'trn2-ultraserver:20'.")
    return [cluster for cluster, _ in several], [place for _, place in several]


def _name_of(policy: object) -> str | None:
    """Return the name of a policy; None for a user's own, which must be a function."""
    if isinstance(policy, str):
        return policy
    if not callable(policy):
        raise InputError(
            f"policy is {shown(repr(policy))} ({type(policy).__name__}). Pass a name, such as "
            "'forecast', or a function of a view."
        )
    return None


def _check_run(options: FleetOptions) -> None:
    """Refuse options that cannot be run, or that are several questions."""
    check_question(options)
    for what, texts, join in (
        ("placements", options.policy.serve_on, "join kinds with commas"),
        ("what-ifs", options.demand.what_if, "join them with commas to one"),
    ):
        if len(texts) > 1:
            count = len(texts)
            raise InputError(f"{count} {what} for one run; {join}, or call run_fleet for each.")
