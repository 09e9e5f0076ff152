"""Control loop of the fleet: once a minute, ask the policy, order role changes, serve requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from topologies.arrays import FloatArray
from workloads.demand.trace import MINUTES_PER_DAY, MINUTES_PER_WEEK, Demand
from workloads.fleet.policies.view import JobView, Policy, View, answer
from workloads.fleet.processes.batch import balance
from workloads.fleet.processes.moves import (
    Phase,
    Process,
    dispatch,
    limit_training,
    reclaim,
    release,
    to_serving,
)
from workloads.fleet.state.gangs import Gang
from workloads.fleet.state.ledger import MS, Role, milliseconds
from workloads.fleet.state.services import Pool, by_pool
from workloads.fleet.state.world import World

MINUTE_MS = 60 * MS


@dataclass(frozen=True, eq=False)
class Signals:
    """Signals from outside the fleet: earlier demand, prices, power, and minutes without training.

    ``history``: demand before the run, which policies know; it ends where the run begins.
    ``held`` (minutes,): minutes in which nothing may train or evaluate, such as those of dear
        electricity.
    ``prices_usd_per_mwh`` (minutes,): price of electricity in each minute of the run, and of the
        day after it where known; empty without prices.
    ``unit_busy_w, unit_idle_w``: draw of the site for one unit that computes, and for one that does
        not [W].
    """

    history: Demand | None = None
    held: npt.NDArray[np.bool_] | None = None
    prices_usd_per_mwh: FloatArray = field(default_factory=lambda: np.empty(0))
    unit_busy_w: float = 0.0
    unit_idle_w: float = 0.0


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of the control loop, by the minute.

    ``load`` (pools, history + minutes): units needed at the rate that a unit sustains under the
        SLO.
    ``rate_max_per_s`` (services, minutes): requests that one unit serves at saturation, at that
        minute's prompt and output lengths [1/s].
    ``first_minute_of_week``: minute of the week at which the run begins; 0 is Monday 00:00 UTC.
    """

    load: FloatArray
    rate_max_per_s: FloatArray
    history: int
    first_minute_of_week: int
    held: npt.NDArray[np.bool_]
    signals: Signals = field(default_factory=Signals)


@dataclass(frozen=True, eq=False)
class Record:
    """Records of the control loop, minute after minute.

    ``spent_server_ms`` (minutes + 1, accounts): server-time spent until each minute begins, by
        role, and by pool from account 12 on.
    ``service_units`` (minutes, services): mean number of units that worked for each service; units
        of a pool answer all its services.
    """

    spent_server_ms: npt.NDArray[np.int64]
    service_units: FloatArray


def controlling(world: World, inputs: Inputs, policy: Policy, record: Record) -> Process:
    """Run the fleet, minute after minute, and write the record."""
    minutes = inputs.rate_max_per_s.shape[1]
    wanted = np.zeros(len(world.pools))
    carry = np.zeros(len(world.services))  # parts of requests that the last minute had begun
    for minute in range(minutes):
        view = view_at(world, inputs, minute)
        decision = answer(policy, view, wanted)
        wanted = np.asarray(decision.serving, float)
        world.training_limit, world.job_limits = decision.training, decision.jobs or {}
        target = world.limits.quantised(wanted, len(world.ledger))
        if inputs.held[minute]:
            world.training_limit = 0
        # The first roles are free: there is nothing before the run that could be changed.
        if minute:
            order(world, target)
        else:
            place(world, target)
        limit_training(world)
        dispatch(world)
        balance(world, view, decision.batch)
        yield world.env.timeout(MINUTE_MS)
        world.ledger.advance(world.now)
        record.spent_server_ms[minute + 1] = world.ledger.spent_server_ms
        _serve(world, inputs, record, minute, carry)


def _serve(world: World, inputs: Inputs, record: Record, minute: int, carry: FloatArray) -> None:
    """Serve the requests of a minute that has ended.

    The unit-time of a pool is divided among its services in proportion to their work, as if their
    requests waited in one line: any unit of the pool can answer any of them.
    """
    spent = record.spent_server_ms[minute + 1] - record.spent_server_ms[minute]
    if world.batch is not None:
        world.batch.serve(minute, float(spent[Role.BATCH]) / (world.ledger.servers * MS))
    for number, pool in enumerate(world.pools):
        unit_s = float(spent[len(Role) + number]) / (world.ledger.servers * MS)
        rates = inputs.rate_max_per_s[list(pool.services), minute]
        shares = _shares(world, pool, rates, minute) if len(pool.services) > 1 else [1.0]
        for service, rate, share in zip(pool.services, rates.tolist(), shares, strict=True):
            queue = world.queues[service]
            possible = unit_s * share * rate + carry[service]
            queue.finish(minute, int(possible))
            carry[service] = possible % 1.0 if queue.waiting else 0.0
            record.service_units[minute, service] = unit_s * share / 60.0


def _shares(world: World, pool: Pool, rates: FloatArray, minute: int) -> list[float]:
    """Return the shares of a pool's unit-time that its services get, by their work."""
    queues = [world.queues[service] for service in pool.services]
    waiting = np.array([queue.waiting + int(queue.arrivals[minute]) for queue in queues])
    work_s = waiting / rates
    if not work_s.any():
        return [1 / len(queues)] * len(queues)
    shares: list[float] = (work_s / work_s.sum()).tolist()
    return shares


