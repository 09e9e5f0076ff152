"""Scenario of a fleet: all inputs of a run, built from a cluster, a demand and a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from topologies.arrays import FloatArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.demand import Demand, Horizon, horizons, measured_noise
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.inputs.prices import Prices
from workloads.fleet.policies.kind import Situation
from workloads.fleet.policies.registry import policy_named
from workloads.fleet.policies.view import Limits, Policy
from workloads.fleet.processes.control import Signals
from workloads.fleet.processes.failures import Fleet, failures_from
from workloads.fleet.setup.demand import (
    Period,
    Share,
    Sizing,
    batch_work,
    cut_to_period,
    divided,
    draw_noise,
    interactive,
    scale_note,
    scaled_to_fleet,
    sizing,
)
from workloads.fleet.setup.night_work import night_work
from workloads.fleet.setup.serving import Serving, block_of, services_from
from workloads.fleet.simulation import FleetRun, simulate
from workloads.fleet.state.queues import BatchTier, BatchWork
from workloads.fleet.state.services import Service, by_pool, lead_s, pools_from, units_needed
from workloads.models.model import Model
from workloads.options.fleet import PolicyInputs


@dataclass(frozen=True, eq=False)
class Operation:
    """Conditions under which a fleet operates; values left out come from the catalogue.

    ``costs``: durations and rates of role changes.
    ``limits``: bounds on role changes that hold under every policy.
    ``failing``: whether servers fail.
    ``domains``: whether racks, scale-up domains and power feeds fail as well as servers, and links,
        switches and software stop training.
    ``post_training``: empty, or ``lockstep`` or ``one-behind``: the way in which the default
        post-training jobs run.
    ``tariff``: returns the prices of electricity for a run that starts at a time (UTC) and lasts so
        long.
    ``batch``: requests that may wait.
    """

    costs: ChangeCosts | None = None
    limits: Limits | None = None
    failing: bool = True
    domains: bool = False
    post_training: str = ""
    economics: Economics | None = None
    tariff: Callable[[str, int], Prices] | None = None
    batch: BatchTier | None = None


@dataclass(frozen=True, eq=False)
class Scenario:
    """Inputs of a run except the policy and the seed.

    ``horizon``: demand of the run and the history before it, scaled but without noise.
    ``spread`` (services,): relative spread of the noise on the demand; 0 for none.
    ``sizing``: size of the demand without noise, compared with the fleet.
    ``demand``: the requests that arrive, noise included.
    ``fleet``: units of the cluster, with the costs and limits of their changes and their failures.
    ``tariff``: see :class:`Operation`; ``prices`` are what it returns for this run.
    ``tier``: requests that may wait; ``batch`` are the requests of this tier in this run.
    ``own_batch``: requests of a tier that has a demand of its own, cut to the run and scaled.
    ``models``: one for each service, or none where ``serving`` states a rate in their place.
    """

    cluster: Cluster
    horizon: Horizon
    period: Period
    spread: FloatArray | float
    sizing: Sizing
    demand: Demand
    services: tuple[Service, ...]
    jobs: tuple[TrainingJob, ...]
    fleet: Fleet
    economics: Economics
    tariff: Callable[[str, int], Prices] | None = None
    prices: Prices | None = None
    tier: BatchTier | None = None
    own_batch: Demand | None = None
    batch: BatchWork | None = None
    models: tuple[Model, ...] = ()
    serving: Serving = field(default_factory=Serving)

    @property
    def history(self) -> Demand | None:
        """Demand before the run, which policies know; None where the run begins with the data."""
        return self.horizon.history

    @property
    def need(self) -> FloatArray:
        """Units that each minute needs in each pool of services that share weights.

        The shape is (pools, minutes).
        """
        return by_pool(units_needed(self.demand, self.services), pools_from(self.services))

    @property
    def scaling(self) -> str:
        """Sentence that says how the demand was scaled; empty where it was not."""
        return scale_note(self.sizing, absolute=self.demand.absolute, units=self.cluster.domains)

    @property
    def lead_s(self) -> float:
        """Expected time from an order until a unit that trained serves [s]."""
        return lead_s(self.fleet.change_costs, self.services)

    def at(self, horizon: Horizon) -> Scenario:
        """Return the same fleet under another demand, such as a what-if's."""
        demand = draw_noise(horizon.demand, self.spread, self.period.seed)
        scale = self.sizing.demand_scale
        return replace(
            self,
            horizon=horizon,
            demand=demand,
            sizing=sizing(horizon.demand, self.services, self.cluster.domains, scale=scale),
            prices=None if self.tariff is None else self.tariff(demand.start, demand.minutes),
            batch=batch_work(horizon.demand, self.own_batch, self.services, self.tier),
        )


