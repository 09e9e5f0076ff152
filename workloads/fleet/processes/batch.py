"""Batch work beside training: how many units it has, and from which roles it takes them.

Every 15 minutes, and when work comes to an idle tier, it takes what evaluation and nobody else
needs, for the work that waits and that comes in 15 minutes. From training it takes only as many
whole units as deadlines ask for: the share of the coming free unit-time that has to go to it, so
that the work due by each deadline fits into the free unit-time until half an hour before that,

    units = free now · max over deadlines k of  work due by k / free unit-time until k

where free is what serving is not expected to need: the need at the same time of the day before,
raised as the units that serve now are above the need now. Of the oldest request first, this is the
earliest-deadline-first rule, which meets all deadlines whenever any order does (Liu and Layland,
*J. ACM* 20, 1973). Serving always comes first.
"""

from __future__ import annotations

import math

import numpy as np

from topologies.arrays import FloatArray, IntArray
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.view import View
from workloads.fleet.processes.moves import Phase, Process, load_phases, release, walk
from workloads.fleet.processes.reclaim import Part, from_training
from workloads.fleet.state.batch import Batch
from workloads.fleet.state.ledger import NOBODY
from workloads.fleet.state.roles import Role
from workloads.fleet.state.world import World

EVERY = 15
"""Minutes between two decisions."""
SLACK = 30
"""Minutes before a deadline at which its work should be done."""
MOST_ABOVE = 1.5
"""Largest factor of serving units over the need that is expected to last."""
POOL = 0
"""Pool whose weights batch work needs."""


def balance(world: World, view: View, wanted: int | None) -> None:
    """Give units to the batch tier, or take them away; ``wanted`` is a policy's word."""
    batch = world.batch
    if batch is None:
        return
    waiting = batch.queue.waits(view.minute)
    units = world.ledger.count(Role.BATCH) + batch.joining
    if view.minute % EVERY and (units or not waiting):
        return
    rate = float(batch.rate_per_s[view.minute]) * 60.0
    coming = batch.queue.came(view.minute, EVERY)
    enough = math.ceil((waiting + coming) / (rate * EVERY))
    urgent = urgent_units(batch, view) if wanted is None else wanted
    batch.urgent = min(urgent, enough)
    if units > enough:
        surplus = world.in_batch()[enough - units :]
        release(world, surplus, [Phase(Role.DRAINING, world.costs.drain_s)])
        return
    units += _take(world, _yielded(world, enough - units))
    if units < batch.urgent and world.training_limit != 0:
        _take(world, from_training(world, batch.urgent - units))


def urgent_units(batch: Batch, view: View) -> int:
    """Whole units that batch work needs now for its deadlines to be met.

    Part of a unit is left to training: work that waits for it makes it a whole one in time.
    """
    rate = float(batch.rate_per_s[view.minute]) * 60.0
    due = batch.queue.due(view.minute) / rate
    if not due[-1]:
        return 0
    free = free_ahead(view, len(due))
    together = np.cumsum(free)
    until = np.maximum(np.arange(len(due)) - SLACK, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(due > 0, due / together[until], 0.0)
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
    result: FloatArray = np.maximum(view.units - view.broken - need, 0.0)
    return result


def _yielded(world: World, count: int) -> list[Part]:
    """Take spare units, then units that evaluate."""
    if world.training_limit == 0:
        return []
    spare = world.free()
    room = min(len(spare) - world.limits.reserve, world.room_to_train(), count)
    taken = spare[: max(0, room)]
    evaluating = world.evaluating()[: max(0, count - len(taken))]
    return [(taken, []), (evaluating, [Phase(Role.DRAINING, world.costs.drain_s)])]


def _take(world: World, parts: list[Part]) -> int:
    """Lead units to batch work through these phases; those that hold the weights load nothing."""
    for units, before in parts:
        resident = world.ledger.loaded[units] == POOL
        loading = load_phases(world, POOL, compiled=True)[:2]
        _join(world, units[resident], before)
        _join(world, units[~resident], [*before, *loading])
    return sum(len(units) for units, _ in parts)


def _join(world: World, units: IntArray, phases: list[Phase]) -> None:
    if len(units) and world.batch is not None:
        world.batch.joining += len(units)
        ticket = world.take_ticket(units)
        world.env.process(_joining(world, world.batch, units, ticket, phases))


def _joining(
    world: World, batch: Batch, units: IntArray, ticket: int, phases: list[Phase]
) -> Process:
    yield from walk(world, units, ticket, phases)
    left = world.arrive(units, ticket)
    batch.joining -= len(units)
    world.ledger.loaded[left] = POOL
    world.ledger.put(left, Role.BATCH, world.now, NOBODY)
