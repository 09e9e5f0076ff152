"""Role changes: SimPy processes that lead a cohort of units through phases to its new role.

Batch work beside training: every 15 minutes, and when work comes to an idle tier, it takes spare
units and units that evaluate, as many as the waiting work and the arrivals of 15 minutes need. From
training it takes only the whole units that its deadlines need. That is the share of the coming free
unit-time with which the work due at each deadline is done by half an hour before the deadline,

    units = free now · max over deadlines k of  work due by k / free unit-time until k

where free units are those that serving is not expected to need. The expected need is that of the
same time of the day before, times the units that serve now over the need now. The oldest request is
answered first, which is the earliest-deadline-first rule: it meets all deadlines whenever any order
does (Liu and Layland, *J. ACM* 20, 1973). Serving always comes first. Under a cap on power, urgent
batch work takes spare units too, and gangs wait in place for the watts that these draw.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from topologies.support.arrays import FloatArray, IntArray
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.view import Decision, View
from workloads.fleet.state.services import BatchQueue
from workloads.fleet.state.store import MINUTE_MS, MS, milliseconds
from workloads.fleet.state.world import NOBODY, NONE, SINGLE, Change, Gang, Role, World

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Phase:
    """Time that units spend in one role on their way to another."""

    role: Role
    seconds: float = 0.0
    bytes_per_unit: float = 0.0  # bytes that each unit loads after that [B]
    # Whether the bytes come from the shared store, whose bandwidth all units share
    shared: bool = False


def walk(
    world: World, units: IntArray, ticket: int, phases: Iterable[Phase]
) -> Generator[simpy.Event, Any, None]:
    """Lead a cohort through phases; units that break on the way drop out."""
    # A unit belongs to the cohort as long as it holds the cohort's ticket: a failure clears the
    # ticket, and a later order replaces it.
    for phase in phases:
        units = world.still(units, ticket)
        if not len(units):
            return
        world.ledger.put(units, phase.role, world.now)
        seconds = phase.seconds
        if phase.bytes_per_unit and not phase.shared:
            seconds += phase.bytes_per_unit / world.costs.load_bytes_per_s
        wait_ms = milliseconds(seconds, world.horizon_ms)
        if wait_ms:
            yield world.env.timeout(wait_ms)
        if phase.bytes_per_unit and phase.shared:
            yield world.store.load(
                units=len(units),
                bytes_per_unit=phase.bytes_per_unit,
                cap_bytes_per_s=world.costs.store_client_bytes_per_s,
            )


def load_phases(world: World, pool: int, *, compiled: bool) -> list[Phase]:
    """Phases by which a unit without weights becomes able to serve, the warm-up last."""
    costs = world.costs
    compile_s = costs.compile_hit_s if compiled else costs.compile_miss_s
    return [
        Phase(
            Role.LOADING,
            costs.mode_switch_s + costs.runtime_start_s,
            world.pools[pool].weights_bytes,
            costs.source == "store",
        ),
        Phase(Role.COMPILING, compile_s),
        Phase(Role.WARMING, costs.warm_up_s),
    ]


def to_serving(world: World, units: IntArray, pool: int, before: list[Phase]) -> None:
    """Order units to serve; those that still hold the pool's weights skip the loading."""
    # ``before`` are phases that all units go through first. Each begins with an empty prefix cache;
    # the time that it loses until the cache is full is added as warm-up.
    cold_s = world.pools[pool].cold_s
    filling = [Phase(Role.WARMING, cold_s)] if cold_s else []
    resident = world.ledger.loaded[units] == pool
    # Units whose compiled model is not in the cache. Drawn for every unit, used or not, so that
    # the random numbers that follow do not depend on who holds the weights.
    missed = world.rng.random(len(units)) < world.costs.miss_share
    cold = ~resident & ~missed
    for chosen, phases in (
        (resident, []),
        (cold, load_phases(world, pool, compiled=True)),
        (~resident & missed, load_phases(world, pool, compiled=False)),
    ):
        if chosen.any():
            cohort = units[chosen]
            ticket = world.take_ticket(cohort, heading=pool)
            world.env.process(
                _to_serving(world, cohort, ticket, pool, [*before, *phases, *filling])
            )


