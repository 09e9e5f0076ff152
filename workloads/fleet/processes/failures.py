"""Units out of service: failures with their repairs, and windows of maintenance.

Any server may break at any time, whatever its unit does. A unit that serves, evaluates or waits
works on with its remaining servers. A gang computes on whole units only, so it loses the unit,
which then serves or evaluates with its remaining servers. A unit in the middle of a role change is
out until the repair. Faults of links, switches and software take no unit out: the gang that they
hit restarts on all of its units.

A window of maintenance takes units out once, or all of a kind in turn. Idle units go first, then
those whose work yields, then those of gangs, and those that serve last. Gangs save their work or go
on with fewer replicas, as when units are reclaimed. A unit that serves stays until another one has
come for it, or the time of a role change has passed. From then on each unit is out for the length
of the window; it comes back without weights. Reserved units leave before their end in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machine_of
from topologies.support.arrays import IntArray
from topologies.support.errors import InputError, shown, suggestion
from workloads.demand.trace import Demand
from workloads.demand.what_if import PLACE, minute_at
from workloads.economics import Economics
from workloads.fleet.inputs.reservations import Block
from workloads.fleet.processes.moves import Phase, Process, dispatch, in_gang, release, stop, walk
from workloads.fleet.state.services import Domain, Failures, Service
from workloads.fleet.state.store import milliseconds
from workloads.fleet.state.world import NOBODY, NONE, OUT, Gang, Role, World
from workloads.job.causes import failure_rates
from workloads.options.windows import FORMS, Window, stated

SERVER = "server"  # name of the smallest failure domain


def failing(world: World, failures: Failures) -> Process:
    """Break servers at random, one after the other; those that are down cannot break."""
    # This and the other processes here draw from generators of their own, whatever becomes of a
    # draw, so that all policies meet the same failures and their results can be subtracted.
    rng = world.rng.spawn(1)[0]
    mean_s = failures.unit_mtbf_s / len(world.ledger)
    while True:
        delay_ms = milliseconds(rng.exponential(mean_s), world.horizon_ms)
        yield world.env.timeout(max(1, delay_ms))
        servers = world.ledger.servers
        unit, server = divmod(int(rng.integers(len(world.ledger) * servers)), servers)
        repair_s = rng.exponential(failures.repair_s)
        # Servers of a unit are alike: those that are down count as the first ones.
        if world.ledger.role[unit] in OUT or server < world.ledger.lost[unit]:
            continue
        world.failures[SERVER] += 1
        if _works_on(world, unit, 1):
            lose_servers(world, unit, 1, repair_s)
        else:
            break_units(world, np.array([unit]), repair_s)


def failing_together(world: World, domain: Domain) -> Process:
    """Break racks, scale-up domains or power feeds at random, each with all of its units."""
    rng = world.rng.spawn(1)[0]
    units = len(world.ledger)
    count = domain.count(units, world.ledger.servers)
    while True:
        delay_s = rng.exponential(domain.mtbf_s / count)
        yield world.env.timeout(max(1, milliseconds(delay_s, world.horizon_ms)))
        number = int(rng.integers(count))
        repair_s = rng.exponential(domain.repair_s)
        first = number * domain.units if domain.units else number % units
        affected = np.arange(first, min(first + max(domain.units, 1), units))
        affected = affected[~np.isin(world.ledger.role[affected], OUT)]
        if not len(affected):
            continue
        world.failures[domain.name] += 1
        if not domain.units and _works_on(world, int(affected[0]), domain.servers):
            lose_servers(world, int(affected[0]), domain.servers, repair_s)
        else:
            break_units(world, affected, repair_s)


def interrupting(world: World, name: str, mtbf_s: float) -> Process:
    """Let faults hit random units; the gang of such a unit restarts with all its units."""
    # Every unit has the same share of the fleet's links, switches and servers. A fault that hits a
    # unit outside of any gang is counted and changes nothing.
    rng = world.rng.spawn(1)[0]
    while math.isfinite(mtbf_s):
        delay_s = rng.exponential(mtbf_s)
        yield world.env.timeout(max(1, milliseconds(delay_s, world.horizon_ms)))
        unit = int(rng.integers(len(world.ledger)))
        world.failures[name] += 1
        role = Role(int(world.ledger.role[unit]))
        if role is not Role.PAUSED and in_gang(world, unit, role):
            world.gangs[world.ledger.owner[unit]].fail(NONE, NONE)


def _works_on(world: World, unit: int, servers: int) -> bool:
    """Return whether a unit goes on working after it has lost ``servers`` more servers."""
    ledger = world.ledger
    left = ledger.servers - int(ledger.lost[unit]) - servers
    return bool(left > 0 and not ledger.ticket[unit] and ledger.role[unit] != Role.PAUSED)


def lose_servers(world: World, unit: int, servers: int, repair_s: float) -> None:
    """Take servers out of a unit; its gang, if it is in one, goes on without the unit."""
    ledger = world.ledger
    role = Role(int(ledger.role[unit]))
    gang = world.gangs[ledger.owner[unit]] if in_gang(world, unit, role) else None
    ledger.lose(unit, world.now, servers)
    if gang is not None:
        ledger.loaded[unit] = NOBODY
        ledger.put(np.array([unit]), Role.SPARE, world.now)
        _fail(world, gang, np.array([unit]))
        dispatch(world)
    repair_ms = milliseconds(repair_s, world.horizon_ms)
    world.env.process(_repair_servers(world, unit, servers, repair_ms))


def break_units(world: World, units: IntArray, repair_s: float) -> None:
    """Take whole units out at the same time; gangs and cohorts go on without them."""
    ledger = world.ledger
    working = np.array([in_gang(world, unit, Role(int(ledger.role[unit]))) for unit in units])
    owner = np.where(working, ledger.owner[units], NOBODY)
    paused = ledger.role[units] == Role.PAUSED
    ledger.ticket[units] = 0
    world.heading[units] = NOBODY
    ledger.loaded[units] = NOBODY
    ledger.put(units, Role.BROKEN, world.now)
    repair_ms = milliseconds(repair_s, world.horizon_ms)
    ledger.back_ms[units] = world.now + repair_ms
    for number in np.unique(owner[owner != NOBODY]).tolist():
        gang = world.gangs[number]
        lost = units[owner == number]
        gang.paused = gang.paused[~np.isin(gang.paused, lost)]
        if (~paused[owner == number]).any():
            _fail(world, gang, lost)
    world.env.process(_repair(world, units, repair_ms))


def _fail(world: World, gang: Gang, broken: IntArray) -> None:
    """Let a gang lose units; one of them is replaced by a spare unit, or by one that evaluates."""
    # A job with warm standby takes no unit that evaluates while it can go on without: the restart
    # of its surviving processes is shorter than a start with a new unit.
    spare = world.whole(world.settled(Role.SPARE))[:1]
    others: IntArray = NONE
    left = gang.size - int(np.isin(gang.units, broken).sum())
    if not len(spare) and not (gang.job.standby == "warm" and gang.job.fits(left)):
        others = world.whole(world.settled(Role.EVALUATION))[:1]
    replacement = np.concatenate([spare, others])
    world.ledger.loaded[replacement] = NOBODY
    given_up = gang.fail(broken, replacement, cold=len(others) > 0, rng=world.rng)
    release(world, given_up, [])


def _repair(world: World, units: IntArray, repair_ms: int) -> Process:
    yield world.env.timeout(repair_ms)
    units = units[world.ledger.role[units] == Role.BROKEN]  # others have left the fleet meanwhile
    world.ledger.put(units, Role.SPARE, world.now)
    dispatch(world)


def _repair_servers(world: World, unit: int, servers: int, repair_ms: int) -> Process:
    yield world.env.timeout(repair_ms)
    world.ledger.lose(unit, world.now, -servers)
    dispatch(world)


CABLES = "copper_link"
"""Cause that takes a whole scale-up domain out, because its cables run between servers."""


def failures_from(
    cluster: Cluster, services: Sequence[Service], *, domains: bool = False
) -> Failures:
    """Return the failures of a cluster's units."""
    # Without ``domains``, one rate per chip stands for all causes, and every failure takes one
    # server out (part ``fleet.failure``, ``chip_mtbf``). With it, servers fail by their causes
    # (chips, memory, hosts, power supplies, adapters; see ``workloads.job.causes``), copper cables
    # between servers take their scale-up domain out, and racks and power feeds fail as a whole.
    # Causes that no spare unit remedies (optical links, switches, software) stop training jobs and
    # take nothing out of service; they occur as often as in a job on the whole cluster.
    catalogue = cluster.numbers
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    independent = all(service.lives_in_a_server(servers) for service in services)
    failing_servers = servers if independent else 1
    chips = cluster.chips_per_domain
    chip_mtbf_s, repair_s = (
        catalogue.value("fleet.failure", quantity) for quantity in ("chip_mtbf", "repair")
    )
    servers_only = Failures(chip_mtbf_s / chips, repair_s, failing_servers)
    if not domains:
        return servers_only
    single = replace(cluster, domains=1)
    rates = {cause.name: cause for cause in failure_rates(single, chips, catalogue).causes}
    of_servers = sum(
        cause.per_s for name, cause in rates.items() if cause.replaces and name != CABLES
    )
    rack, feed = _rack(cluster, catalogue, failing_servers), _feed(cluster, catalogue)
    larger: tuple[Domain, ...] = (rack, feed)
    if rates[CABLES].per_s > 0:
        larger += (Domain("scale-up domain", 1 / rates[CABLES].per_s, repair_s),)
    return Failures(
        1 / of_servers,
        repair_s,
        failing_servers,
        domains=larger,
        # What stops a job on the whole cluster, and no spare unit remedies.
        interruptions={
            cause.name.replace("_", " "): 1 / cause.per_s
            for cause in failure_rates(cluster, cluster.chips, catalogue).causes
            if not cause.replaces and cause.per_s > 0
        },
    )


