"""Maintenance: windows in which units are out of service, once or all of a kind in turn.

Idle units go first, then those whose work yields, then those of gangs, and those that serve last.
Gangs save their work or go on with fewer replicas, as when units are reclaimed. A unit that serves
stays until another one has come for it, or the time of a role change has passed. From then on each
unit is out for the length of the window; it comes back without weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import IntArray
from topologies.errors import InputError, shown, suggestion
from topologies.units import parse_seconds
from workloads.demand.trace import Demand
from workloads.demand.what_if import PLACE, minute_at
from workloads.fleet.processes.moves import (
    Phase,
    Process,
    dispatch,
    in_gang,
    release,
    stop,
    walk,
)
from workloads.fleet.state.world import NOBODY, OUT, Gang, Role, World, milliseconds

FORMS = "out@1d02:00+4h=16 or roll@1d02:00+30min=8"
IN_TURN = (
    Role.SPARE, Role.PAUSED, Role.EVALUATION, Role.BATCH, Role.DRAINING, Role.LOADING,
    Role.COMPILING, Role.WARMING, Role.CHECKPOINTING, Role.TRAINING, Role.SERVING, *OUT,
)  # fmt: skip
"""Roles in the order in which their units are taken."""
RANKS = np.argsort(IN_TURN)


@dataclass(frozen=True)
class Window:
    """Time for which units of one kind are out of service."""

    text: str  # as it was stated
    begin_s: float  # time from the start of the run at which units begin to leave [s]
    length_s: float  # time for which each unit is out [s]
    units: int  # units that are out at the same time
    rolling: bool = False  # whether all units of the kind have their turn, ``units`` at a time

    def rounds(self, units: int) -> int:
        """Number of groups of units that leave one after the other, of a kind of ``units``."""
        return -(-units // self.units) if self.rolling and self.units else 1


def windows_from(
    texts: Sequence[str], kinds: Mapping[str, int], demand: Demand
) -> dict[str, tuple[Window, ...]]:
    """Read the windows of each kind, ``kinds`` being units by name, in a run through a demand.

    Raises InputError for a window that cannot be read, of an unknown kind, of more units than the
    kind has, after the run, or at the same time as another one of the kind.
    """
    windows: dict[str, list[Window]] = {name: [] for name in kinds}
    for text in texts:
        name, window = _window(text, kinds, demand)
        end_s = window.begin_s + window.length_s * window.rounds(kinds[name])
        for other in windows[name]:
            ends_s = other.begin_s + other.length_s * other.rounds(kinds[name])
            if window.begin_s < ends_s and other.begin_s < end_s:
                raise InputError(
                    f"--maintenance {text} overlaps {other.text}, which ends {ends_s / 3600:.4g} h "
                    "after the start of the run; choose a later moment, or join them."
                )
        windows[name].append(window)
    return {name: tuple(each) for name, each in windows.items()}


def _window(text: str, kinds: Mapping[str, int], demand: Demand) -> tuple[str, Window]:
    """Return the kind of units and the window that a text states."""
    what = f"--maintenance {shown(text)}"
    word, at, rest = text.partition("@")
    place, _, size = rest.rpartition("=")
    match = PLACE.fullmatch(at + place)
    stated, _, count = size.rpartition(":")
    is_read = word in ("out", "roll") and at and match and not match["factor"]
    if not is_read or not re.fullmatch(r"\d+", count) or match is None:
        raise InputError(f"{what} cannot be read; write {FORMS}.")
    if not match["length"]:
        raise InputError(f"{what} states no length; write {FORMS}.")
    name = stated or next(iter(kinds))
    if name not in kinds or (not stated and len(kinds) > 1):
        listed = ", ".join(f"={each}:{count}" for each in kinds)
        unknown = f"has no kind {shown(stated)!r}" if stated else "has several kinds of units"
        raise InputError(
            f"{what}: the fleet {unknown}; end with {listed}.{suggestion(name, kinds)}"
        )
    units = int(count)
    if units > kinds[name]:
        raise InputError(
            f"{what}: {units:,} units of {name}, which has {kinds[name]:,}; take fewer."
        )
    begin_s = minute_at(demand, match, 0, what) * 60.0
    length_s = parse_seconds(match["length"], what)
    return name, Window(text, begin_s, length_s, units, rolling=word == "roll")


def maintaining(world: World, window: Window) -> Process:
    """Take the units of a window out of service, one group after the other."""
    yield world.env.timeout(milliseconds(window.begin_s, world.horizon_ms))
    waiting = np.ones(len(world.ledger), bool)
    for _ in range(window.rounds(len(world.ledger)) if window.units else 0):
        units = _next_units(world, waiting, window.units)
        waiting[units] = False
        length_ms = milliseconds(window.length_s, world.horizon_ms)
        yield world.env.process(_group(world, units, length_ms))


def _next_units(world: World, waiting: np.ndarray, count: int) -> IntArray:
    """Return the units that leave next, those that are missed least first."""
    # Gangs of low priority have the largest numbers; whole gangs are taken before parts of others.
    ledger = world.ledger
    units = np.flatnonzero(waiting & ~np.isin(ledger.role, OUT))
    comes = world.heading[units] != NOBODY
    order = np.lexsort((-ledger.owner[units], RANKS[ledger.role[units]], comes))
    return units[order[:count]]


def _group(world: World, units: IntArray, length_ms: int) -> Process:
    """Take units out together, those that serve once others have come for them."""
    serves = world.ledger.role[units] == Role.SERVING
    leaving = [world.env.process(_out(world, units[~serves], length_ms))]
    units = units[serves]
    if len(units):
        pools = world.ledger.owner[units]
        np.add.at(world.surge, pools, 1)
        yield world.env.timeout(milliseconds(world.lead_s + 60.0, world.horizon_ms))
        np.subtract.at(world.surge, pools, 1)
        leaving.append(world.env.process(_out(world, units, length_ms)))
    yield world.env.all_of(leaving)


def _out(world: World, units: IntArray, length_ms: int) -> Process:
    """Take units out of service, whatever they do, for a time."""
    cohorts = [
        world.env.process(_service(world, units, phases, length_ms))
        for units, phases in _withdrawn(world, units)
        if len(units)
    ]
    yield world.env.all_of(cohorts)


def _withdrawn(world: World, units: IntArray) -> list[tuple[IntArray, list[Phase]]]:
    """Take units out of their work, and return them with the phases that they need first."""
    ledger = world.ledger
    units = units[~np.isin(ledger.role[units], OUT)]
    works = np.array([in_gang(world, unit, Role(int(ledger.role[unit]))) for unit in units], bool)
    parts = [
        _from_gang(world, world.gangs[number], units[works & (ledger.owner[units] == number)])
        for number in np.unique(ledger.owner[units[works]]).tolist()
    ]
    others = units[~works]
    drains = np.isin(ledger.role[others], (Role.SERVING, Role.EVALUATION, Role.BATCH))
    drains &= ledger.ticket[others] == 0
    draining = [Phase(Role.DRAINING, world.costs.drain_s)]
    return [*parts, (others[drains], draining), (others[~drains], [])]


def _from_gang(world: World, gang: Gang, units: IntArray) -> tuple[IntArray, list[Phase]]:
    """Take units out of a gang, which goes on with fewer replicas or saves and stops."""
    gang.paused = gang.paused[~np.isin(gang.paused, units)]
    stay = gang.units[~np.isin(gang.units, units)]
    computing = units[np.isin(units, gang.units)]
    if not len(computing):
        return units, []
    kept = gang.job.fits(len(stay)) if gang.job.reclaim == "shrink" else 0
    if not kept:
        gang.units = np.concatenate([computing, stay])
        _, phases = stop(world, gang, len(computing))
        return units, phases
    gang.units = np.concatenate([stay, computing])
    gang.tally.reclaims += 1
    left = gang.shrink(len(gang.units) - kept)
    release(world, left[: len(left) - len(computing)], [])
    return units, []


def _service(world: World, units: IntArray, phases: list[Phase], length_ms: int) -> Process:
    """Lead units through phases, keep them out of service, and give them back as spare."""
    ticket = world.take_ticket(units)
    yield from walk(world, units, ticket, phases)
    units = world.still(units, ticket)
    world.ledger.loaded[units] = NOBODY
    world.ledger.put(units, Role.MAINTENANCE, world.now)
    world.maintained += len(units)
    yield world.env.timeout(length_ms)
    world.ledger.put(world.arrive(units, ticket), Role.SPARE, world.now)
    dispatch(world)