def _to_serving(
    world: World, units: IntArray, ticket: int, pool: int, phases: list[Phase]
) -> Process:
    source = Role(int(world.ledger.role[units[0]])).name.lower()
    change = Change(world.now, len(units), source, world.pools[pool].name)
    world.changes.append(change)
    yield from walk(world, units, ticket, phases)
    left = world.arrive(units, ticket)
    world.ledger.loaded[left] = pool
    world.ledger.put(left, Role.SERVING, world.now, pool)
    change.ready_ms, change.arrived = world.now, len(left)


def order(world: World, target: npt.NDArray[np.int64]) -> None:
    """Order the role changes that lead to the target, within the control plane's limit."""
    if milliseconds(world.costs.join_s, world.horizon_ms) > world.horizon_ms:
        return
    lost = world.ledger.down[len(Role) :] // world.ledger.servers
    serving, coming = world.serving(), world.coming()
    missing = target - (serving + coming - lost)
    if not missing.any():
        return
    budget = world.limits.changes_per_minute or len(world.ledger)
    for pool in np.flatnonzero(missing < 0).tolist():
        # Units on their way cannot serve yet, so none that serves is given up in their favour.
        surplus = -int(missing[pool]) - int(coming[pool])
        surplus = min(surplus, int(serving[pool]), budget)
        if surplus > 0:
            budget -= surplus
            _give(world, pool, surplus, missing)
    for pool in np.flatnonzero(missing > 0).tolist():
        count = min(int(missing[pool]), budget)
        if count > 0:
            for units, before in _up_to(count, _offers(world, pool, count)):
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


def release(world: World, units: IntArray, phases: list[Phase]) -> None:
    """Order units to become spare after some phases; spare units are then lent."""
    if len(units):
        world.env.process(_release(world, units, world.take_ticket(units), phases))


def _release(world: World, units: IntArray, ticket: int, phases: list[Phase]) -> Process:
    source = Role(int(world.ledger.role[units[0]]))
    if source is Role.SERVING:
        change = Change(world.now, len(units), "serving", "lent")
        world.changes.append(change)
        world.ledger.lent_ms[units] = world.now
    yield from walk(world, units, ticket, phases)
    left = world.arrive(units, ticket)
    world.ledger.put(left, Role.SPARE, world.now)
    if source is Role.SERVING:
        change.ready_ms, change.arrived = world.now, len(left)
    dispatch(world)


def dispatch(world: World) -> None:
    """Lend spare units: start or grow gangs in order of priority, evaluate with the rest."""
    # Gangs can take units from other lent work also where no more may be lent.
    if world.room_to_train() <= 0 and not any(map(world.ledger.count, SINGLE)):
        return
    snooze_ms = milliseconds(world.costs.snooze_s, world.horizon_ms)
    latest_change_ms, room = world.now - snooze_ms, _room(world)
    takable = None  # looking at all units takes long, and holds until a gang takes some
    for gang in world.gangs:
        if gang.changed_ms <= latest_change_ms and _may_grow(gang, room):
            if takable is None:
                yielding = np.concatenate(
                    [world.settled(Role.EVALUATION), world.beyond_deadlines()]
                )
                takable = world.whole(_lendable(world)), world.whole(yielding)
            if _offer(world, gang, *takable):
                takable, room = None, _room(world)
    if world.evaluation is not None:
        there = world.ledger.count(Role.EVALUATION) + world.joining[Role.EVALUATION]
        if there < world.evaluation.units:
            units = _lendable(world)[: world.evaluation.units - there]
            if len(units):
                resident = world.ledger.loaded[units] != NOBODY
                world.ledger.put(units[resident], Role.EVALUATION, world.now)
                loading = load_phases(world, world.home, compiled=True)[:2]
                _lead(world, units[~resident], loading, Role.EVALUATION)


def _lendable(world: World) -> IntArray:
    """Spare units outside of the reserve, at most as many as may train."""
    free = world.settled(Role.SPARE)
    return free[: max(0, min(len(free) - world.limits.reserve, world.room_to_train()))]


def _room(world: World) -> int:
    """Number of units that are spare, or do work that yields to gangs."""
    yielding = world.ledger.count(Role.EVALUATION) + len(world.beyond_deadlines())
    return world.ledger.count(Role.SPARE) + yielding


