"""Return of lent units to serving: the cheapest first, each in the way of its job."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from topologies.arrays import IntArray
from workloads.fleet.processes.moves import Phase, release
from workloads.fleet.state.gangs import NONE, Gang
from workloads.fleet.state.ledger import milliseconds
from workloads.fleet.state.roles import Role
from workloads.fleet.state.world import World

Part = tuple[IntArray, list[Phase]]


def reclaim(world: World, count: int, pool: int) -> list[Part]:
    """Take up to ``count`` units for a pool, with the phases that they must go through first.

    Spare units come first, then those paused in place, then evaluation, then batch work beyond what
    its deadlines need, then replicas of elastic jobs, then whole gangs, then all batch work. Among
    gangs, the lowest priority comes first, and among equals the one that loses least work.
    """
    return _up_to(count, _offers(world, pool, count))


def from_training(world: World, count: int) -> list[Part]:
    """Take up to ``count`` units from jobs, paused ones first, in the order of :func:`reclaim`."""
    return _up_to(count, _gang_offers(world, count))


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
    """Stop units that train or evaluate beyond the policy's limit; they stay idle.

    Jobs beyond limits of their own give units back before that, and other work may have those. Then
    evaluation stops, then batch work, then replicas of elastic jobs, then whole gangs, each in the
    way of its job. With a limit of 0 everything stops.
    """
    _limit_jobs(world)
    if world.training_limit is None:
        return
    excess = world.lent() - world.training_limit
    for units in (world.evaluating(), world.in_batch()):
        released = units[: max(0, excess)]
        release(world, released, [Phase(Role.DRAINING, world.costs.drain_s)])
        excess -= len(released)
    for gang in sorted(world.gangs, key=lambda each: (-each.job.priority, each.unsaved_unit_ms())):
        if excess > 0 and gang.size:
            size_before = gang.size
            if world.training_limit and gang.job.reclaim == "shrink":
                release(world, _shrink(world, gang, excess), [])
            else:
                _stop(world, gang, 0)
            excess -= size_before - gang.size


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
            units, phases = _stop(world, gang, gang.size)
            release(world, units, phases)


def _offers(world: World, pool: int, count: int) -> Iterator[Part]:
    """Yield offers in the order of :func:`reclaim`.

    A generator, because drawing the offer of a gang shrinks or stops it.
    """
    free = world.free()
    taken = min(count, len(free))
    yield _resident_first(world, free, pool), []
    for units in _paused(world, count - taken):
        taken += len(units)
        yield units, []
    draining = [Phase(Role.DRAINING, world.costs.drain_s)]
    for others in (world.evaluating(), world.beyond_deadlines()):
        units = _resident_first(world, _out_of_lease(world, others), pool)
        taken += min(count - taken, len(units))
        yield units, draining
    for units, phases in _gang_offers(world, count - taken):
        taken += len(units)
        yield units, phases
    if taken < count:
        yield _out_of_lease(world, world.in_batch()), draining


def _paused(world: World, count: int) -> Iterator[IntArray]:
    """Take up to ``count`` units that are paused in place."""
    for gang in world.gangs:
        if count > 0 and len(gang.paused):
            units, gang.paused = gang.paused[:count], gang.paused[count:]
            count -= len(units)
            yield units


def _gang_offers(world: World, count: int) -> Iterator[Part]:
    """Yield paused units, then replicas of elastic jobs, then whole gangs.

    A gang is shrunk or stopped only when its offer is drawn.
    """
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
            units, phases = _stop(world, gang, count - taken)
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
    """Gangs that may be shrunk or stopped, in the order of :func:`reclaim`."""
    able = [
        gang
        for gang in world.gangs
        if gang.size and len(_out_of_lease(world, gang.units)) == gang.size
    ]
    return sorted(able, key=lambda gang: (-gang.job.priority, gang.unsaved_unit_ms()))


def _shrink(world: World, gang: Gang, count: int) -> IntArray:
    """Take up to ``count`` units from an elastic job, which drops whole replicas.

    Units of the last replica beyond ``count`` become spare.
    """
    job = gang.job
    steps = min(-(-count // job.step_units), (gang.size - job.min_units) // job.step_units)
    if steps <= 0:
        return NONE
    gang.tally.reclaims += 1
    units = gang.shrink(steps * job.step_units)
    release(world, units[count:], [])
    return units[:count]


def _stop(world: World, gang: Gang, count: int) -> Part:
    """End a gang, and take up to ``count`` of its units with the phases that they need first.

    The others become spare, or stay paused in place.
    """
    job = gang.job
    gang.tally.reclaims += 1
    if job.reclaim == "pause":
        units = gang.stop(keep=True, in_host=True)
        phases = [Phase(Role.CHECKPOINTING, world.costs.pause_s)]
        gang.paused = units[count:]
        world.ledger.put(gang.paused, Role.PAUSED, world.now, gang.number)
        return units[:count], phases
    if job.reclaim == "preempt":
        units, phases = gang.stop(keep=False), []
    else:
        units, phases = _checkpoint(world, gang)
    release(world, units[count:], phases)
    return units[:count], phases


def _checkpoint(world: World, gang: Gang) -> Part:
    """Stop a gang after a checkpoint, and return its units with the phase of writing it.

    A checkpoint that takes longer than the notice is cut off, and its work is lost.
    """
    share = gang.job.state_bytes / gang.size
    rate = min(world.costs.store_client_bytes_per_s, world.costs.store_bytes_per_s / gang.size)
    if share / rate > world.limits.notice_s:
        phases = [Phase(Role.CHECKPOINTING, world.limits.notice_s)]
        return gang.stop(keep=False), phases
    return gang.stop(keep=True), [Phase(Role.CHECKPOINTING, 0.0, share, shared=True)]
