"""Simulation of a fleet: demand, kinds of units and a policy give a record of every minute.

Once a minute the control loop asks the policy, orders role changes, and serves requests. Demand is
counted in units of the first kind. Serving takes the kinds in their order, as many units of each as
work, and goes on to the next where those are too few; the kinds that serve last train first. A unit
of another kind counts as many units of the first as it takes to serve the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import simpy

from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY, MINUTES_PER_WEEK, Demand, whole_requests
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.policies.rules import best_static, static
from workloads.fleet.policies.view import Decision, JobView, KindView, Policy, View, answer
from workloads.fleet.processes import moves
from workloads.fleet.processes.failures import (
    failing,
    failing_together,
    interrupting,
    maintaining,
    reserve,
)
from workloads.fleet.processes.targets import power_limits, targets, training_limits
from workloads.fleet.state.services import (
    BatchQueue,
    BatchWork,
    Kind,
    Queue,
    by_pool,
    pools_from,
    speeds_of,
    units_needed,
)
from workloads.fleet.state.store import MINUTE_MS, MS, Store, milliseconds
from workloads.fleet.state.world import Change, Gang, Role, Tally, World

COMPUTING = (Role.TRAINING, Role.EVALUATION, Role.BATCH)
"""Roles of units that draw their full power, beside those that serve."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of the control loop, by the minute."""

    # (pools, history + minutes): units of the first kind that are needed, at the rate that a unit
    # sustains under the SLO
    load: FloatArray
    history: int  # columns of ``load`` before the run
    first_minute_of_week: int  # minute of the week at which the run begins; 0 is Monday 00:00 UTC
    # (minutes,): most that the policy lets the site draw, as the run recorded it [W]
    cap_w: FloatArray
    held: npt.NDArray[np.bool_] | None
    prices_usd_per_mwh: FloatArray


def controlling(worlds: Sequence[World], inputs: Inputs, policy: Policy) -> moves.Process:
    """Run the fleet, minute after minute, and record what it did."""
    minutes, env = worlds[0].rate_max_per_s.shape[1], worlds[0].env
    wanted = np.zeros(len(worlds[0].pools))
    carry = [0.0] * len(worlds[0].services)  # parts of requests that the last minute had begun
    view, held, seen, calm = None, inputs.held, -1, moves.Calm(worlds)
    for minute in range(minutes):
        events = calm.events()
        view = view_at(worlds, inputs, minute, view if seen == events else None)
        seen = events
        decision = answer(policy, view, wanted)
        wanted = np.asarray(decision.serving, float)
        stops = [False] * len(worlds)
        if held is not None:
            stops = np.broadcast_to(held[..., minute], len(worlds)).tolist()
        if not calm.lasts(wanted, decision, stops):
            _steer(worlds, inputs, view, replace(decision, serving=wanted), stops)
        yield env.timeout(MINUTE_MS)
        for world in worlds:
            world.ledger.advance(world.now)
            world.spent_server_ms[minute + 1] = world.ledger.spent_server_ms
        _serve(worlds, minute, carry)


def _steer(
    worlds: Sequence[World], inputs: Inputs, view: View, decision: Decision, stops: Sequence[bool]
) -> None:
    """Give the orders of a minute."""
    minute = view.minute
    serving = targets(worlds, np.asarray(decision.serving, float))
    limits = training_limits(worlds, serving, decision.training)
    for world, target in zip(worlds, serving, strict=True):
        world.job_limits = decision.jobs or {}
        # The first roles are free: there is nothing before the run that could be changed.
        if minute:
            moves.order(world, target + world.surge)
        else:
            place(world, target)
    within: list[int] | list[None] = [None] * len(worlds)
    if decision.power_w is not None:
        inputs.cap_w[minute] = decision.power_w
        wishes = decision.training if isinstance(decision.training, Sequence) else ()
        within = power_limits(worlds, view, decision.power_w, wishes)
    for world, limit, most, stop in zip(worlds, limits, within, stops, strict=True):
        world.training_limit, world.power_limit = 0 if stop else limit, most
        if not minute:
            place_training(world)
        moves.limit_training(world)
        moves.dispatch(world)
    moves.balance(worlds, view, decision.batch)
    for world in worlds:
        moves.hold_for_power(world)