def _may_grow(gang: Gang, room: int) -> bool:
    """Return whether a gang wants units, and ``room`` units could let it start or grow."""
    job, size = gang.job, gang.size
    if gang.joining or size >= job.units or (size and min(room, job.units - size) < job.step_units):
        return False
    return size + len(gang.paused) + room >= job.min_units and gang.waits


def _offer(world: World, gang: Gang, free: IntArray, others: IntArray) -> bool:
    job, have = gang.job, gang.size + len(gang.paused)
    # Units that are paused in place do not count as lent until they train again.
    room = max(0, world.room_to_train()) - len(gang.paused)
    if room < 0:
        return False
    free = free[:room]
    more = world.fits(gang, have + len(free) + len(others)) - have
    least = job.step_units if gang.size else max(0, job.min_units - have)
    if more < least or have + more < job.min_units:
        return False
    units = np.concatenate([free, others])[:more]
    draining = Phase(Role.DRAINING, world.costs.drain_s if more > len(free) else 0.0)
    gang.joining = more
    world.env.process(_join(world, gang, units, world.take_ticket(units), draining))
    return True


def _join(world: World, gang: Gang, units: IntArray, ticket: int, draining: Phase) -> Process:
    """Lead a cohort into a gang; too few that are left for it to start are released."""
    served = bool(np.any(world.ledger.loaded[units] != NOBODY))
    start_s = world.costs.join_s if served else world.costs.runtime_start_s
    phases = [draining] if draining.seconds else []
    yield from walk(world, units, ticket, [*phases, Phase(Role.LOADING, start_s)])
    left = world.arrive(units, ticket)
    world.ledger.loaded[left] = NOBODY
    gang.joining = 0
    if gang.size + len(gang.paused) + len(left) >= gang.job.min_units:
        gang.admit(left)
        if world.room_to_train() < 0:  # a limit has fallen while they were on their way
            gang.hold((MINUTE_MS - world.now % MINUTE_MS) / MS)
    else:
        release(world, left, [])


def _loading(
    world: World, units: IntArray, ticket: int, phases: list[Phase], role: Role
) -> Process:
    """Lead units to evaluation or batch work, through phases."""
    yield from walk(world, units, ticket, phases)
    left = world.arrive(units, ticket)
    world.joining[role] -= len(units)
    world.ledger.loaded[left] = world.home
    # A limit may have fallen while they were on their way.
    room = world.room_for_urgent() if role is Role.BATCH else world.room_to_train()
    stay = max(0, room)
    world.ledger.put(left[:stay], role, world.now)
    release(world, left[stay:], [])


Part = tuple[IntArray, list[Phase]]


def _up_to(count: int, offers: Iterator[Part]) -> list[Part]:
    """Take at most ``count`` of the offered units, and draw no further offer after them."""
    parts: list[Part] = []
    for units, phases in offers:
        taken = units[: count - sum(len(part) for part, _ in parts)]
        if len(taken):
            parts.append((taken, phases))
        if sum(len(part) for part, _ in parts) >= count:
            break
    return parts


def limit_training(world: World) -> None:
    """Stop units that train or evaluate beyond the policy's limit; they stay idle."""
    # Jobs beyond limits of their own give units back before that, and other work may have those.
    # Then evaluation stops, then batch work, then replicas of elastic jobs, then whole gangs, each
    # in the way of its job. With a limit of 0 everything stops.
    _limit_jobs(world)
    if world.training_limit is None:
        return
    settled = world.settled(Role.EVALUATION), world.settled(Role.BATCH)
    leaving = sum(world.ledger.count(role) for role in SINGLE) - sum(map(len, settled))
    excess = world.lent() - leaving - world.training_limit
    for units in settled:
        released = units[: max(0, excess)]
        release(world, released, [Phase(Role.DRAINING, world.costs.drain_s)])
        excess -= len(released)
    gangs = _in_order(world)
    for gang in gangs if world.training_limit else ():
        if excess > 0 and gang.size and gang.job.reclaim == "shrink":
            before = gang.size
            release(world, _shrink(world, gang, excess), [])
            excess -= before - gang.size
    for gang in gangs:
        if excess > 0 and gang.size:
            excess -= gang.size
            stop(world, gang, 0)


