"""Targets of a minute: units of each kind that should serve, and that may train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import FloatArray, IntArray
from workloads.fleet.state.world import World


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
