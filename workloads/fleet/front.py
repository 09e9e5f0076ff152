"""Fleet in one call: from a cluster, a demand and a policy to the use of every chip-hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from topologies import display
from topologies.arguments import Seed, checked
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.errors import InputError, shown
from workloads.demand import Demand
from workloads.fleet.comparison import compared
from workloads.fleet.from_options import check_question, read_demand, read_models, scenario_on
from workloads.fleet.keywords import fleet_options
from workloads.fleet.policies.view import Policy
from workloads.fleet.results.summary import summary
from workloads.fleet.results.timeline import timeline
from workloads.fleet.scenario import Scenario, policy_of, run, what_ifs
from workloads.fleet.simulation import FleetRun
from workloads.models.huggingface import MODEL_REMEDY
from workloads.models.model import Model
from workloads.options.fleet import (
    DemandInputs,
    FleetInputs,
    LimitInputs,
    MoneyInputs,
    PolicyInputs,
)

GROUPS = (FleetInputs, DemandInputs, PolicyInputs, LimitInputs, MoneyInputs)
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
    settings : PolicyInputs
        Name and settings of the policy.
    seed : int
    """

    scenario: Scenario
    run: FleetRun
    settings: PolicyInputs = field(default_factory=PolicyInputs)
    seed: int = 0

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Headline numbers by their key in ``cluster-sim fleet --json``."""
        return summary(self.run, self.scenario.economics, self.scenario.prices)

    def frame(self) -> pd.DataFrame:
        """Roles, load and power, one row a minute."""
        return timeline(self.run, self.scenario.economics)

    @cached_property
    def regret(self) -> dict[str, Any]:
        """Training compared with the bound of foresight and with a split that never changes.

        See :func:`workloads.fleet.comparison.compared`.
        """
        return compared(self.scenario, self.run, self.summary, self.settings, self.seed)

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
    cluster: Cluster | str,
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
    cluster : Cluster or str
        A cluster or its name, as :func:`cluster_sim.cluster` takes it; its scale-up domains are
        the units that change between serving and training.
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
        Share of the fleet that the busiest hour is scaled to need; by default a demand with counts
        of requests runs as it is, and a bundled one is scaled to 0.9.
    seed : int
        The only source of randomness.
    **keywords
        Other options of ``cluster-sim fleet``, such as ``training="jobs.csv"``, ``power_cap=300``
        [MW] or ``slo="tpot=50ms"``; see :mod:`workloads.options.fleet`.

    Returns
    -------
    FleetResult
        ``summary`` of chip-hours, SLO and training, ``frame()`` minute by minute, ``regret``.

    Raises
    ------
    InputError
        For an unknown demand, policy or word, and for a model that a unit cannot serve.

    Examples
    --------
    >>> fleet = run_fleet("trn2-ultraserver:20", policy="static", model="llama-3.1-70b", days=0.05)
    >>> fleet.summary["chips"]
    1280
    """
    stated = {"policy": _name_of(policy), "days": days, "scale_to_peak": scale_to_peak}
    options = fleet_options(run_fleet, GROUPS, keywords, **stated)
    check_question(options)
    requests, models = read_demand(demand, options), read_models(model)
    base = scenario_on(as_cluster(cluster), requests, models, options, seed)
    built, settings = _after_what_if(base, options.demand.what_if), options.policy
    chosen = policy_of(policy, built, settings) if isinstance(policy, str) else policy
    return FleetResult(built, run(built, chosen, seed=seed), settings, seed)


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


def _after_what_if(built: Scenario, texts: Sequence[str]) -> Scenario:
    """Return a scenario changed by its what-if, or as it is where there is none."""
    if len(texts) > 1:
        raise InputError(
            f"{len(texts)} what-ifs for one run; join them with commas to one, or call run_fleet "
            "for each."
        )
    return what_ifs(built, texts)[-1][1]