def scenario(
    cluster: Cluster,
    demand: Demand,
    *,
    model: Model | Sequence[Share] | None = None,
    serving: Serving | None = None,
    period: Period | None = None,
    training: str | Path | None = None,
    operation: Operation | None = None,
) -> Scenario:
    """Build the scenario of a fleet.

    Parameters
    ----------
    cluster : Cluster
        Cluster whose scale-up domains are the units that change role.
    demand : Demand
        Counts of requests, which are kept, or a shape, which is scaled; see :class:`Period`.
    model : Model, or sequence of Share, optional
        The model that is served and trained. Several models divide the demand, see
        :func:`workloads.fleet.setup.demand.divided`; the default jobs train the largest.
    serving : Serving, optional
    period : Period, optional
    training : path, optional
        File of training jobs, see :func:`workloads.fleet.inputs.jobs.read_jobs`.
    operation : Operation, optional

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.demand import constant
    >>> fleet = scenario(cluster("trn2-ultraserver:10"), constant(6000.0),
    ...                  serving=Serving(unit_rate_per_s=25.0))
    >>> fleet.sizing.demand_scale, fleet.sizing.units_needed_peak
    (1.0, 4.0)
    """
    period, operation = period or Period(), operation or Operation()
    serving, (demand, models) = serving or Serving(), _divided(demand, model)
    window = cut_to_period(interactive(demand, operation.batch), period)
    services = services_from(window.demand, cluster, models, serving)
    fleet = _fleet(cluster, services, operation)
    mode = operation.post_training
    jobs = night_work(cluster, models, training, services, window.demand, mode, fleet)
    horizon, sized = scaled_to_fleet(window, services, cluster.domains, period)
    without_noise = Scenario(
        *(cluster, horizon, period),
        spread=measured_noise(demand) if isinstance(period.noise, str) else float(period.noise),
        sizing=sized,
        demand=horizon.demand,
        services=services,
        jobs=jobs,
        fleet=fleet,
        economics=operation.economics or Economics.of(cluster),
        tariff=operation.tariff,
        tier=operation.batch,
        own_batch=_own_batch(operation.batch, period, sized.demand_scale),
        models=models,
        serving=serving,
    )
    return without_noise.at(horizon)  # with noise, prices and batch work, as for a what-if


def _divided(
    demand: Demand, model: Model | Sequence[Share] | None
) -> tuple[Demand, tuple[Model, ...]]:
    """Divide a demand between the models that answer it, where there are any."""
    shares = [Share(model)] if isinstance(model, Model) else list(model or ())
    return divided(demand, shares) if shares else (demand, ())


def _own_batch(tier: BatchTier | None, period: Period, factor: float) -> Demand | None:
    """Return the requests of a batch tier with a demand of its own, scaled if it is a shape."""
    if tier is None or tier.demand is None:
        return None
    demand = cut_to_period(tier.demand, period).demand
    return demand if demand.absolute else demand.times(factor)


def _fleet(cluster: Cluster, services: Sequence[Service], operation: Operation) -> Fleet:
    """Return the units of a cluster with the costs, limits and failures of its operation."""
    failures = None
    if operation.failing:
        failures = failures_from(cluster, services, domains=operation.domains)
    return Fleet(
        cluster.domains,
        cluster.chips_per_domain,
        operation.costs or ChangeCosts.of(cluster),
        _limits(operation.limits or Limits(), services),
        failures,
    )


def _limits(limits: Limits, services: Sequence[Service]) -> Limits:
    """Return the limits with blocks enlarged to whole groups of prefill and decode replicas."""
    return replace(limits, block=math.lcm(limits.block, block_of(services)))


def what_ifs(base: Scenario, texts: Sequence[str]) -> list[tuple[str, Scenario]]:
    """Return the base scenario and one for each what-if, all with their names.

    ``base``: it comes first in the list. ``texts``: what-ifs, see :mod:`workloads.demand.what_if`.
    """
    return [(name, base.at(horizon)) for name, horizon in horizons(base.horizon, texts)]


def run(scenario: Scenario, policy: Policy, *, seed: int = 0) -> FleetRun:
    """Run a scenario under a policy."""
    return simulate(
        scenario.demand,
        scenario.services,
        scenario.fleet,
        policy,
        jobs=scenario.jobs,
        batch=scenario.batch,
        signals=_signals(scenario),
        rng=np.random.default_rng(seed),
    )


def _signals(scenario: Scenario) -> Signals:
    """Return what policies see beside the load: history, prices, and the draw of a unit."""
    economics = scenario.economics
    # Economics has watts of a chip; the site draws PUE times that for all chips of a unit.
    site_chips = scenario.cluster.chips_per_domain * economics.pue
    return Signals(
        history=scenario.history,
        held=None if scenario.prices is None else scenario.prices.dear,
        prices_usd_per_mwh=_prices_ahead(scenario),
        unit_busy_w=economics.busy_w * site_chips,
        unit_idle_w=economics.idle_w * site_chips,
    )


def _prices_ahead(scenario: Scenario) -> FloatArray:
    """Prices of the run and, where the tariff covers it, of the day after; (minutes,) [USD/MWh].

    A policy that looks a day ahead needs that day until the last minute of the run.
    """
    if scenario.prices is None or scenario.tariff is None:
        return np.empty(0)
    demand = scenario.demand
    try:
        return scenario.tariff(demand.start, demand.minutes + MINUTES_PER_DAY).usd_per_mwh
    except InputError:
        return scenario.prices.usd_per_mwh


def policy_of(
    name: str, scenario: Scenario, settings: PolicyInputs | None = None, **changes: Any
) -> Policy:
    """Return a policy by name, or a user's from a file, configured for a scenario.

    ``name``: see :mod:`workloads.fleet.policies.registry`. ``**changes``: other options of
    policies, such as ``headroom=0.2``.
    """
    costs = scenario.fleet.change_costs
    situation = Situation(
        need=scenario.need,
        lead_s=scenario.lead_s,
        back_s=costs.to_training_s,
        ramp=scenario.fleet.limits.changes_per_minute,
        priced=scenario.prices is not None,
        busy_share=max(
            service.capacity.rate_slo_per_s / service.capacity.rate_max_per_s
            for service in scenario.services
        ),
        rest_units=_rest_units(scenario),
    )
    return policy_named(name, replace(settings or PolicyInputs(), **changes), situation)


def _rest_units(scenario: Scenario) -> float:
    """Units that evaluation and batch work can use."""
    evaluating = sum(job.units for job in scenario.jobs if job.evaluation)
    return float(evaluating if scenario.batch is None else scenario.cluster.domains)
