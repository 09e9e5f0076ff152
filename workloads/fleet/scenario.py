"""A scenario: cluster, demand and model made into everything that a fleet run needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from topologies.catalogue import catalogue
from topologies.clusters import Cluster
from topologies.errors import InputError, suggestion
from workloads.demand import Demand, demand, failover, measured_noise, mix, spike, with_noise
from workloads.demand.trace import MINUTES_PER_DAY, MINUTES_PER_WEEK
from workloads.fleet.costs import ChangeCosts
from workloads.fleet.economics import Economics
from workloads.fleet.failures import Failures
from workloads.fleet.jobs import TrainingJob, default_jobs, read_jobs
from workloads.fleet.progress import training_rates
from workloads.fleet.simulate import FleetRun, scaled_to_fleet, simulate, units_needed
from workloads.fleet.view import Limits, Policy
from workloads.fleet.world import Service
from workloads.model import Model
from workloads.serving import (
    BUCKETS,
    Batching,
    Profile,
    Slo,
    azure_lengths,
    capacity_table,
    fixed_rate,
    profile,
)

FloatArray = npt.NDArray[np.float64]
DEFAULT_SLO = Slo(ttft_s=6.0, tpot_s=0.175)
"""Limits of MLPerf's server scenario for Llama-3.1-405B."""
STEP_TOKENS = 16e6
"""Tokens of one optimizer step of the default jobs: the batch of Llama 3 (arXiv 2407.21783)."""
WHAT_IFS = ("plus-30", "spike", "failover")


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

    @property
    def need(self) -> FloatArray:
        """Units that each minute needs; (services, minutes)."""
        return units_needed(self.demand, self.services)

    @property
    def lead_s(self) -> float:
        """Expected time until a unit that trained serves [s]."""
        heaviest = max(service.weights_bytes for service in self.services)
        return self.costs.to_serving_s(heaviest)


def demand_of(
    names: Sequence[str],
    *,
    service: str | None = None,
    weights: Sequence[float] = (),
    average_minutes: int = 1,
    what_if: str = "",
) -> Demand:
    """Read one demand, or put several side by side, weighted by their mean requests.

    Parameters
    ----------
    names : sequence of str
        Bundled names or files.
    service : str, optional
        Keep this service of each.
    weights : sequence of float
        Shares of the requests; by default the traces' own.
    average_minutes : int
        60 for hourly means.
    what_if : str
        One of ``WHAT_IFS``: 30 % more; twice the demand for 30 minutes from 02:00 on the second
        day; from the middle on for 12 hours another region's load as well.
    """
    if not names:
        raise InputError("no demand given; name a bundled trace or a CSV file.")
    made = [demand(name, service=service) for name in names]
    if weights:
        if len(weights) != len(made) or min(weights) <= 0:
            raise InputError(
                f"{len(weights)} weights for {len(made)} demands; give one above 0 each."
            )
        made = [
            each.times(weight / each.requests.sum(axis=0).mean())
            for each, weight in zip(made, weights, strict=True)
        ]
    joined = mix(made) if len(made) > 1 else made[0]
    return _what_if(joined.averaged(average_minutes) if average_minutes > 1 else joined, what_if)


