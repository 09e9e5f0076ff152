"""Simulation of a fleet: demand, services, jobs and a policy give a record of every minute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd
import simpy

from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY, Demand, whole_requests
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.policies.rules import best_static, static
from workloads.fleet.policies.view import Policy
from workloads.fleet.processes.control import MINUTE_MS, Inputs, Record, Signals, controlling
from workloads.fleet.processes.failures import (
    Failures,
    Fleet,
    failing,
    failing_together,
    interrupting,
)
from workloads.fleet.processes.moves import Process, dispatch
from workloads.fleet.state.gangs import Gang, Tally
from workloads.fleet.state.ledger import MS, NOBODY, Ledger, Role, milliseconds
from workloads.fleet.state.queues import Batch, BatchQueue, BatchWork, Queue
from workloads.fleet.state.services import (
    Pool,
    Service,
    by_pool,
    lead_s,
    pools_from,
    rates_max,
    units_needed,
)
from workloads.fleet.state.store import Store
from workloads.fleet.state.world import Change, World

MAX_UNITS = 1_000_000


def in_whole_requests(demand: Demand) -> Demand:
    """Return the demand with whole numbers of requests in every minute."""
    counts = whole_requests(demand).astype(float)
    lengths = demand.prompt_tokens, demand.output_tokens
    return Demand(demand.services, demand.start, counts, *lengths)


def inputs_of(demand: Demand, services: Sequence[Service], signals: Signals) -> Inputs:
    """Return the inputs of the control loop, with the load of the history in front."""
    pools = pools_from(services)
    load = by_pool(units_needed(demand, services), pools)
    past = load[:, :0]
    if signals.history is not None:
        past = by_pool(units_needed(signals.history, services), pools)
    start = pd.Timestamp(demand.start)
    return Inputs(
        load=np.concatenate([past, load], axis=1),
        rate_max_per_s=rates_max(demand, services),
        history=past.shape[1],
        first_minute_of_week=start.weekday() * MINUTES_PER_DAY + start.hour * 60 + start.minute,
        held=np.zeros(demand.minutes, bool) if signals.held is None else signals.held,
        signals=signals,
    )


def opened(
    demand: Demand,
    services: Sequence[Service],
    jobs: Sequence[TrainingJob],
    fleet: Fleet,
    rng: np.random.Generator,
    batch: BatchWork | None = None,
) -> World:
    """Return the world of a run before it begins: every unit is spare and every job waits."""
    pools = pools_from(services)
    ledger = _new_ledger(fleet, len(pools))
    fleet.limits.check(len(ledger))
    costs = fleet.change_costs
    evaluations = [job for job in jobs if job.evaluation]
    if len(evaluations) > 1:
        raise InputError(f"{len(evaluations)} evaluation jobs; join them into one.")
    env = simpy.Environment()
    horizon_ms = demand.minutes * MINUTE_MS
    ordered = sorted((job for job in jobs if not job.evaluation), key=lambda job: job.priority)
    _check_sizes(ordered, len(ledger))
    store = Store(env, costs.store_bytes_per_s)
    world = World(
        env=env,
        ledger=ledger,
        store=store,
        costs=costs,
        limits=fleet.limits,
        services=tuple(services),
        pools=pools,
        queues=tuple(
            Queue(row, service.patience_s / 60.0)
            for row, service in zip(demand.requests.astype(np.int64), services, strict=True)
        ),
        gangs=tuple(
            Gang(number, job, env, ledger, costs, horizon_ms, store)
            for number, job in enumerate(ordered)
        ),
        evaluation=evaluations[0] if evaluations else None,
        rng=rng,
        horizon_ms=horizon_ms,
        heading=np.full(len(ledger), NOBODY, np.int16),
        batch=None if batch is None else _batch(batch, demand),
    )
    for gang in world.gangs:
        gang.on_finish = partial(_release_finished, world)
        if gang.job.arrives_s > 0:
            env.process(_arrive(world, milliseconds(gang.job.arrives_s, horizon_ms)))
    return world


def _batch(work: BatchWork, demand: Demand) -> Batch:
    if work.demand.minutes != demand.minutes or len(work.demand.services) != 1:
        raise InputError(
            f"batch work of {len(work.demand.services)} services and {work.demand.minutes:,} "
            f"minutes; it must be one service as long as the run of {demand.minutes:,} minutes."
        )
    whole = in_whole_requests(work.demand)
    arrivals = whole.requests[0].astype(np.int64)
    lengths = whole.prompt_tokens[0] + whole.output_tokens[0]
    tokens = np.rint(arrivals * lengths).astype(np.int64)
    return Batch(BatchQueue(arrivals, tokens, work.deadline_minutes), work.rate_per_s)


def _release_finished(world: World, units: IntArray) -> None:
    world.ledger.put(units, Role.SPARE, world.now)
    dispatch(world)


def _arrive(world: World, at_ms: int) -> Process:
    yield world.env.timeout(at_ms)
    dispatch(world)


def _new_ledger(fleet: Fleet, pools: int) -> Ledger:
    if not 1 <= fleet.units <= MAX_UNITS:
        raise InputError(f"a fleet of {fleet.units:,} units; it must have 1 to {MAX_UNITS:,}.")
    return Ledger(fleet.units, pools, fleet.servers)


def _check_sizes(jobs: Sequence[TrainingJob], units: int) -> None:
    for job in jobs:
        if job.min_units > units:
            raise InputError(
                f"job {job.name} needs {job.min_units:,} units, the fleet has {units:,}; "
                "make the job smaller."
            )


@dataclass(frozen=True, eq=False)
class FleetRun:
    """Result of a fleet run.

    ``demand``: requests that arrived, in whole numbers.
    ``load`` (services, minutes): units that the demand needed, at the rate that a unit sustains
        under the SLO.
    ``rate_max_per_s`` (services, minutes): requests that one unit serves at saturation [1/s].
    ``servers``: servers of a unit where each fails on its own; else 1.
    ``spent_server_ms`` (minutes + 1, accounts): server-time by role up to each minute's start;
        serving by pool from account 12 on.
    ``service_units`` (minutes, services): mean units that worked for each service.
    ``jobs``: training jobs without evaluation.
    ``finished_s``: time at which each of these jobs was done, infinity where it was not [s].
    ``failures_by_domain``: failures by what failed: a server, a rack, a scale-up domain, a power
        feed, a switch, an optical link, software.
    ``loaded_bytes``: read from and written to the shared store [B].
    """

    demand: Demand
    services: tuple[Service, ...]
    units: int
    chips_per_unit: int
    load: FloatArray
    rate_max_per_s: FloatArray
    servers: int
    spent_server_ms: npt.NDArray[np.int64]
    service_units: FloatArray
    pools: tuple[Pool, ...]
    queues: tuple[Queue, ...]
    jobs: tuple[tuple[TrainingJob, Tally], ...]
    finished_s: tuple[float, ...]
    evaluation: TrainingJob | None
    changes: tuple[Change, ...] = field(repr=False, default=())
    failures: int = 0
    failures_by_domain: dict[str, int] = field(default_factory=dict)
    loaded_bytes: float = 0.0
    batch: BatchQueue | None = None

    @property
    def chips_per_server(self) -> int:
        """Chips that fail together."""
        return self.chips_per_unit // self.servers

    @property
    def minutes(self) -> int:
        """Length of the run."""
        return self.demand.minutes


def simulate(
    demand: Demand,
    services: Sequence[Service],
    fleet: Fleet,
    policy: Policy,
    *,
    jobs: Sequence[TrainingJob] = (),
    batch: BatchWork | None = None,
    signals: Signals | None = None,
    rng: np.random.Generator | None = None,
) -> FleetRun:
    """Run a fleet through a demand.

    The fleet begins in the roles of the policy's first decision, at no cost. Where a change of role
    takes longer than the whole run, no policy can change anything: the fleet then keeps the static
    split that serves the busiest hour.

    >>> from workloads.demand import constant
    >>> from workloads.fleet.policies.rules import static
    >>> from workloads.serving import fixed_rate
    >>> run = simulate(constant(60.0, minutes=5), [Service("chat", fixed_rate(2.0))], Fleet(3),
    ...                static(1))
    >>> run.queues[0].served.tolist()
    [60, 60, 60, 60, 60]
    """
    whole = in_whole_requests(demand)
    inputs = inputs_of(whole, services, signals or Signals())
    world = opened(whole, services, jobs, fleet, rng or np.random.default_rng(0), batch)
    record = _run_to_end(world, inputs, policy, fleet.failures)
    return FleetRun(
        demand=whole,
        services=world.services,
        units=len(world.ledger),
        chips_per_unit=fleet.chips_per_unit,
        load=units_needed(whole, world.services),
        rate_max_per_s=inputs.rate_max_per_s,
        servers=world.ledger.servers,
        spent_server_ms=record.spent_server_ms,
        service_units=record.service_units,
        pools=world.pools,
        queues=world.queues,
        jobs=tuple((gang.job, gang.finish()) for gang in world.gangs),
        finished_s=tuple(
            gang.finished_ms / MS if gang.finished_ms >= 0 else math.inf for gang in world.gangs
        ),
        evaluation=world.evaluation,
        changes=tuple(world.changes),
        failures=world.failures.total(),
        failures_by_domain=dict(world.failures),
        loaded_bytes=world.store.moved_bytes,
        batch=None if world.batch is None else world.batch.queue,
    )


def _run_to_end(world: World, inputs: Inputs, policy: Policy, failures: Failures | None) -> Record:
    lead_ms = milliseconds(lead_s(world.costs, world.services), world.horizon_ms)
    if lead_ms > world.horizon_ms:  # no change of role ends within the run
        policy = static(best_static(inputs.load[:, inputs.history :]))
    minutes = inputs.rate_max_per_s.shape[1]
    record = Record(
        spent_server_ms=np.zeros((minutes + 1, world.ledger.accounts), np.int64),
        service_units=np.zeros((minutes, len(world.services))),
    )
    end = world.env.process(controlling(world, inputs, policy, record))
    if failures is not None:
        world.env.process(failing(world, failures))
        for domain in failures.domains:
            world.env.process(failing_together(world, domain))
        for interruption in failures.interruptions:
            world.env.process(interrupting(world, interruption))
    world.env.run(until=end)
    return record
