"""Targets of a minute: units of each kind that should serve, and that may train.

A cap on the power of the site leaves to training what remains after the idle draw of all units that
are in service or come back in the minute, and after what serving draws for the requests of that
minute, which the power control of a site follows within seconds. Where regions help each other, a
request counts with the draw of the kind of units that needs most for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import FloatArray, IntArray
from workloads.fleet.policies.view import View
from workloads.fleet.state.store import MINUTE_MS
from workloads.fleet.state.world import OUT, Role, World


def targets(worlds: Sequence[World], wanted: FloatArray) -> list[npt.NDArray[np.int64]]:
    """Return the units of each kind that should serve; each (pools,)."""
    # ``wanted`` (pools,) in units of the first kind, or (kinds, pools) in those of each kind, which
    # are placed as their sum where floor and cap do not allow them.
    limits, speeds = worlds[0].limits, [world.speed for world in worlds]
    last = {world.region: number for number, world in enumerate(worlds) if world.serves}
    one_region = len({world.region for world in worlds}) == 1
    for world in worlds:
        world.moved[:] = 0.0
    # Floor and cap hold for all kinds together.
    each = [replace(world.limits, floor=0, cap=0) for world in worlds]
    if one_region:
        each[0] = limits
    if wanted.ndim == 2:
        placed = [
            replace(limit, floor=0, cap=0).quantised(row * (world.speed > 0), len(world.ledger))
            for limit, row, world in zip(each, wanted, worlds, strict=True)
        ]
        if limits.floor <= np.sum(placed * np.stack(speeds)) <= (limits.cap or math.inf):
            return placed
        wanted = (wanted * np.stack(speeds)).sum(axis=0)
    whole = sum(len(world.ledger) * world.speed.max() for world in worlds)
    left = replace(limits, block=1).quantised(wanted, int(whole)).astype(float)
    result = []
    for number, (limit, world, speed) in enumerate(zip(each, worlds, speeds, strict=True)):
        units = np.divide(left, speed, out=np.zeros_like(left), where=speed > 0)
        most = len(world.ledger)
        if number != last.get(world.region):
            most -= world.ledger.out_of_service()
        result.append(limit.quantised(units, most))
        left = np.maximum(left - result[-1] * speed, 0.0)
    if not one_region:
        _serve_elsewhere(worlds, left, result)
    return result


def _serve_elsewhere(
    worlds: Sequence[World], left: FloatArray, result: Sequence[npt.NDArray[np.int64]]
) -> None:
    """Add to the units of regions what others lack, the nearest region first."""
    for pool in np.flatnonzero(left > 1e-9).tolist():
        service = worlds[0].pools[pool].services[0]
        for number in sorted(range(len(worlds)), key=lambda at: worlds[at].round_trip_s[service]):
            world, speed = worlds[number], float(worlds[number].reach[pool])
            room = len(world.ledger) - world.ledger.out_of_service() - int(result[number].sum())
            if speed and world.own[pool] != pool:
                units = max(0, min(room, math.ceil(left[pool] / speed - 1e-9)))
                home = world.own[pool]
                result[number][home] += units
                world.moved[[pool, home]] += units * speed, -units * float(world.reach[home])
                left[pool] = max(0.0, left[pool] - units * speed)


def training_limits(
    worlds: Sequence[World], serving: Sequence[IntArray], most: int | Sequence[int] | None
) -> list[int | None]:
    """Return the most units of each kind that may train; of a sum those that serve last first."""
    if isinstance(most, Sequence):
        return [*most]
    limits: list[int | None] = []
    for world, target in zip(reversed(worlds), reversed(serving), strict=True):
        if most is not None and len(limits) < len(worlds) - 1:
            room = len(world.ledger) - world.ledger.out_of_service() - int(target.sum())
            limits.append(min(most, max(0, room)))
            most -= limits[-1] or 0
        else:
            limits.append(most)
    return limits[::-1]


def power_limits(
    worlds: Sequence[World], view: View, cap_w: float, wishes: Sequence[int]
) -> list[int]:
    """Return the most units of each kind that may train, after the orders of a minute."""
    kinds = tuple(
        kind._replace(
            serving=world.serving(), coming=world.coming(), broken=len(world.ledger) - _alive(world)
        )
        for kind, world in zip(view.kinds, worlds, strict=True)
    )
    idle_w = sum(kind.alive * kind.unit_idle_w for kind in kinds)
    left_w = cap_w - idle_w - _serving_w(worlds, view.minute)
    return units_within(replace(view, kinds=kinds), left_w, wishes)


def _alive(world: World) -> int:
    """Units that are in service at some time of the minute that begins."""
    ledger = world.ledger
    out = np.isin(ledger.role, OUT) & (ledger.back_ms >= world.now + MINUTE_MS)
    return len(ledger) - int(np.count_nonzero(out))


def _serving_w(worlds: Sequence[World], minute: int) -> float:
    """Most that serving draws above the idle power in a minute [W]."""
    rises = np.array([[world.unit_busy_w - world.unit_idle_w] for world in worlds])
    there, coming, rates = np.zeros((3, len(worlds), len(worlds[0].services)))
    for kind, world in enumerate(worlds):
        answering, headed = _answering(world), world.coming()
        for pool, service, share, rate in world.shares(minute):
            there[kind, service] = answering[pool] * share
            coming[kind, service] = headed[pool] * share
            rates[kind, service] = rate * 60.0
    full_w = (rises * (there + coming)).sum(axis=0)
    queues = worlds[0].queues
    work = np.array([queue.waiting + int(queue.arrivals[minute]) for queue in queues])
    if worlds[0].region:
        # Units of any region may answer. A minute answers whole requests, so that its units may
        # be busier by up to one request of each service.
        serves = (there + coming).sum(axis=1) > 0
        request_w = (rises / np.maximum(rates, 1e-300))[serves].max(axis=0, initial=0.0)
        return float(min(full_w.sum(), ((work + np.sign(work)) * request_w).sum()))
    # All units of a service are equally busy: by the whole requests that they can answer. Units
    # that come take over requests, and draw more for them where their kind needs more for one.
    possible = (there * rates).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        used = np.where(work > 0, work / np.floor(possible), 0.0)
        usual_w = (rises * there).sum(axis=0) / possible
        more_w = (np.maximum(rises - usual_w * rates, 0.0) * coming).sum(axis=0)
        answer_w = used * ((rises * there).sum(axis=0) + more_w)
    return float(np.fmin(answer_w, full_w).sum())


def _answering(world: World) -> FloatArray:
    """Units that serve in each pool and are in no role change, less the servers that they lost."""
    ledger = world.ledger
    stays = (ledger.role == Role.SERVING) & (ledger.ticket == 0)
    parts = 1.0 - ledger.lost[stays] / ledger.servers
    return np.bincount(ledger.owner[stays], parts, len(world.pools)).astype(float)


def units_within(view: View, watts: float, wishes: Sequence[int] = ()) -> list[int]:
    """Units of each kind that may train within watts, those first that train most for a watt.

    Training is shed in the opposite order: where it frees most watts for a lost token. ``wishes``
    are units that go first, such as those of a plan. Jobs take whole steps of their sizes. What
    watts are then left allow units that serve now, should they be given up.
    """
    kinds, got = view.kinds, [0] * len(view.kinds)
    rises = [kind.rise_w for kind in kinds]
    worth = np.array([kind.worth for kind in kinds])
    order = np.argsort(-worth / np.maximum(rises, 1e-9), kind="stable").tolist()
    spare = [max(0, kind.alive - kind.at_service) for kind in kinds]

    def give(number: int, units: float, most: int, least: int = 1, step: int = 1) -> None:
        """Let up to so many more units of a kind train, in steps above the least."""
        nonlocal watts
        rise_w = rises[number]
        room = min(units, most - got[number])
        size = math.floor(min(room, watts / rise_w) if rise_w > 0 else room)
        if size >= least:
            size = least + (size - least) // step * step
            got[number] += size
            watts -= size * rise_w

    for number in order if len(wishes) else ():
        give(number, wishes[number], kinds[number].alive)
    for number in order if len(kinds) > 1 else ():  # one kind has no order to look at jobs for
        wanted = wishes[number] if len(wishes) else 0
        for job in (each for each in view.jobs if each.kind == kinds[number].name):
            first = min(wanted, job.units)
            wanted -= first
            size = job.units - first
            give(number, size, spare[number], min(size, job.min_units) or 1, job.step_units)
        give(number, kinds[number].rest_units, spare[number])
    for number in order:
        give(number, math.inf, kinds[number].alive)
    return got
