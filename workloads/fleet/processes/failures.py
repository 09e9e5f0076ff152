"""Failures and repairs: any server may break at any time, whatever its unit does.

A unit that serves, evaluates or waits works on with the servers that are left. A gang computes on
whole units only and loses the unit, which is then lent or serves with what is left. A unit in the
middle of a role change is out until the repair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topologies.catalogue.catalogue import Catalogue, catalogue
from topologies.errors import InputError
from workloads.fleet.processes.moves import Process, dispatch, release
from workloads.fleet.state.gangs import NONE
from workloads.fleet.state.ledger import NOBODY, IntArray, milliseconds
from workloads.fleet.state.roles import Role
from workloads.fleet.state.world import World


@dataclass(frozen=True)
class Failures:
    """Exponential times between failures of a unit, and to its repair [s].

    Attributes
    ----------
    unit_mtbf_s, repair_s : float
        Means [s].
    servers : int
        That a unit loses one by one; 1: a failure takes the whole unit out.
    """

    unit_mtbf_s: float
    repair_s: float
    servers: int = 1

    def __post_init__(self) -> None:
        if not self.unit_mtbf_s > 0 or not self.repair_s >= 0:
            raise InputError(
                f"failures with a mean time of {self.unit_mtbf_s} s and a repair of "
                f"{self.repair_s} s; the first must be above 0, the second at least 0."
            )

    @classmethod
    def from_catalogue(
        cls, chips_per_unit: int, *, servers: int = 1, parts: Catalogue | None = None
    ) -> Failures:
        """Part ``fleet.failure``: one chip's failure takes its server out."""
        book = parts or catalogue()
        return cls(
            book.value("fleet.failure", "chip_mtbf") / chips_per_unit,
            book.value("fleet.failure", "repair"),
            servers,
        )


def failing(world: World, failures: Failures) -> Process:
    """Break servers at random, one after the other; those that are down cannot break."""
    mean_s = failures.unit_mtbf_s / len(world.ledger)
    while True:
        delay_ms = milliseconds(world.rng.exponential(mean_s), world.horizon_ms)
        yield world.env.timeout(max(1, delay_ms))
        servers = world.ledger.servers
        unit, server = divmod(int(world.rng.integers(len(world.ledger) * servers)), servers)
        if world.ledger.role[unit] == Role.BROKEN or server < world.ledger.lost[unit]:
            continue
        repair_s = world.rng.exponential(failures.repair_s)
        if _works_on(world, unit):
            lose_server(world, unit, repair_s)
        else:
            break_unit(world, unit, repair_s)


def _works_on(world: World, unit: int) -> bool:
    """Whether a unit has servers left after one more failure, and is in no role change."""
    ledger = world.ledger
    left = ledger.servers - int(ledger.lost[unit]) - 1
    return bool(left and not ledger.ticket[unit] and ledger.role[unit] != Role.PAUSED)


def lose_server(world: World, unit: int, repair_s: float) -> None:
    """Take one server out of a unit; a gang that it was in goes on without the unit."""
    ledger = world.ledger
    world.failures += 1
    was = Role(int(ledger.role[unit]))
    gang = world.gangs[ledger.owner[unit]] if _in_gang(world, unit, was) else None
    ledger.lose(unit, world.now)
    if gang is not None:
        ledger.loaded[unit] = NOBODY
        ledger.put(np.array([unit]), Role.SPARE, world.now)
        release(world, gang.fail(unit, _replacement(world)), [])
        dispatch(world)
    world.env.process(_repair_server(world, unit, milliseconds(repair_s, world.horizon_ms)))


def break_unit(world: World, unit: int, repair_s: float) -> None:
    """Take one unit out; its gang loses what its job loses, its cohort goes on without it."""
    ledger = world.ledger
    world.failures += 1
    was = Role(int(ledger.role[unit]))
    gang = world.gangs[ledger.owner[unit]] if _in_gang(world, unit, was) else None
    ledger.ticket[unit] = 0
    world.heading[unit] = NOBODY
    ledger.loaded[unit] = NOBODY
    ledger.put(np.array([unit]), Role.BROKEN, world.now)
    if gang is not None and was is Role.PAUSED:
        gang.paused = gang.paused[gang.paused != unit]
    elif gang is not None:
        release(world, gang.fail(unit, _replacement(world)), [])
    world.env.process(_repair(world, unit, milliseconds(repair_s, world.horizon_ms)))


def _in_gang(world: World, unit: int, role: Role) -> bool:
    if role is Role.SERVING or world.ledger.owner[unit] == NOBODY:
        return False
    return bool(world.ledger.ticket[unit] == 0)


def _replacement(world: World) -> IntArray:
    """Take one spare unit, or one that evaluates, if there is any."""
    for units in (world.whole(world.free()), world.whole(world.evaluating())):
        if len(units):
            world.ledger.loaded[units[:1]] = NOBODY
            return units[:1]
    return NONE


def _repair(world: World, unit: int, repair_ms: int) -> Process:
    yield world.env.timeout(repair_ms)
    world.ledger.put(np.array([unit]), Role.SPARE, world.now)
    dispatch(world)


def _repair_server(world: World, unit: int, repair_ms: int) -> Process:
    yield world.env.timeout(repair_ms)
    world.ledger.lose(unit, world.now, -1)
    dispatch(world)
