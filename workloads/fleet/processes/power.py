"""Cap on the power of a site: which units may train in a minute without passing it.

The cap leaves to training what remains after the idle draw of all units that are in service or come
back in the minute, and after what serving draws for the requests of that minute, which the power
control of a site follows within seconds. Where regions help each other, a request counts with the
draw of the kind of units that needs most for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topologies.support.arrays import FloatArray
from workloads.fleet.policies.view import View
from workloads.fleet.state.store import MINUTE_MS
from workloads.fleet.state.world import OUT, Role, World


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
