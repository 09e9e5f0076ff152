"""Kinds of units in one fleet, and the units of each kind that serve and train.

Demand is counted in units of the first kind. Serving takes the kinds in their order, as many units
of each as work, and goes on to the next where those are too few; the kinds that serve last train
first. A unit of another kind counts as many units of the first as it takes to serve the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from topologies.arrays import FloatArray
from workloads.demand import Demand
from workloads.economics import Economics
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.processes.failures import Fleet
from workloads.fleet.state.services import Service, by_pool, pools_from, units_needed
from workloads.fleet.state.world import World

UNKNOWN = Economics(0.0, 0.0)
"""Power and price of a chip of which neither is known."""


@dataclass(frozen=True, eq=False)
class Kind:
    """Units of one kind in a fleet."""

    name: str
    # One for each service of the demand, with the capacity of a unit of this kind
    services: tuple[Service, ...]
    fleet: Fleet
    jobs: tuple[TrainingJob, ...] = ()  # jobs that run on this kind
    economics: Economics = UNKNOWN  # power and price of a chip
    serves: bool = True  # whether units of this kind may serve


def speeds_of(demand: Demand, kinds: Sequence[Kind]) -> FloatArray:
    """Requests that a unit of each kind serves, relative to one of the first; (kinds, pools)."""
    needs = [
        by_pool(units_needed(demand, kind.services), pools_from(kind.services)).sum(axis=1)
        for kind in kinds
    ]
    result = np.array(
        [np.where(need > 0, needs[0] / np.maximum(need, 1e-300), 1.0) for need in needs]
    )
    result[[not kind.serves for kind in kinds]] = 0.0
    return result


def serving_units(demand: Demand, kinds: Sequence[Kind]) -> float:
    """Units that may serve, in units of the first kind, for the mix of a demand."""
    needs = [float(units_needed(demand, kind.services).sum()) for kind in kinds]
    return sum(
        kind.fleet.units * (needs[0] / need if need else 1.0)
        for kind, need in zip(kinds, needs, strict=True)
        if kind.serves
    )


def targets(worlds: Sequence[World], wanted: FloatArray) -> list[npt.NDArray[np.int64]]:
    """Return the units of each kind that should serve; each (pools,)."""
    # ``wanted`` (pools,) in units of the first kind, or (kinds, pools) in those of each kind, which
    # are placed as their sum where floor and cap do not allow them.
    limits, speeds = worlds[0].limits, np.stack([world.speed for world in worlds])
    # Floor and cap hold for all kinds together.
    each = [limits, *(replace(world.limits, floor=0, cap=0) for world in worlds[1:])]
    if wanted.ndim == 2:
        placed = [
            replace(limit, floor=0, cap=0).quantised(row * (world.speed > 0), len(world.ledger))
            for limit, row, world in zip(each, wanted, worlds, strict=True)
        ]
        if limits.floor <= np.sum(placed * speeds) <= (limits.cap or math.inf):
            return placed
        wanted = (wanted * speeds).sum(axis=0)
    whole = sum(len(world.ledger) * world.speed.max() for world in worlds)
    left = replace(limits, block=1).quantised(wanted, int(whole)).astype(float)
    last = max(number for number, speed in enumerate(speeds) if speed.any())
    result = []
    for number, (limit, world) in enumerate(zip(each, worlds, strict=True)):
        speed = world.speed
        units = np.divide(left, speed, out=np.zeros_like(left), where=speed > 0)
        most = len(world.ledger)
        if number < last:
            most -= world.ledger.out_of_service()
        result.append(limit.quantised(units, most))
        left = np.maximum(left - result[-1] * speed, 0.0)
    return result


def training_limits(
    worlds: Sequence[World], serving: Sequence[npt.NDArray[np.int64]], most: int | None
) -> list[int | None]:
    """Divide the most units that may train among the kinds, those that serve last first."""
    limits: list[int | None] = []
    for world, target in zip(reversed(worlds), reversed(serving), strict=True):
        if most is not None and len(limits) < len(worlds) - 1:
            room = len(world.ledger) - world.ledger.out_of_service() - int(target.sum())
            limits.append(min(most, max(0, room)))
            most -= limits[-1] or 0
        else:
            limits.append(most)
    return limits[::-1]
