"""Running a fleet: demand, services, jobs and a policy in; a record of every minute out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd
import simpy

from topologies.errors import InputError
from workloads.demand.trace import Demand, whole_requests
from workloads.demand.whatif import busiest_hour
from workloads.fleet.control import MINUTE_MS, Inputs, controlling
from workloads.fleet.costs import ChangeCosts
from workloads.fleet.failures import Failures, failing
from workloads.fleet.gangs import Gang, Tally
from workloads.fleet.jobs import TrainingJob
from workloads.fleet.ledger import NOBODY, Ledger, milliseconds
from workloads.fleet.policies import best_static, static
from workloads.fleet.queues import Queue
from workloads.fleet.store import Store
from workloads.fleet.view import Limits, Policy
from workloads.fleet.world import Change, Service, World

FloatArray = npt.NDArray[np.float64]
MAX_UNITS = 1_000_000


@dataclass(frozen=True, eq=False)
class FleetRun:
    """What happened.

    Attributes
    ----------
    demand : Demand
        As served, in whole requests.
    services : tuple of Service
    units, chips_per_unit : int
    load : float array (services, minutes)
        Units that the demand needed, at the rate under the SLO.
    rate_max_per_s : float array (services, minutes)
        Requests that one unit serves at saturation [1/s].
    spent_unit_ms : int64 array (minutes + 1, accounts)
        Unit-time by role up to each minute's start; serving by service from account 11 on.
    queues : tuple of Queue
    jobs : tuple of (TrainingJob, Tally)
        Evaluation not among them.
    evaluation : TrainingJob or None
    changes : tuple of Change
    failures : int
    loaded_bytes : float
        Read from and written to the shared store [B].
    """

    demand: Demand
    services: tuple[Service, ...]
    units: int
    chips_per_unit: int
    load: FloatArray
    rate_max_per_s: FloatArray
    spent_unit_ms: npt.NDArray[np.int64]
    queues: tuple[Queue, ...]
    jobs: tuple[tuple[TrainingJob, Tally], ...]
    evaluation: TrainingJob | None
    changes: tuple[Change, ...] = field(repr=False, default=())
    failures: int = 0
    loaded_bytes: float = 0.0

    @property
    def minutes(self) -> int:
        """Length of the run."""
        return self.demand.minutes


def units_needed(demand: Demand, services: Sequence[Service]) -> FloatArray:
    """Units that each minute's demand needs at the rate under the SLO; (services, minutes)."""
    _check_services(demand, services)
    rows = []
    for number, service in enumerate(services):
        work = service.capacity.work(demand.prompt_tokens[number], demand.output_tokens[number])
        rows.append(demand.requests[number] / 60.0 * work / service.capacity.rate_slo_per_s)
    return np.array(rows)


def scaled_to_fleet(
    demand: Demand, services: Sequence[Service], units: int, *, peak_share: float = 1.0
) -> Demand:
    """Scale demand so that its busiest hour needs a share of the fleet."""
    if not 0 < peak_share < 100:
        raise InputError(f"a peak share of {peak_share} is not in (0, 100); 1 fills the fleet.")
    peak = busiest_hour(units_needed(demand, services).sum(axis=0))
    if peak <= 0:
        raise InputError("the demand has no requests; there is nothing to scale.")
    return demand.times(peak_share * units / peak)