def _serve(worlds: Sequence[World], minute: int, carry: list[float]) -> None:
    """Serve the requests of a minute that has ended."""
    possible, batch_s = [0.0] * len(carry), 0.0
    for world in worlds:
        spent = world.spent_server_ms[minute + 1] - world.spent_server_ms[minute]
        if world.batch is not None:
            seconds = float(spent[Role.BATCH]) / (world.ledger.servers * MS)
            batch_s += seconds * float(world.reach[world.home])
        for pool, service, share, rate in world.shares(minute):
            unit_s = float(spent[len(Role) + pool]) / (world.ledger.servers * MS)
            possible[service] += unit_s * share * rate
            world.service_units[minute, service] = unit_s * share / 60.0
    if worlds[0].region:
        _help_elsewhere(worlds, minute, possible)
    if batch := next((world.batch for world in worlds if world.batch is not None), None):
        batch.serve(minute, batch_s)
    for service, queue in enumerate(worlds[0].queues):
        capacity = possible[service] + carry[service]
        queue.finish(minute, int(capacity))
        carry[service] = capacity % 1.0 if queue.waiting else 0.0


def _help_elsewhere(worlds: Sequence[World], minute: int, possible: list[float]) -> None:
    """Let units answer requests of regions that lack capacity, the nearest units first."""
    # Requests stay at home as long as units there are no busier than under the SLO. Units of
    # another region answer those beyond it in the time in which they are less busy than that.
    services, queues = worlds[0].services, worlds[0].queues
    capacities = [service.capacity for service in services]
    busy = [each.rate_slo_per_s / each.rate_max_per_s for each in capacities]
    work = [(queue.waiting + int(queue.arrivals[minute])) for queue in queues]
    for service in range(len(services)):
        lacking = work[service] / busy[service] - possible[service]
        if lacking <= 0:
            continue
        others = [
            (float(world.round_trip_s[service]), helper, world.region)
            for world in worlds
            for helper in world.helpers(service)
        ]
        for _, helper, region in dict.fromkeys(sorted(others)):
            free = 1 - work[helper] / busy[helper] / max(possible[helper], 1e-300)
            able = [world for world in worlds if world.region == region]
            units = [float(world.service_units[minute, helper]) for world in able]
            rates = [60 * float(world.rate_max_per_s[service, minute]) for world in able]
            could = sum(count * rate for count, rate in zip(units, rates, strict=True))
            if free <= 0 or could <= 0 or lacking <= 0:
                continue
            part = min(free, lacking / could)
            for world, count in zip(able, units, strict=True):
                world.service_units[minute, [helper, service]] += (-part * count, part * count)
            possible[service] += part * could
            possible[helper] *= 1 - part
            lacking -= part * could