def scenario(
    cluster: Cluster,
    asked: Demand,
    *,
    model: Model | None = None,
    tp: int | None = None,
    slo: Slo = DEFAULT_SLO,
    chunk_tokens: int = 512,
    unit_rate_per_s: float | None = None,
    peak_share: float = 1.0,
    days: float | None = None,
    start_day: float = 0.0,
    noise: float | str = 0.0,
    costs: ChangeCosts | None = None,
    source: str = "nvme",
    limits: Limits | None = None,
    failing: bool = True,
    training: str | Path | None = None,
    carbon_g_per_kwh: float = 0.0,
    cache: Path | None = None,
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
        Served, and trained by the default jobs. Without it, or with ``unit_rate_per_s``, there is
        no latency model: a request that is not queued keeps the SLO.
    tp : int, optional
        Chips of a replica.
    slo : Slo
    chunk_tokens : int
        Prompts are cut into such pieces; 0 lets decode stand still for whole prompts, which keeps
        no tight TPOT. See :class:`workloads.serving.Batching`.
    days, start_day : float
        Length, by default up to a week; what lies before the start is history that policies know.
    noise : float or "measured"
        Relative spread of Gamma noise on top of Poisson arrivals; 0 takes the demand as it is.
    costs : ChangeCosts, optional
        By default the catalogue's, with weights from ``source``.
    training : path, optional
        Jobs, see :func:`workloads.fleet.jobs.read_jobs`.
    cache : Path, optional
        Where capacity tables are kept.
    rng : numpy.random.Generator, optional
        For the noise.
    """
    units, chips = cluster.domains, cluster.chips_per_domain
    window, before = _window(asked, days, start_day)
    served = None
    if model is not None and unit_rate_per_s is None:
        served = profile(model, cluster, tp=tp)
    services = tuple(
        _service(name, window.only(name), served, slo, chunk_tokens, unit_rate_per_s, chips, cache)
        for name in window.services
    )
    scaled = scaled_to_fleet(window, services, units, peak_share=peak_share)
    factor = scaled.requests.sum() / window.requests.sum()
    if noise:
        spread = measured_noise(window) if isinstance(noise, str) else float(noise)
        scaled = with_noise(scaled, rng or np.random.default_rng(0), relative_sd=spread)
    servers = max(1, chips // cluster.chips_per_server)
    return Scenario(
        cluster=cluster,
        demand=scaled,
        history=None if before is None else before.times(factor),
        services=services,
        jobs=read_jobs(training) if training else _night_work(cluster, model, units),
        costs=costs or ChangeCosts.from_catalogue(servers, source=source),
        limits=limits or Limits(),
        failures=Failures.from_catalogue(chips) if failing else None,
        economics=Economics.of(cluster, carbon_g_per_kwh=carbon_g_per_kwh),
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
        rng=np.random.default_rng(seed),
    )


def _what_if(made: Demand, name: str) -> Demand:
    if not name:
        return made
    if name == "plus-30":
        return made.times(1.3)
    if name == "spike":
        return spike(made, at="02:00", minutes=30, day=min(1, made.minutes // MINUTES_PER_DAY - 1))
    if name == "failover":
        return failover(made, minute=made.minutes // 2, minutes=720)
    raise InputError(
        f"unknown what-if {name!r}; choose from {', '.join(WHAT_IFS)}." + suggestion(name, WHAT_IFS)
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


def _service(
    name: str,
    asked: Demand,
    served: Profile | None,
    slo: Slo,
    chunk_tokens: int,
    unit_rate_per_s: float | None,
    chips_per_unit: int,
    cache: Path | None,
) -> Service:
    if served is None:
        return Service(name, fixed_rate(1000.0 if unit_rate_per_s is None else unit_rate_per_s))
    prompt, output = (
        float(np.average(column[0], weights=asked.requests[0]))
        for column in (asked.prompt_tokens, asked.output_tokens)
    )
    shape = azure_lengths("code" if output < 60 else "conv").with_means(prompt, output)
    replicas = max(1, chips_per_unit // served.chips)
    batching = Batching(chunk_tokens=chunk_tokens, buckets=() if chunk_tokens else BUCKETS)
    table = capacity_table(
        served,
        shape,
        slo,
        replicas=replicas,
        batching=batching,
        prompt_means=_grid(asked.prompt_tokens[0], prompt),
        output_means=_grid(asked.output_tokens[0], output),
        cache=cache,
    )
    return Service(name, table, weights_bytes=replicas * served.weights_bytes)


def _grid(values: FloatArray, mean: float) -> FloatArray:
    """Least, mean and largest value, without those within 5 % of the mean."""
    points = np.array([values.min(), mean, values.max()])
    kept: FloatArray = np.unique(points[(np.abs(points / mean - 1) > 0.05) | (points == mean)])
    return np.maximum(kept, 1.0)


def _night_work(cluster: Cluster, model: Model | None, units: int) -> tuple[TrainingJob, ...]:
    if model is None:
        return default_jobs(units)
    book = cluster.catalogue or catalogue()
    state = model.parameters * book.value("fleet.training", "state_bytes_per_parameter")
    rates = training_rates(model, cluster)
    return tuple(
        job if job.evaluation else replace(job, state_bytes=state, tokens_per_s=rates)
        for job in default_jobs(units, step_tokens=STEP_TOKENS)
    )