def hold_for_power(world: World) -> None:
    """Let gangs beyond the limit of the site's power wait in place for a part of the minute."""
    # All units of a gang compute in step, so the whole gang waits for the share of the minute that
    # its units beyond the limit are of it, and draws on average what the limit allows. Other work
    # stops where all gangs wait.
    if world.power_limit is None:
        return
    settled = world.settled(Role.EVALUATION), world.settled(Role.BATCH)
    excess = sum(gang.size for gang in world.gangs) + sum(map(len, settled)) - world.power_limit
    excess += world.joining[Role.BATCH]  # these may arrive within the minute
    for gang in _in_order(world):
        held = min(gang.size, excess)
        if held > 0:
            gang.hold(math.ceil(MINUTE_MS * held / gang.size) / MS)
            excess -= held
    for units in settled:
        released = units[: max(0, excess)]
        release(world, released, [Phase(Role.DRAINING, world.costs.drain_s)])
        excess -= len(released)


def _in_order(world: World) -> list[Gang]:
    """Gangs in the order in which they are stopped, those beyond limits of their own first."""

    def place(gang: Gang) -> tuple[bool, int, float]:
        """Sort key of a gang."""
        within = gang.size <= world.job_limits.get(gang.job.name, gang.size)
        return within, -gang.job.priority, gang.unsaved_unit_ms()

    return sorted(world.gangs, key=place)


def _limit_jobs(world: World) -> None:
    """Release units that jobs have beyond their limits, and paused units of jobs with limit 0."""
    for gang in world.gangs:
        if gang.job.name not in world.job_limits:
            continue
        most = gang.job.fits(world.job_limits[gang.job.name])
        if most == 0:
            release(world, gang.paused, [])
            gang.paused = NONE
        if 0 < most < gang.size and gang.job.reclaim == "shrink":
            release(world, _shrink(world, gang, gang.size - most), [])
        elif most < gang.size:
            units, phases = stop(world, gang, gang.size)
            release(world, units, phases)


def _offers(world: World, pool: int, count: int) -> Iterator[Part]:
    """Yield units for a pool, with the phases that they must go through first."""
    # Spare units come first, then those paused in place, then evaluation, then batch work beyond
    # what its deadlines need, then replicas of elastic jobs, then whole gangs, then all batch work.
    # Among gangs, those beyond limits of the policy come first, then the lowest priority, and among
    # equals the one that loses least work.
    # A generator, because drawing the offer of a gang shrinks or stops it.
    free = world.settled(Role.SPARE)
    taken = min(count, len(free))
    yield _resident_first(world, free, pool), []
    for units in _paused(world, count - taken):
        taken += len(units)
        yield units, []
    draining = [Phase(Role.DRAINING, world.costs.drain_s)]
    for others in (world.settled(Role.EVALUATION), world.beyond_deadlines()):
        units = _resident_first(world, _out_of_lease(world, others), pool)
        taken += min(count - taken, len(units))
        yield units, draining
    for units, phases in _gang_offers(world, count - taken):
        taken += len(units)
        yield units, phases
    if taken < count:
        yield _out_of_lease(world, world.settled(Role.BATCH)), draining


def _paused(world: World, count: int) -> Iterator[IntArray]:
    """Take up to ``count`` units that are paused in place."""
    for gang in world.gangs:
        if count > 0 and len(gang.paused):
            units, gang.paused = gang.paused[:count], gang.paused[count:]
            count -= len(units)
            yield units


def _gang_offers(world: World, count: int) -> Iterator[Part]:
    """Yield paused units, then replicas of elastic jobs, then whole gangs."""
    taken = 0
    for units in _paused(world, count):
        taken += len(units)
        yield units, []
    for gang in _victims(world):
        if taken < count and gang.job.reclaim == "shrink":
            units = _shrink(world, gang, count - taken)
            taken += len(units)
            yield units, []
    for gang in _victims(world):
        if taken < count:
            units, phases = stop(world, gang, count - taken)
            taken += len(units)
            yield units, phases