def view_at(world: World, inputs: Inputs, minute: int) -> View:
    """Return the knowledge of an operator at the start of a minute."""
    clock = (inputs.first_minute_of_week + minute) % MINUTES_PER_WEEK
    # No minute has ended before the first one, which policies are therefore shown.
    past = inputs.history + max(minute, 1)
    rates = inputs.rate_max_per_s[:, max(minute - 1, 0)]
    waiting = np.array([queue.waiting for queue in world.queues], float)
    backlog, batch = by_pool(waiting / (rates * 60.0), world.pools), world.batch
    batch_rate = 1.0 if batch is None else float(batch.rate_per_s[minute]) * 60.0
    return View(
        minute=minute,
        weekday=clock // MINUTES_PER_DAY,
        hour=(clock % MINUTES_PER_DAY) / 60.0,
        load=inputs.load[:, :past],
        history=inputs.history,
        serving=world.serving(),
        coming=world.coming(),
        backlog=backlog,
        units=len(world.ledger),
        broken=world.ledger.broken_units(),
        lead_s=world.lead_s,
        prices_usd_per_mwh=inputs.signals.prices_usd_per_mwh[minute:],
        power_w=_power_w(world, inputs.signals, minute),
        unit_busy_w=inputs.signals.unit_busy_w,
        unit_idle_w=inputs.signals.unit_idle_w,
        batch_due=np.empty(0) if batch is None else batch.queue.due(minute) / batch_rate,
        training=world.lent(),
        look_at_jobs=lambda: tuple(_job_view(world, gang) for gang in world.gangs if gang.waits),
    )


def _job_view(world: World, gang: Gang) -> JobView:
    job = gang.job
    work_left = due = math.inf
    if math.isfinite(job.work_tokens):
        tokens_left = job.work_tokens - gang.tokens_now()
        work_left = tokens_left / job.rate(job.units) * job.units / 60.0
    if math.isfinite(job.deadline_s):
        due = job.deadline_s / 60.0 - world.now / MINUTE_MS
    size = gang.size + gang.joining
    return JobView(job.name, job.units, job.min_units, size, work_left, due)


def _power_w(world: World, signals: Signals, minute: int) -> float:
    """Draw of the site in the last minute [W]."""
    rise_w = signals.unit_busy_w - signals.unit_idle_w
    if not rise_w or not minute:
        return 0.0
    counts = world.ledger.counts
    busy = float(counts[Role.TRAINING] + counts[Role.EVALUATION] + counts[Role.BATCH])
    for number, pool in enumerate(world.pools):
        served = sum(int(world.queues[name].served[minute - 1]) for name in pool.services)
        possible = sum(int(world.queues[name].capacity[minute - 1]) for name in pool.services)
        busy += world.ledger.serving(number) * served / max(possible, 1)
    alive = len(world.ledger) - world.ledger.broken_units()
    return alive * signals.unit_idle_w + busy * rise_w


def place(world: World, target: npt.NDArray[np.int64]) -> None:
    """Give every unit its first role at no cost, before the run begins."""
    begin = 0
    for pool, count in enumerate(target.tolist()):
        units = np.arange(begin, begin + count)
        world.ledger.loaded[units] = pool
        world.ledger.put(units, Role.SERVING, 0, pool)
        begin += count
    rest = np.arange(begin, max(begin, len(world.ledger) - world.limits.reserve))
    rest = rest[: world.training_limit]
    for gang in world.gangs:
        size = world.fits(gang, len(rest))
        if size and gang.waits:
            gang.place(rest[:size])
            world.ledger.put(rest[:size], Role.TRAINING, 0, gang.number)
            rest = rest[size:]
    if world.evaluation is not None:
        units = rest[: world.evaluation.units]
        world.ledger.loaded[units] = 0
        world.ledger.put(units, Role.EVALUATION, 0)


def order(world: World, target: npt.NDArray[np.int64]) -> None:
    """Order the role changes that lead to the target, within the control plane's limit."""
    if milliseconds(world.costs.join_s, world.horizon_ms) > world.horizon_ms:
        return
    lost = [world.ledger.lost_units(pool) for pool in range(len(world.pools))]
    coming = world.coming()
    missing = target - (world.serving() + coming - np.array(lost))
    if not missing.any():
        return
    budget = world.limits.changes_per_minute or len(world.ledger)
    for pool in np.flatnonzero(missing < 0).tolist():
        # Units on their way cannot serve yet, so none that serves is given up in their favour.
        surplus = -int(missing[pool]) - int(coming[pool])
        surplus = min(surplus, world.ledger.serving(pool), budget)
        if surplus > 0:
            budget -= surplus
            _give(world, pool, surplus, missing)
    for pool in np.flatnonzero(missing > 0).tolist():
        count = min(int(missing[pool]), budget)
        if count > 0:
            for units, before in reclaim(world, count, pool):
                budget -= len(units)
                to_serving(world, units, pool, before)


def _give(world: World, pool: int, surplus: int, missing: npt.NDArray[np.int64]) -> None:
    """Drain units of one pool, first for pools that miss some, the rest to be lent."""
    units = world.ledger.of(Role.SERVING, pool)[-surplus:]
    drain = [Phase(Role.DRAINING, world.costs.drain_s)]
    for other in np.flatnonzero(missing > 0).tolist():
        moved = min(int(missing[other]), len(units))
        if moved:
            to_serving(world, units[:moved], other, drain)
            missing[other] -= moved
            units = units[moved:]
    release(world, units, drain)