def _rack(cluster: Cluster, catalogue: Catalogue, servers: int) -> Domain:
    """Return a rack as a failure domain: some servers of a unit, or several units."""
    machine = machine_of(cluster)
    part = machine if catalogue.has(machine, "rack_chips") else "fleet.failure"
    chips = round(catalogue.value(part, "rack_chips"))
    mtbf_s, repair_s = (
        catalogue.value("fleet.failure", quantity) for quantity in ("rack_mtbf", "rack_repair")
    )
    if chips < cluster.chips_per_domain and servers > 1:
        lost = max(1, chips // cluster.chips_per_server)
        return Domain("rack", mtbf_s, repair_s, units=0, servers=min(lost, servers))
    return Domain("rack", mtbf_s, repair_s, units=max(1, chips // cluster.chips_per_domain))


def _feed(cluster: Cluster, catalogue: Catalogue) -> Domain:
    """Return a power feed as a failure domain: a share of the units of a building."""
    economics = Economics.of(cluster)
    unit_w = max(economics.busy_w * cluster.chips_per_domain, 1.0)
    building = min(catalogue.value("rainier", "building_power") / unit_w, float(cluster.domains))
    share = catalogue.value("fleet.failure", "feed_share")
    return Domain(
        "power feed",
        # The catalogue's mean time is that between losses in a building, which has 1 / share feeds.
        catalogue.value("fleet.failure", "feed_mtbf") / share,
        catalogue.value("fleet.failure", "feed_repair"),
        units=max(1, round(building * share)),
    )


IN_TURN = (
    Role.SPARE, Role.PAUSED, Role.EVALUATION, Role.BATCH, Role.DRAINING, Role.LOADING,
    Role.COMPILING, Role.WARMING, Role.CHECKPOINTING, Role.TRAINING, Role.SERVING, *OUT,
)  # fmt: skip
"""Roles in the order in which their units are taken."""
RANKS = np.argsort(IN_TURN)


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
        span_s = demand.minutes * 60.0
        begins = np.arange(window.begin_s, span_s, min(window.every_s, span_s))
        windows[name] += [replace(window, begin_s=float(begin_s)) for begin_s in begins]
    for name, each in windows.items():
        for one, other in pairwise(sorted(each, key=lambda window: window.begin_s)):
            ends_s = one.begin_s + one.length_s * one.rounds(kinds[name])
            if other.begin_s < ends_s:
                raise InputError(
                    f"--maintenance {other.text} overlaps {one.text}, which ends "
                    f"{ends_s / 3600:.4g} h after the start of the run; choose a later moment, or "
                    "join them."
                )
    return {name: tuple(each) for name, each in windows.items()}


LEAST_EVERY_S = 3600.0  # least time from one begin of a window of a fleet to the next [s]


def _window(text: str, kinds: Mapping[str, int], demand: Demand) -> tuple[str, Window]:
    """Return the kind of units and the window that a text states."""
    what = f"--maintenance {shown(text)}"

    def moment_s(at: str) -> float:
        """Time from the start of the run, whose clock is the demand's [s]."""
        match = PLACE.fullmatch(f"@{at}")
        if match is None or match["factor"] or match["length"]:
            raise InputError(f"{what} cannot be read; write {FORMS}.")
        return minute_at(demand, match, 0, what) * 60.0

    kind, window = stated(text, moment_s)
    name = kind or next(iter(kinds))
    if name not in kinds or (not kind and len(kinds) > 1):
        listed = ", ".join(f"={each}:{window.units}" for each in kinds)
        unknown = f"has no kind {shown(kind)!r}" if kind else "has several kinds of units"
        raise InputError(
            f"{what}: the fleet {unknown}; end with {listed}.{suggestion(name, kinds)}"
        )
    if window.every_s < LEAST_EVERY_S:
        raise InputError(f"{what} begins more than once an hour; state an hour or more.")
    if window.begin_s >= demand.minutes * 60.0:
        raise InputError(f"{what} first begins after the run; state a shorter time, or more days.")
    window.check(kinds[name])
    return name, window


def maintaining(world: World, windows: Sequence[Window]) -> Process:
    """Take the units of windows out of service, one group after the other."""
    # A window lasts longer than its groups are out, as units come in place of those that serve. The
    # next one begins when all units are back.
    windows = sorted(windows, key=lambda each: each.begin_s)
    world.due_ms = [milliseconds(window.begin_s, world.horizon_ms) for window in windows]
    for window in windows:
        yield world.env.timeout(max(0, world.due_ms[0] - world.now))
        begin_ms = world.due_ms.pop(0)
        world.maintenance_late_ms = max(world.maintenance_late_ms, world.now - begin_ms)
        waiting = np.ones(len(world.ledger), bool)
        for _ in range(window.rounds(len(world.ledger))):
            units = _next_units(world, waiting, window.units)
            waiting[units] = False
            length_ms = milliseconds(window.length_s, world.horizon_ms)
            yield world.env.process(_group(world, units, length_ms))


def reserve(world: World, blocks: Sequence[Block]) -> None:
    """Let the last units be there for the times of blocks only."""
    first = len(world.ledger) - max(block.units for block in blocks)
    absent = np.arange(first, len(world.ledger))
    world.ledger.put(absent, Role.ABSENT, 0)
    world.ledger.back_ms[absent] = world.horizon_ms
    world.env.process(_reserving(world, blocks, first))


def _reserving(world: World, blocks: Sequence[Block], first: int) -> Process:
    """Let reserved units come, and leave in time, so that none works when it is terminated."""
    forever_ms = world.horizon_ms
    for block in blocks:
        units = np.arange(first, first + block.units)
        begin_ms, end_ms = (
            milliseconds(moment_s, world.horizon_ms) for moment_s in (block.begin_s, block.end_s)
        )
        yield world.env.timeout(begin_ms - world.now)
        world.ledger.ticket[units] = 0
        world.ledger.put(units, Role.SPARE, world.now)
        dispatch(world)
        leave_ms = end_ms - milliseconds(world.lead_s + 60.0, world.horizon_ms)
        yield world.env.timeout(max(0, leave_ms - world.now))
        world.env.process(_group(world, units, forever_ms, Role.ABSENT))
        yield world.env.timeout(end_ms - world.now)
        left = units[world.ledger.role[units] != Role.ABSENT]
        break_units(world, left, math.inf)
        world.ledger.put(left, Role.ABSENT, world.now)
        world.ledger.back_ms[units] = forever_ms


def _next_units(world: World, waiting: np.ndarray, count: int) -> IntArray:
    """Return the units that leave next, those that are missed least first."""
    # Gangs of low priority have the largest numbers; whole gangs are taken before parts of others.
    ledger = world.ledger
    units = np.flatnonzero(waiting & ~np.isin(ledger.role, OUT))
    comes = world.heading[units] != NOBODY
    order = np.lexsort((-ledger.owner[units], RANKS[ledger.role[units]], comes))
    return units[order[:count]]


def _group(world: World, units: IntArray, length_ms: int, role: Role = Role.MAINTENANCE) -> Process:
    """Take units out together, those that serve once others have come for them."""
    serves = world.ledger.role[units] == Role.SERVING
    leaving = [world.env.process(_out(world, units[~serves], length_ms, role))]
    units = units[serves]
    if len(units):
        pools = world.ledger.owner[units]
        np.add.at(world.surge, pools, 1)
        world.ledger.events += 1
        yield world.env.timeout(milliseconds(world.lead_s + 60.0, world.horizon_ms))
        np.subtract.at(world.surge, pools, 1)
        world.ledger.events += 1
        leaving.append(world.env.process(_out(world, units, length_ms, role)))
    yield world.env.all_of(leaving)


def _out(world: World, units: IntArray, length_ms: int, role: Role) -> Process:
    """Take units out of service, whatever they do, for a time."""
    cohorts = [
        world.env.process(_service(world, units, phases, length_ms, role))
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


def _service(
    world: World, units: IntArray, phases: list[Phase], length_ms: int, role: Role
) -> Process:
    """Lead units through phases, keep them out of service, and give them back as spare."""
    ticket = world.take_ticket(units)
    yield from walk(world, units, ticket, phases)
    units = world.still(units, ticket)
    world.ledger.loaded[units] = NOBODY
    world.ledger.put(units, role, world.now)
    world.ledger.back_ms[units] = world.now + length_ms
    world.maintained += len(units) * (role is Role.MAINTENANCE)
    yield world.env.timeout(length_ms)
    world.ledger.put(world.arrive(units, ticket), Role.SPARE, world.now)
    dispatch(world)