def _resident_first(world: World, units: IntArray, pool: int) -> IntArray:
    """Sort units that hold the weights of a pool before others."""
    order = np.argsort(world.ledger.loaded[units] != pool, kind="stable")
    return units[order]


def _out_of_lease(world: World, units: IntArray) -> IntArray:
    """Units that have been lent for the least time of a lease."""
    lease_ms = milliseconds(world.limits.min_lease_s, world.horizon_ms)
    return units[world.now - world.ledger.lent_ms[units] >= lease_ms]


def _victims(world: World) -> list[Gang]:
    """Gangs that may be shrunk or stopped, in the order of :func:`_offers`."""
    return [
        gang
        for gang in _in_order(world)
        if gang.size and len(_out_of_lease(world, gang.units)) == gang.size
    ]


def _shrink(world: World, gang: Gang, count: int) -> IntArray:
    """Take up to ``count`` units from an elastic job, which drops whole replicas."""
    job = gang.job
    steps = min(-(-count // job.step_units), (gang.size - job.min_units) // job.step_units)
    if steps <= 0:
        return NONE
    gang.tally.reclaims += 1
    units = gang.shrink(steps * job.step_units)
    release(world, units[count:], [])
    return units[:count]


def in_gang(world: World, unit: int, role: Role) -> bool:
    """Return whether a unit belongs to a gang and is not on its way to or from it."""
    if role is Role.SERVING or world.ledger.owner[unit] == NOBODY:
        return False
    return bool(world.ledger.ticket[unit] == 0)


def stop(world: World, gang: Gang, count: int) -> Part:
    """End a gang, and take up to ``count`` of its units with the phases that they need first."""
    job = gang.job
    gang.tally.reclaims += 1
    if job.reclaim == "pause":
        units = gang.stop(keep=True, in_host=True)
        phases = [Phase(Role.CHECKPOINTING, world.costs.pause_s)]
        gang.paused = units[count:]
        world.ledger.put(gang.paused, Role.PAUSED, world.now, gang.number)
        return units[:count], phases
    # A checkpoint that takes longer than the notice is cut off, and its work is lost.
    share, notice_s = job.state_bytes / gang.size, world.limits.notice_s
    rate = min(world.costs.store_client_bytes_per_s, world.costs.store_bytes_per_s / gang.size)
    is_kept = job.reclaim != "preempt" and share / rate <= notice_s
    phases = [Phase(Role.CHECKPOINTING, 0.0, share, shared=True)]
    if not is_kept:
        phases = [] if job.reclaim == "preempt" else [Phase(Role.CHECKPOINTING, notice_s)]
    units = gang.stop(keep=is_kept)
    release(world, units[count:], phases)
    return units[:count], phases


EVERY = 15  # minutes between two decisions
SLACK = 30  # minutes before a deadline at which its work should be done
MOST_ABOVE = 1.5  # largest ratio of serving units to their need that is expected to last


def balance(worlds: Sequence[World], view: View, wanted: int | None) -> None:
    """Give units to the batch tier, or take them away, kinds that serve last before others."""
    able = [(world, world.batch) for world in worlds if world.batch is not None]
    if not able:
        return
    batch = able[0][1]
    waiting = batch.waits(view.minute)
    units = sum(world.in_or_to_batch() for world, _ in able)
    if view.minute % EVERY and (units or not waiting):
        return
    rate = float(batch.rate_per_s[view.minute]) * 60.0
    coming = batch.came(view.minute, EVERY)
    enough = (waiting + coming) / (rate * EVERY)
    urgent: float = urgent_units(batch, view) if wanted is None else wanted
    for world, _ in reversed(able):
        speed = float(world.reach[world.home])
        _balance(world, math.ceil(enough / speed), math.ceil(urgent / speed))
        done = world.in_or_to_batch() * speed
        enough, urgent = max(0.0, enough - done), max(0.0, urgent - done)


def _balance(world: World, enough: int, urgent: int) -> None:
    """Give a kind's units to the batch tier, or take them away."""
    units = world.in_or_to_batch()
    power = enough if world.power_limit is None else world.power_limit
    world.batch_urgent = min(urgent, enough, power)
    if units > enough:
        surplus = world.settled(Role.BATCH)[enough - units :]
        release(world, surplus, [Phase(Role.DRAINING, world.costs.drain_s)])
        return
    if world.training_limit == 0:
        return
    # Nobody misses spare units, and then those that evaluate.
    spare, count = world.settled(Role.SPARE), enough - units
    room = min(len(spare) - world.limits.reserve, world.room_for_urgent(), count)
    taken = spare[: max(0, room)]
    evaluating = world.settled(Role.EVALUATION)[: max(0, count - len(taken))]
    draining = [Phase(Role.DRAINING, world.costs.drain_s)]
    units += _take(world, [(taken, []), (evaluating, draining)])
    if units < world.batch_urgent:
        lacking = world.batch_urgent - units
        _take(world, _up_to(lacking, _gang_offers(world, lacking)))


def urgent_units(batch: BatchQueue, view: View) -> int:
    """Whole units that batch work needs now for its deadlines to be met."""
    # A fraction of a unit is left to training: the work that then waits adds up to a whole unit in
    # time.
    rate = float(batch.rate_per_s[view.minute]) * 60.0
    due = batch.due(view.minute) / rate
    if not due[-1]:
        return 0
    free = free_ahead(view, len(due))
    free_time = np.cumsum(free)
    until = np.maximum(np.arange(len(due)) - SLACK, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(due > 0, due / free_time[until], 0.0)
    now = float(free[0])
    return math.floor(now * min(float(np.nanmax(share)), 1.0) + 1e-9)


def free_ahead(view: View, minutes: int) -> FloatArray:
    """Units that serving is not expected to need in the coming minutes; (minutes,)."""
    load = view.load.sum(axis=0)
    serving = float(view.serving.sum() + view.coming.sum())
    above = min(max(serving / max(float(load[-1]), 1e-9), 1.0), MOST_ABOVE)
    place = len(load) - MINUTES_PER_DAY + np.arange(minutes) % MINUTES_PER_DAY
    need = np.where(place >= 0, load[np.maximum(place, 0)], load[-1]) * above
    need[0] = serving
    alive = sum((kind.units - kind.broken) * float(kind.speed.max()) for kind in view.kinds)
    return np.asarray(np.maximum(alive - need, 0.0))


def _take(world: World, parts: list[Part]) -> int:
    """Lead units to batch work, and return their number."""
    for units, before in parts:
        resident = world.ledger.loaded[units] == world.home
        loading = load_phases(world, world.home, compiled=True)[:2]
        _lead(world, units[resident], before, Role.BATCH)
        _lead(world, units[~resident], [*before, *loading], Role.BATCH)
    return sum(len(units) for units, _ in parts)


def _lead(world: World, units: IntArray, phases: list[Phase], role: Role) -> None:
    """Start the process that leads units to evaluation or batch work."""
    if len(units):
        world.joining[role] += len(units)
        world.env.process(_loading(world, units, world.take_ticket(units), phases, role))


class Calm:
    """Tells minutes whose orders are those of the last one, which changed nothing.

    They would change nothing again, as nothing has happened since and nothing waits for a time.
    """

    def __init__(self, worlds: Sequence[World]) -> None:
        self.worlds = worlds
        self._orders: tuple[object, ...] | None = None
        self._until_ms = 0.0

    def events(self) -> int:
        """Events so far in all kinds of units."""
        return sum(world.ledger.events for world in self.worlds)

    def lasts(self, wanted: FloatArray, decision: Decision, stops: Sequence[bool]) -> bool:
        """Return whether the orders of this minute need not be given."""
        first, orders = self.worlds[0], None
        if first.batch is None and decision.power_w is None and not first.limits.min_lease_s:
            jobs = dict(decision.jobs or {})
            orders = self.events(), wanted.tolist(), decision.training, jobs, stops
        if orders and orders == self._orders and first.now < self._until_ms:
            return True
        self._orders = orders
        # Gangs that have just changed size wait before they grow again.
        ends = [
            gang.changed_ms + milliseconds(world.costs.snooze_s, world.horizon_ms)
            for world in self.worlds
            for gang in world.gangs
        ]
        self._until_ms = min((end for end in ends if end > first.now), default=math.inf)
        return False