def view_at(
    worlds: Sequence[World], inputs: Inputs, minute: int, before: View | None = None
) -> View:
    """Return the knowledge of an operator at the start of a minute."""
    # The last view is given if nothing has happened since, so that sums of it still hold.
    clock = (inputs.first_minute_of_week + minute) % MINUTES_PER_WEEK
    # No minute has ended before the first one, which policies are therefore shown.
    past = inputs.history + max(minute, 1)
    first = worlds[0]
    waiting = [queue.waiting for queue in first.queues]
    backlog, batch = np.zeros(len(first.pools)), first.batch
    if any(waiting):
        rates = first.rate_max_per_s[:, max(minute - 1, 0)]
        backlog = by_pool(np.array(waiting, float) / (rates * 60.0), first.pools)
    batch_rate = 1.0 if batch is None else float(batch.rate_per_s[minute]) * 60.0
    prices = np.atleast_2d(inputs.prices_usd_per_mwh)[:, minute:]
    if before is None:
        kinds = tuple(map(_kind_view, worlds))
        sums: dict[str, Any] = {name: sum(getattr(kind, name) for kind in kinds) for name in SUMS}
        sums["lead_s"] = max(world.lead_s for world in worlds if world.serves)
        shares = [kind.units / sums["units"] for kind in kinds]  # exactly 1 for one kind
        for name in MEANS:
            each = zip(kinds, shares, strict=True)
            sums[name] = sum(getattr(kind, name) * share for kind, share in each)
    else:
        kinds = tuple(
            kind._replace(serving=kind.serving.copy(), coming=kind.coming.copy())
            for kind in before.kinds
        )
        sums = {name: getattr(before, name) for name in (*SUMS, "lead_s", *MEANS)}
    if prices.size:
        kinds = tuple(
            kind._replace(prices_usd_per_mwh=prices[min(at, len(prices) - 1)])
            for at, kind in enumerate(kinds)
        )
    serving = [
        kind.serving * kind.speed + world.moved for kind, world in zip(kinds, worlds, strict=True)
    ]
    return View(
        minute=minute,
        weekday=clock // MINUTES_PER_DAY,
        hour=(clock % MINUTES_PER_DAY) / 60.0,
        load=inputs.load[:, :past],
        history=inputs.history,
        serving=np.maximum(sum(serving), 0.0),
        coming=np.asarray(sum(kind.coming * kind.speed for kind in kinds)),
        backlog=backlog,
        prices_usd_per_mwh=prices[0],
        power_w=sum(
            _power_w(world, kind, minute) for world, kind in zip(worlds, kinds, strict=True)
        ),
        batch_due=np.empty(0) if batch is None else batch.due(minute) / batch_rate,
        look_at_jobs=lambda: tuple(
            _job_view(world, gang) for world in worlds for gang in world.gangs if gang.waits
        ),
        kinds=kinds,
        **sums,
    )


SUMS, MEANS = ("units", "broken", "training"), ("unit_busy_w", "unit_idle_w")
"""Fields of a view that are sums, or means by the units, of those of all kinds."""


