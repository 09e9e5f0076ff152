"""Scenario of a fleet: all inputs of a run, built from a cluster, a demand and a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from topologies.arrays import FloatArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.confidence.propagation import AS_STATED, Uncertain
from workloads.demand import Demand, Horizon, demand_from, horizons, measured_noise
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.inputs.prices import Prices, check_prices, read_prices
from workloads.fleet.policies.kind import Situation
from workloads.fleet.policies.registry import policy_named
from workloads.fleet.policies.view import Limits, Policy
from workloads.fleet.processes.control import Signals
from workloads.fleet.processes.failures import Fleet, failures_from
from workloads.fleet.setup.demand import (
    Share,
    Sizing,
    batch_work,
    cut_to_period,
    demand_level,
    divided,
    draw_noise,
    interactive,
    scale_note,
    scaled_to_fleet,
    sizing,
)
from workloads.fleet.setup.night_work import night_work
from workloads.fleet.setup.serving import block_of, services_from
from workloads.fleet.simulation import FleetRun, simulate
from workloads.fleet.state.queues import BatchTier, BatchWork
from workloads.fleet.state.services import Service, by_pool, lead_s, pools_from, units_needed
from workloads.models.model import Model
from workloads.options.fleet import (
    DemandInputs,
    FleetOptions,
    LimitInputs,
    MoneyInputs,
    PolicyInputs,
    seconds,
)
from workloads.serving import parse_share


@dataclass(frozen=True, eq=False)
class Scenario:
    """Inputs of a run except the policy and the seed.

    ``seed``: seed of the noise.
    ``horizon``: demand of the run and the history before it, scaled but without noise.
    ``spread`` (services,): relative spread of the noise on the demand; 0 for none.
    ``demand``: the requests that arrive, noise included.
    ``tariff``: returns the prices of electricity for a run that starts at a time (UTC) and lasts so
        many minutes; ``prices`` are those of this run.
    ``tier``: requests that may wait; ``batch`` are the requests of this tier in this run.
    ``own_batch``: requests of a tier that has a demand of its own, cut to the run and scaled.
    ``models``: one for each service, or none where the options state a rate in their place.
    ``demand_level``: factor by which such a stretch of the demand differs from the one before.
    """

    cluster: Cluster
    options: FleetOptions
    seed: int
    horizon: Horizon
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
    demand_level: Uncertain = AS_STATED

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
        demand = draw_noise(horizon.demand, self.spread, self.seed)
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
    options: FleetOptions | None = None,
    *,
    models: Model | Sequence[Share] = (),
    seed: int = 0,
) -> Scenario:
    """Build the scenario of a fleet from a demand and models that have been read.

    Without models only the shape of the demand counts, or the rate of a unit that options state.

    >>> from topologies.clusters.names import cluster
    >>> from workloads.demand import constant
    >>> from workloads.options.fleet import FleetInputs
    >>> options = FleetOptions(FleetInputs(unit_rate=25.0))
    >>> fleet = scenario(cluster("trn2-ultraserver:10"), constant(6000.0), options)
    >>> fleet.sizing.demand_scale, fleet.sizing.units_needed_peak
    (1.0, 4.0)
    """
    options = options or FleetOptions()
    period, tariff, tier = options.demand, _tariff(options.money), _batch_tier(options.demand)
    shares = [Share(models)] if isinstance(models, Model) else models
    demand, each = divided(demand, shares) if shares else (demand, ())
    window = cut_to_period(interactive(demand, tier), period.days, period.start_day)
    services = services_from(window.demand, cluster, each, options.fleet)
    fleet = _fleet(cluster, services, options)
    jobs = night_work(cluster, each, options.fleet, services, window.demand, fleet)
    horizon, sized = scaled_to_fleet(window, services, cluster.domains, period.peak_share)
    spread = period.noise_spread
    without_noise = Scenario(
        *(cluster, options, seed, horizon),
        spread=measured_noise(demand) if spread is None else spread,
        sizing=sized,
        demand=horizon.demand,
        services=services,
        jobs=jobs,
        fleet=fleet,
        economics=_economics(cluster, options.money),
        tariff=tariff,
        tier=tier,
        own_batch=_own_batch(tier, period, sized.demand_scale),
        models=each,
        demand_level=demand_level(
            units_needed(demand, services).sum(axis=0), demand.start, window.demand.minutes
        ),
    )
    return without_noise.at(horizon)  # with noise, prices and batch work, as for a what-if


def _tariff(money: MoneyInputs) -> Callable[[str, int], Prices] | None:
    cap = math.inf if money.price_cap is None else money.price_cap
    path = money.price
    if path is not None:
        check_prices(path)  # before the capacity of a replica is simulated, which takes long
        return lambda start, minutes: read_prices(path, start, minutes, cap=cap)
    if money.price_cap is not None:
        raise InputError(f"--price-cap {cap:g} without prices; add --price FILE.csv.")
    return None


def _batch_tier(inputs: DemandInputs) -> BatchTier | None:
    if inputs.batch_share is None and inputs.batch_demand is None:
        if inputs.batch_deadline != DemandInputs.batch_deadline:
            raise InputError(
                f"--batch-deadline {inputs.batch_deadline} without a batch tier; add --batch-share "
                "20% or --batch-demand FILE.csv."
            )
        return None
    share = 0.0 if inputs.batch_share is None else parse_share(inputs.batch_share, "--batch-share")
    demand = None if inputs.batch_demand is None else demand_from([inputs.batch_demand])
    return BatchTier(share, demand, seconds(inputs.batch_deadline, "--batch-deadline"))


def _own_batch(tier: BatchTier | None, inputs: DemandInputs, factor: float) -> Demand | None:
    """Return the requests of a batch tier with a demand of its own, scaled if it is a shape."""
    if tier is None or tier.demand is None:
        return None
    demand = cut_to_period(tier.demand, inputs.days, inputs.start_day).demand
    return demand if demand.absolute else demand.times(factor)


def _fleet(cluster: Cluster, services: Sequence[Service], options: FleetOptions) -> Fleet:
    """Return the units of a cluster; blocks are whole groups of prefill and decode replicas."""
    limits, policy, failing = options.limits, options.policy, options.fleet.failures
    failures = None
    if failing != "off":
        failures = failures_from(cluster, services, domains=failing == "domains")
    return Fleet(
        cluster.domains,
        cluster.chips_per_domain,
        costs_of(cluster, limits),
        Limits(
            floor=limits.floor,
            cap=policy.cap,
            block=math.lcm(limits.block, block_of(services)),
            changes_per_minute=policy.changes_per_minute,
            min_lease_s=seconds(policy.lease, "--lease"),
            notice_s=seconds(policy.notice, "--notice"),
            reserve=limits.reserve,
        ),
        failures,
    )


def costs_of(cluster: Cluster, inputs: LimitInputs) -> ChangeCosts:
    """Return the costs of role changes: the catalogue's, or one fixed time of the options."""
    by_source = ChangeCosts.of(cluster, source=inputs.weights)
    if inputs.change_time is None:
        return by_source
    return ChangeCosts.fixed(seconds(inputs.change_time, "--change-time"))


def _economics(cluster: Cluster, money: MoneyInputs) -> Economics:
    """Prices and power of a cluster's machine, those of the options before the catalogue's."""
    economics = Economics.of(cluster, carbon_g_per_kwh=money.carbon)
    discount = economics.batch_discount if money.batch_discount is None else money.batch_discount
    return replace(economics, usd_per_million_tokens=money.token_price, batch_discount=discount)


def what_ifs(base: Scenario, texts: Sequence[str]) -> list[tuple[str, Scenario]]:
    """Return the base scenario and one for each what-if, all with their names."""
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
    """Return a policy by name, or a user's from a file, configured for a scenario."""
    costs = scenario.fleet.change_costs
    # Evaluation takes the units of its job, and batch work any.
    rest = sum(job.units for job in scenario.jobs if job.evaluation)
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
        rest_units=float(rest if scenario.batch is None else scenario.cluster.domains),
    )
    return policy_named(name, replace(settings or PolicyInputs(), **changes), situation)
