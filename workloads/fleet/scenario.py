"""A scenario: cluster, demand and model made into everything that a fleet run needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from topologies.catalogue.catalogue import catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.demand import Demand, measured_noise, with_noise
from workloads.demand.trace import MINUTES_PER_DAY, MINUTES_PER_WEEK
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.economics import Economics
from workloads.fleet.inputs.job_file import read_jobs
from workloads.fleet.inputs.jobs import TrainingJob, default_jobs
from workloads.fleet.inputs.prices import Prices
from workloads.fleet.inputs.progress import training_rates
from workloads.fleet.policies.view import Limits, Policy
from workloads.fleet.processes.failures import Failures
from workloads.fleet.simulate import FleetRun, simulate
from workloads.fleet.state.needs import scaled_to_fleet, units_needed
from workloads.fleet.state.services import Serving, services_of
from workloads.fleet.state.world import Service, lead_s
from workloads.models.model import Model

FloatArray = npt.NDArray[np.float64]
STEP_TOKENS = 16e6
"""Tokens of one optimizer step of the default jobs: the batch of Llama 3 (arXiv 2407.21783)."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """Everything that a run needs but the policy and the seed."""

    cluster: Cluster
    demand: Demand
    history: Demand | None
    services: tuple[Service, ...]
    jobs: tuple[TrainingJob, ...]
    costs: ChangeCosts
    limits: Limits
    failures: Failures | None
    economics: Economics
    prices: Prices | None = None

    @property
    def need(self) -> FloatArray:
        """Units that each minute needs; (services, minutes)."""
        return units_needed(self.demand, self.services)

    @property
    def lead_s(self) -> float:
        """Expected time until a unit that trained serves [s]."""
        return lead_s(self.costs, self.services)


def scenario(
    cluster: Cluster,
    asked: Demand,
    *,
    model: Model | None = None,
    serving: Serving | None = None,
    days: float | None = None,
    start_day: float = 0.0,
    peak_share: float = 1.0,
    noise: float | str = 0.0,
    training: str | Path | None = None,
    costs: ChangeCosts | None = None,
    limits: Limits | None = None,
    failing: bool = True,
    economics: Economics | None = None,
    rng: np.random.Generator | None = None,
) -> Scenario:
    """Make a scenario.

    Parameters
    ----------
    cluster : Cluster
        Its scale-up domains are the units that change role.
    asked : Demand
        Any scale; the busiest hour of the run is scaled to ``peak_share`` of the fleet.
    model : Model, optional
        Served, and trained by the default jobs.
    serving : Serving, optional
    days, start_day : float
        Length, by default up to a week; what lies before the start is history that policies know.
    noise : float or "measured"
        Relative spread of Gamma noise on top of Poisson arrivals; 0 takes the demand as it is.
    training : path, optional
        Jobs, see :func:`workloads.fleet.inputs.job_file.read_jobs`.
    costs, limits, failing, economics
        By default the catalogue's.
    rng : numpy.random.Generator, optional
        For the noise.
    """
    window, before = _window(asked, days, start_day)
    services = services_of(window, cluster, model, serving or Serving())
    scaled = scaled_to_fleet(window, services, cluster.domains, peak_share=peak_share)
    factor = scaled.requests.sum() / window.requests.sum()
    return Scenario(
        cluster=cluster,
        demand=_noisy(scaled, window, noise, rng or np.random.default_rng(0)),
        history=None if before is None else before.times(factor),
        services=services,
        jobs=read_jobs(training) if training else _night_work(cluster, model),
        costs=costs or ChangeCosts.of(cluster),
        limits=limits or Limits(),
        failures=_failures(cluster, services) if failing else None,
        economics=economics or Economics.of(cluster),
    )


def run(made: Scenario, policy: Policy, *, seed: int = 0) -> FleetRun:
    """Run a scenario under a policy."""
    return simulate(
        made.demand,
        made.services,
        units=made.cluster.domains,
        chips_per_unit=made.cluster.chips_per_domain,
        policy=policy,
        jobs=made.jobs,
        costs=made.costs,
        limits=made.limits,
        failures=made.failures,
        history=made.history,
        held=None if made.prices is None else made.prices.dear,
        rng=np.random.default_rng(seed),
    )


def _window(asked: Demand, days: float | None, start_day: float) -> tuple[Demand, Demand | None]:
    first = round(start_day * MINUTES_PER_DAY)
    left = asked.minutes - first
    length = min(left, MINUTES_PER_WEEK) if days is None else round(days * MINUTES_PER_DAY)
    if length < 1 or first < 0 or length > left:
        raise InputError(
            f"{length / MINUTES_PER_DAY:g} days from day {start_day:g} of a demand of "
            f"{asked.minutes / MINUTES_PER_DAY:g} days; choose fewer days or an earlier start."
        )
    before = asked.between(0, first) if first else None
    return asked.between(first, first + length), before


def _noisy(
    demand: Demand, measured: Demand, noise: float | str, rng: np.random.Generator
) -> Demand:
    """Draw the requests of each minute, by default with the spread measured at full scale."""
    if not noise:
        return demand
    spread = measured_noise(measured) if isinstance(noise, str) else float(noise)
    return with_noise(demand, rng, relative_sd=spread)


def _failures(cluster: Cluster, services: tuple[Service, ...]) -> Failures:
    """Servers fail one by one where no replica spans several of them."""
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    apart = all(service.replicas % servers == 0 for service in services)
    chips = cluster.chips_per_domain
    return Failures.from_catalogue(chips, servers=servers if apart else 1, parts=cluster.catalogue)


def _night_work(cluster: Cluster, model: Model | None) -> tuple[TrainingJob, ...]:
    units = cluster.domains
    if model is None:
        return default_jobs(units)
    book = cluster.catalogue or catalogue()
    state = model.parameters * book.value("fleet.training", "state_bytes_per_parameter")
    rates = training_rates(model, cluster)
    return tuple(
        job if job.evaluation else replace(job, state_bytes=state, tokens_per_s=rates)
        for job in default_jobs(units, step_tokens=STEP_TOKENS)
    )
