"""Role changes: SimPy processes that lead a cohort of units through phases to its new role."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from topologies.arrays import IntArray
from workloads.fleet.state.gangs import Gang
from workloads.fleet.state.ledger import NOBODY, milliseconds
from workloads.fleet.state.roles import Role
from workloads.fleet.state.world import Change, World

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Phase:
    """Time that units spend in one role on their way to another.

    ``seconds``: fixed duration [s].
    ``bytes_per_unit``: bytes that each unit loads after that [B].
    ``shared``: whether the bytes come from the shared store, whose bandwidth all units share.
    """

    role: Role
    seconds: float = 0.0
    bytes_per_unit: float = 0.0
    shared: bool = False


def walk(
    world: World, units: IntArray, ticket: int, phases: Iterable[Phase]
) -> Generator[simpy.Event, Any, None]:
    """Lead a cohort through phases; units that break on the way drop out.

    A unit belongs to the cohort as long as it holds the cohort's ticket: a failure clears the
    ticket, and a later order replaces it.
    """
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
    """Order units to serve; those that still hold the pool's weights skip the loading.

    ``before`` are phases that all units go through first. Each begins with an empty prefix cache;
    the time that it loses until the cache is full is added as warm-up.
    """
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
    """Lead a cohort to serving, and record the change."""
    source = Role(int(world.ledger.role[units[0]])).name.lower()
    change = Change(world.now, len(units), source, world.pools[pool].name)
    world.changes.append(change)
    yield from walk(world, units, ticket, phases)
    left = world.arrive(units, ticket)
    world.ledger.loaded[left] = pool
    world.ledger.put(left, Role.SERVING, world.now, pool)
    change.ready_ms, change.arrived = world.now, len(left)


def release(world: World, units: IntArray, phases: list[Phase]) -> None:
    """Order units to become spare after some phases; spare units are then lent."""
    if len(units):
        world.env.process(_release(world, units, world.take_ticket(units), phases))


def _release(world: World, units: IntArray, ticket: int, phases: list[Phase]) -> Process:
    """Lead a cohort to be spare, and record the change if it served."""
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
    if not world.room_to_train():
        return
    snooze_ms = milliseconds(world.costs.snooze_s, world.horizon_ms)
    latest_change_ms, room = world.now - snooze_ms, _room(world)
    takable = None  # looking at all units takes long, and holds until a gang takes some
    for gang in world.gangs:
        if gang.changed_ms <= latest_change_ms and _may_grow(gang, room):
            takable = takable or _takable(world)
            if _offer(world, gang, *takable):
                takable, room = None, _room(world)
    if world.evaluation is not None:
        room = world.evaluation.units - world.ledger.count(Role.EVALUATION)
        if room > 0:
            _to_evaluation(world, _lendable(world)[:room])


def _lendable(world: World) -> IntArray:
    """Spare units outside of the reserve, at most as many as may train."""
    free = world.free()
    return free[: max(0, min(len(free) - world.limits.reserve, world.room_to_train()))]


def _room(world: World) -> int:
    """Number of units that are spare, or do work that yields to gangs."""
    yielding = world.ledger.count(Role.EVALUATION) + len(world.beyond_deadlines())
    return world.ledger.count(Role.SPARE) + yielding


def _may_grow(gang: Gang, room: int) -> bool:
    """Return whether a gang wants units, and ``room`` units could let it start or grow.

    A cheap check before :func:`_offer`, which looks at single units.
    """
    job, size = gang.job, gang.size
    if gang.joining or size >= job.units or (size and room < job.step_units):
        return False
    return size + len(gang.paused) + room >= job.min_units and gang.waits


def _takable(world: World) -> tuple[IntArray, IntArray]:
    """Whole units that are spare, and those whose work yields to gangs."""
    free = world.whole(_lendable(world))
    return free, world.whole(np.concatenate([world.evaluating(), world.beyond_deadlines()]))


def _offer(world: World, gang: Gang, free: IntArray, others: IntArray) -> bool:
    """Give a gang as many units as it can take, and return whether it takes any."""
    job, have = gang.job, gang.size + len(gang.paused)
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
    else:
        release(world, left, [])


def _to_evaluation(world: World, units: IntArray) -> None:
    """Let units evaluate; those without weights load them first."""
    if not len(units):
        return
    resident = world.ledger.loaded[units] != NOBODY
    world.ledger.put(units[resident], Role.EVALUATION, world.now)
    if not resident.all():
        cold = units[~resident]
        world.env.process(_load_evaluation(world, cold, world.take_ticket(cold)))


def _load_evaluation(world: World, units: IntArray, ticket: int) -> Process:
    """Load weights on a cohort, and let it evaluate."""
    yield from walk(world, units, ticket, load_phases(world, 0, compiled=True)[:2])
    left = world.arrive(units, ticket)
    world.ledger.loaded[left] = 0
    world.ledger.put(left, Role.EVALUATION, world.now)
