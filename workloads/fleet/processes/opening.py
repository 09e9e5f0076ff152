"""State of a fleet before its first minute: requests, inputs of the control loop, the world."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import simpy

from topologies.arrays import IntArray
from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY, Demand, whole_requests
from workloads.fleet.inputs.batch import BatchWork
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.processes.control import MINUTE_MS, Inputs, Signals
from workloads.fleet.processes.failures import Fleet
from workloads.fleet.processes.moves import Process, dispatch
from workloads.fleet.state.gangs import Gang
from workloads.fleet.state.ledger import NOBODY, Ledger, milliseconds
from workloads.fleet.state.needs import rates_max, units_needed
from workloads.fleet.state.queues import Batch, BatchQueue, Queue
from workloads.fleet.state.roles import Role
from workloads.fleet.state.services import Service, by_pool, lead_s, pools_from
from workloads.fleet.state.store import Store
from workloads.fleet.state.world import World

MAX_UNITS = 1_000_000


def in_whole_requests(demand: Demand) -> Demand:
    """Return the demand with whole numbers of requests in every minute."""
    counts = whole_requests(demand).astype(float)
    lengths = demand.prompt_tokens, demand.output_tokens
    return Demand(demand.services, demand.start, counts, *lengths)


def inputs_of(
    demand: Demand,
    services: Sequence[Service],
    signals: Signals,
) -> Inputs:
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
    """Return the world of a run before it begins: every unit is spare and every job waits.

    Raises InputError for a fleet without units, limits or a job that it is too small for, two
    evaluation jobs, and batch work of another length than the demand.
    """
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
    """Return the empty batch tier of a run."""
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
    """Give the units of a finished job to other work."""
    world.ledger.put(units, Role.SPARE, world.now)
    dispatch(world)


def _arrive(world: World, at_ms: int) -> Process:
    """Offer units to a job when it arrives."""
    yield world.env.timeout(at_ms)
    dispatch(world)


def _new_ledger(fleet: Fleet, pools: int) -> Ledger:
    """Return a ledger in which all units are spare, and check their number."""
    if not 1 <= fleet.units <= MAX_UNITS:
        raise InputError(f"a fleet of {fleet.units:,} units; it must have 1 to {MAX_UNITS:,}.")
    return Ledger(fleet.units, pools, fleet.servers)


def never_changes(world: World) -> bool:
    """Return whether a change of role takes longer than the whole run."""
    horizon_ms = world.horizon_ms
    return milliseconds(lead_s(world.costs, world.services), horizon_ms) > horizon_ms


def _check_sizes(jobs: Sequence[TrainingJob], units: int) -> None:
    """Check that every job can start on the fleet."""
    for job in jobs:
        if job.min_units > units:
            raise InputError(
                f"job {job.name} needs {job.min_units:,} units, the fleet has {units:,}; "
                "make the job smaller."
            )