def simulate(
    demand: Demand,
    services: Sequence[Service],
    *,
    units: int,
    policy: Policy,
    jobs: Sequence[TrainingJob] = (),
    costs: ChangeCosts | None = None,
    limits: Limits | None = None,
    failures: Failures | None = None,
    history: Demand | None = None,
    chips_per_unit: int = 64,
    rng: np.random.Generator | None = None,
) -> FleetRun:
    """Run a fleet through a demand.

    The fleet begins as the policy's first answer has it, at no cost. When a change of role takes
    longer than the whole run no policy can change anything, and the fleet is the static split that
    serves the busiest hour.

    Parameters
    ----------
    demand : Demand
        In requests of the whole fleet; see :func:`scaled_to_fleet`.
    services : sequence of Service
        One for each service of the demand.
    units : int
        UltraServers, or whatever changes role as one.
    policy : callable
        See :mod:`workloads.fleet.policies`.
    jobs : sequence of TrainingJob
        At most one of them evaluation.
    costs : ChangeCosts, optional
        By default those of the catalogue.
    limits : Limits, optional
    failures : Failures, optional
        None: nothing breaks.
    history : Demand, optional
        What came before, known to the policy; it ends where the demand begins.
    chips_per_unit : int
    rng : numpy.random.Generator, optional
        The only source of randomness: failures, repairs, compile misses. Seed 0 by default.

    Raises
    ------
    InputError
        For services that do not match, a fleet without units, a job larger than the fleet.
    """
    if not 1 <= units <= MAX_UNITS:
        raise InputError(f"a fleet of {units:,} units; it must have 1 to {MAX_UNITS:,}.")
    (limits or Limits()).check(units)
    whole = Demand(
        demand.services,
        demand.start,
        whole_requests(demand).astype(float),
        demand.prompt_tokens,
        demand.output_tokens,
    )
    load = units_needed(whole, services)
    past = units_needed(history, services) if history is not None else load[:, :0]
    world = _world(whole, services, units, jobs, costs, limits, chips_per_unit, rng)
    heaviest = max((service.weights_bytes for service in services), default=0.0)
    change_ms = milliseconds(world.costs.to_serving_s(heaviest), world.horizon_ms)
    if change_ms > world.horizon_ms:
        policy = static(best_static(load))
    start = pd.Timestamp(demand.start)
    inputs = Inputs(
        load=np.concatenate([past, load], axis=1),
        rate_max_per_s=_rates_max(whole, services),
        history=past.shape[1],
        first_minute_of_week=start.weekday() * 1440 + start.hour * 60 + start.minute,
    )
    spent = np.zeros((whole.minutes + 1, world.ledger.accounts), np.int64)
    end = world.env.process(controlling(world, inputs, policy, spent))
    if failures is not None:
        world.env.process(failing(world, failures))
    world.env.run(until=end)
    return _record(world, whole, load, inputs, spent, chips_per_unit)


def _world(
    demand: Demand,
    services: Sequence[Service],
    units: int,
    jobs: Sequence[TrainingJob],
    costs: ChangeCosts | None,
    limits: Limits | None,
    chips_per_unit: int,
    rng: np.random.Generator | None,
) -> World:
    env = simpy.Environment()
    ledger = Ledger(units, len(services))
    horizon_ms = demand.minutes * MINUTE_MS
    chosen = costs or ChangeCosts.from_catalogue(max(1, chips_per_unit // 16))
    evaluations = [job for job in jobs if job.evaluation]
    if len(evaluations) > 1:
        raise InputError(f"{len(evaluations)} evaluation jobs; join them into one.")
    ordered = sorted((job for job in jobs if not job.evaluation), key=lambda job: job.priority)
    for job in ordered:
        if job.min_units > units:
            raise InputError(
                f"job {job.name} needs {job.min_units:,} units, the fleet has {units:,}; "
                "make the job smaller."
            )
    gangs = tuple(
        Gang(number, job, env, ledger, chosen, horizon_ms) for number, job in enumerate(ordered)
    )
    arrivals = demand.requests.astype(np.int64)
    return World(
        env=env,
        ledger=ledger,
        store=Store(env, chosen.store_bytes_per_s),
        costs=chosen,
        limits=limits or Limits(),
        services=tuple(services),
        queues=tuple(
            Queue(row, service.patience_s / 60.0)
            for row, service in zip(arrivals, services, strict=True)
        ),
        gangs=gangs,
        evaluation=evaluations[0] if evaluations else None,
        rng=rng or np.random.default_rng(0),
        horizon_ms=horizon_ms,
        heading=np.full(units, NOBODY, np.int16),
    )


def _record(
    world: World,
    demand: Demand,
    load: FloatArray,
    inputs: Inputs,
    spent: npt.NDArray[np.int64],
    chips_per_unit: int,
) -> FleetRun:
    return FleetRun(
        demand=demand,
        services=world.services,
        units=len(world.ledger),
        chips_per_unit=chips_per_unit,
        load=load,
        rate_max_per_s=inputs.rate_max_per_s,
        spent_unit_ms=spent,
        queues=world.queues,
        jobs=tuple((gang.job, gang.finish()) for gang in world.gangs),
        evaluation=world.evaluation,
        changes=tuple(world.changes),
        failures=world.failures,
        loaded_bytes=world.store.moved_bytes,
    )


def _rates_max(demand: Demand, services: Sequence[Service]) -> FloatArray:
    rows = []
    for number, service in enumerate(services):
        work = service.capacity.work(demand.prompt_tokens[number], demand.output_tokens[number])
        rows.append(service.capacity.rate_max_per_s / work)
    return np.array(rows)


def _check_services(demand: Demand, services: Sequence[Service]) -> None:
    if len(services) != len(demand.services):
        raise InputError(
            f"{len(services)} services for a demand of {len(demand.services)} "
            f"({', '.join(demand.services)}); give one for each."
        )
