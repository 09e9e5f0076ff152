"""Batch work beside training: how many units it has, and from which roles it takes them.

Every 15 minutes, and when work comes to an idle tier, batch work takes spare units and units that
evaluate, as many as the waiting work and the arrivals of 15 minutes need. From training it takes
only the whole units that its deadlines need. That is the share of the coming free unit-time with
which the work due at each deadline is done by half an hour before the deadline,

    units = free now · max over deadlines k of  work due by k / free unit-time until k

where free units are those that serving is not expected to need. The expected need is that of the
same time of the day before, times the units that serve now over the need now. The oldest request is
answered first, which is the earliest-deadline-first rule: it meets all deadlines whenever any order
does (Liu and Layland, *J. ACM* 20, 1973). Serving always comes first.
"""

from __future__ import annotations

import math

import numpy as np

from topologies.arrays import FloatArray, IntArray
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.view import View
from workloads.fleet.processes.moves import (
    Part,
    Phase,
    Process,
    from_training,
    load_phases,
    release,
    walk,
)
from workloads.fleet.state.ledger import NOBODY, Role
from workloads.fleet.state.queues import Batch
from workloads.fleet.state.world import World

EVERY = 15
"""Minutes between two decisions."""
SLACK = 30
"""Minutes before a deadline at which its work should be done."""
MOST_ABOVE = 1.5
"""Largest ratio of serving units to their need that is expected to last."""
POOL = 0
"""Pool whose weights batch work uses."""


def balance(world: World, view: View, wanted: int | None) -> None:
    """Give units to the batch tier, or take them away."""
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

    A fraction of a unit is left to training: the work that then waits adds up to a whole unit in
    time.
    """
    rate = float(batch.rate_per_s[view.minute]) * 60.0
    due = batch.queue.due(view.minute) / rate
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
    result: FloatArray = np.maximum(view.units - view.broken - need, 0.0)
    return result


def _yielded(world: World, count: int) -> list[Part]:
    """Take up to ``count`` units that nobody misses: spare ones, then those that evaluate."""
    if world.training_limit == 0:
        return []
    spare = world.free()
    room = min(len(spare) - world.limits.reserve, world.room_to_train(), count)
    taken = spare[: max(0, room)]
    evaluating = world.evaluating()[: max(0, count - len(taken))]
    return [(taken, []), (evaluating, [Phase(Role.DRAINING, world.costs.drain_s)])]


def _take(world: World, parts: list[Part]) -> int:
    """Lead units to batch work, and return their number."""
    for units, before in parts:
        resident = world.ledger.loaded[units] == POOL
        loading = load_phases(world, POOL, compiled=True)[:2]
        _join(world, units[resident], before)
        _join(world, units[~resident], [*before, *loading])
    return sum(len(units) for units, _ in parts)


def _join(world: World, units: IntArray, phases: list[Phase]) -> None:
    """Start the process that leads units to batch work."""
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