def _kind_view(world: World) -> KindView:
    return KindView(
        name=world.name,
        units=len(world.ledger),
        broken=world.ledger.out_of_service(),
        serving=world.serving(),
        coming=world.coming(),
        training=world.lent(),
        speed=world.speed,
        unit_busy_w=world.unit_busy_w,
        unit_idle_w=world.unit_idle_w,
        region=world.region,
        reach=world.reach,
        worth=world.worth,
        rest_units=world.rest_units,
        batch=world.in_or_to_batch(),
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
    return JobView(
        job.name, job.units, job.min_units, size, work_left, due, world.name, job.step_units
    )


def _power_w(world: World, kind: KindView, minute: int) -> float:
    """Draw of the site for the units of a kind in the last minute [W]."""
    if not kind.rise_w or not minute:
        return 0.0
    busy = float(sum(map(world.ledger.count, COMPUTING)))
    for pool, units in zip(world.pools, kind.serving.tolist(), strict=True):
        served = sum(int(world.queues[name].served[minute - 1]) for name in pool.services)
        possible = sum(int(world.queues[name].capacity[minute - 1]) for name in pool.services)
        busy += units * served / max(possible, 1)
    return kind.alive * kind.unit_idle_w + busy * kind.rise_w


def place(world: World, target: npt.NDArray[np.int64]) -> None:
    """Let units serve at no cost, before the run begins."""
    begin, there = 0, np.flatnonzero(world.ledger.role != Role.ABSENT)
    for pool, count in enumerate(target.tolist()):
        units = there[begin : begin + count]
        world.ledger.loaded[units] = pool
        world.ledger.put(units, Role.SERVING, 0, pool)
        begin += count


def place_training(world: World) -> None:
    """Let the units that do not serve train and evaluate at no cost, before the run begins."""
    there = np.flatnonzero(world.ledger.role != Role.ABSENT)
    begin = world.ledger.count(Role.SERVING)
    rest = there[begin : max(begin, len(there) - world.limits.reserve)]
    rest = rest[: max(0, world.room_to_train())]
    for gang in world.gangs:
        size = world.fits(gang, len(rest))
        if size and gang.waits:
            gang.place(rest[:size])
            world.ledger.put(rest[:size], Role.TRAINING, 0, gang.number)
            rest = rest[size:]
    if world.evaluation is not None:
        units = rest[: world.evaluation.units]
        world.ledger.loaded[units] = world.home
        world.ledger.put(units, Role.EVALUATION, 0)


MAX_UNITS = 1_000_000


def in_whole_requests(demand: Demand) -> Demand:
    """Return the demand with whole numbers of requests in every minute."""
    counts = whole_requests(demand).astype(float)
    lengths = demand.prompt_tokens, demand.output_tokens
    return Demand(demand.services, demand.start, counts, *lengths)


def opened(
    demand: Demand, kinds: Sequence[Kind], rng: np.random.Generator, batch: BatchWork | None = None
) -> list[World]:
    """Return the worlds of a run before it begins: every unit is spare and every job waits."""
    units = sum(kind.fleet.units for kind in kinds)
    if not 1 <= units <= MAX_UNITS:
        raise InputError(f"a fleet of {units:,} units; it must have 1 to {MAX_UNITS:,}.")
    kinds[0].fleet.limits.check(units)
    store = Store(simpy.Environment(), kinds[0].fleet.costs.store_bytes_per_s)
    queues = tuple(
        Queue(row, service.patience_s / 60.0)
        for row, service in zip(demand.requests.astype(np.int64), kinds[0].services, strict=True)
    )
    draws = [rng, *rng.spawn(len(kinds) - 1)]
    queue = None
    if batch is not None:
        requests = in_whole_requests(batch.demand)
        arrivals = requests.requests[0].astype(np.int64)
        lengths = requests.prompt_tokens[0] + requests.output_tokens[0]
        tokens = np.rint(arrivals * lengths).astype(np.int64)
        queue = BatchQueue(arrivals, tokens, batch.deadline_minutes, batch.rate_per_s)
    worlds = [
        World(kind, demand, speed, store, queues, each, queue)
        for kind, speed, each in zip(kinds, speeds_of(demand, kinds), draws, strict=True)
    ]
    for world in worlds:
        for gang in world.gangs:
            gang.on_finish = partial(_take_back, world)
            if gang.job.arrives_s > 0:
                arrival = store.env.timeout(milliseconds(gang.job.arrives_s, world.horizon_ms))
                arrival.callbacks.append(partial(_lend, world))
    rates = [
        max((gang.job.rate(1) for gang in world.gangs if gang.job.rated), default=0.0)
        for world in worlds
    ]
    worths = rates if all(rates) else [float(world.chips_per_unit) for world in worlds]
    for world, worth in zip(worlds, worths, strict=True):
        world.worth = worth / worths[0]
    return worlds


def _take_back(world: World, units: IntArray) -> None:
    """Take back the units of a job that is done, and lend them to others."""
    world.ledger.put(units, Role.SPARE, world.now)
    moves.dispatch(world)


def _lend(world: World, _arrival: simpy.Event) -> None:
    """Lend what is spare when a job arrives."""
    moves.dispatch(world)


@dataclass(frozen=True, eq=False)
class FleetRun:
    """Result of a fleet run."""

    demand: Demand  # requests that arrived, in whole numbers
    # (services, minutes): units of the first kind that the demand needed, at the rate that a unit
    # sustains under the SLO
    load: FloatArray
    queues: tuple[Queue, ...]
    kinds: tuple[World, ...]  # as the run left them
    cap_w: FloatArray  # (minutes,): most that the policy let the site draw [W]
    loaded_bytes: float = 0.0  # read from and written to the shared store [B]
    batch: BatchQueue | None = None

    @property
    def minutes(self) -> int:
        """Length of the run."""
        return self.demand.minutes

    @property
    def units(self) -> int:
        """Units of all kinds."""
        return sum(kind.units for kind in self.kinds)

    @property
    def chips(self) -> int:
        """Chips of all kinds."""
        return sum(kind.units * kind.chips_per_unit for kind in self.kinds)

    @property
    def jobs(self) -> tuple[tuple[TrainingJob, Tally], ...]:
        """Training jobs of all kinds, without evaluation."""
        return tuple(job for kind in self.kinds for job in kind.jobs)

    @property
    def service_units(self) -> FloatArray:
        """Mean units that worked for each service; (minutes, services)."""
        return np.asarray(np.sum([kind.service_units for kind in self.kinds], axis=0))

    @property
    def changes(self) -> tuple[Change, ...]:
        """Role changes of all kinds."""
        return tuple(change for kind in self.kinds for change in kind.changes)

    @property
    def failures(self) -> int:
        """Failures of all units by any cause."""
        return sum(self.failures_by_domain.values())

    @property
    def failures_by_domain(self) -> dict[str, int]:
        """Failures of all kinds of units by what failed."""
        return dict(sum((kind.failures for kind in self.kinds), Counter[str]()))


def simulate(
    demand: Demand,
    kinds: Sequence[Kind],
    policy: Policy,
    *,
    batch: BatchWork | None = None,
    history: Demand | None = None,
    held: npt.NDArray[np.bool_] | None = None,
    prices_usd_per_mwh: npt.ArrayLike = (),
    rng: np.random.Generator | None = None,
) -> FleetRun:
    """Run a fleet through a demand.

    The fleet begins in the roles of the policy's first decision, at no cost. Where a change of role
    takes longer than the whole run, no policy can change anything: the fleet then keeps the static
    split that serves the busiest hour.

    Policies know the demand of ``history``, which ends where the run begins. Nothing trains in
    minutes that are ``held``, (minutes,) or (kinds, minutes), such as those of dear electricity.
    Its prices, of the same shapes, may go on for the day after the run.

    >>> from workloads.demand import constant
    >>> from workloads.fleet.policies.rules import static
    >>> from workloads.fleet.state.services import Fleet, Service
    >>> from workloads.serving import fixed_rate
    >>> kind = Kind("any", (Service("chat", fixed_rate(2.0)),), Fleet(3))
    >>> simulate(constant(60.0, minutes=5), [kind], static(1)).queues[0].served.tolist()
    [60, 60, 60, 60, 60]
    """
    whole = in_whole_requests(demand)
    needed, services = units_needed(whole, kinds[0].services), kinds[0].services
    load, start = by_pool(needed, pools_from(services)), pd.Timestamp(whole.start)
    past = load[:, :0]
    if history is not None:
        past = by_pool(units_needed(history, services), pools_from(services))
    inputs = Inputs(
        load=np.concatenate([past, load], axis=1),
        history=past.shape[1],
        first_minute_of_week=start.weekday() * MINUTES_PER_DAY + start.hour * 60 + start.minute,
        cap_w=np.full(whole.minutes, math.inf),
        held=held,
        prices_usd_per_mwh=np.asarray(prices_usd_per_mwh, float),
    )
    worlds = opened(whole, kinds, rng or np.random.default_rng(0), batch)
    _run_to_end(worlds, inputs, policy, kinds)
    return FleetRun(
        demand=whole,
        load=needed,
        queues=worlds[0].queues,
        kinds=tuple(worlds),
        cap_w=inputs.cap_w,
        loaded_bytes=worlds[0].store.moved_bytes,
        batch=worlds[0].batch,
    )


def _run_to_end(
    worlds: Sequence[World], inputs: Inputs, policy: Policy, kinds: Sequence[Kind]
) -> None:
    lead_s = max(world.lead_s for world in worlds if world.serves)
    if milliseconds(lead_s, worlds[0].horizon_ms) > worlds[0].horizon_ms:
        # No change of role ends within the run.
        policy = static(best_static(inputs.load[:, inputs.history :]))
    env = worlds[0].env
    end = env.process(controlling(worlds, inputs, policy))
    for world, kind in zip(worlds, kinds, strict=True):
        if failures := kind.fleet.failures:
            env.process(failing(world, failures))
            for domain in failures.domains:
                env.process(failing_together(world, domain))
            for name, mtbf_s in failures.interruptions.items():
                env.process(interrupting(world, name, mtbf_s))
        if kind.fleet.maintenance:
            env.process(maintaining(world, kind.fleet.maintenance))
        if kind.fleet.blocks:
            reserve(world, kind.fleet.blocks)
    env.run(until=end)
    for world in worlds:
        # A window that never began is late until the end.
        never_ms = [world.now - due_ms for due_ms in world.due_ms]
        world.maintenance_late_ms = max([world.maintenance_late_ms, *never_ms])
        for gang in world.gangs:
            gang.settle()
