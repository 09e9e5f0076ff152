"""Power of a site by kind of units: what a cap leaves, and which units train within it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from topologies.arrays import FloatArray
from workloads.fleet.policies.view import View


def left_w(view: View, cap_w: float, busy_share: float = 1.0) -> float:
    """Watts that a cap leaves to training, where units that serve compute a share of their time."""
    # Units that serve, or are on their way to serving, count with that share of their rise, and all
    # that are not broken with their idle draw.
    left = cap_w
    for kind in view.kinds:
        left = left - kind.alive * kind.unit_idle_w - kind.at_service * busy_share * kind.rise_w
    return left


def units_within(
    view: View, watts: float, worth: FloatArray, wishes: Sequence[int], rest: FloatArray
) -> list[int]:
    """Units of each kind that may train within watts, those first that train most for a watt.

    Training is shed in the opposite order: where it frees most watts for a lost token. ``worth`` is
    what a unit of each kind trains, and ``rest`` the units that can work beside jobs. ``wishes``
    are units that go first, whatever they train, such as those of a plan. Jobs take whole steps of
    their sizes. What watts are then left allow units that serve now, should they be given up.
    """
    kinds, got = view.kinds, [0] * len(view.kinds)
    rises = [kind.rise_w for kind in kinds]
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

    for number, wish in enumerate(wishes):
        give(number, wish, kinds[number].alive)
    for number in order if len(kinds) > 1 else ():  # one kind has no order to look at jobs for
        wanted = wishes[number] if len(wishes) else 0
        for job in (each for each in view.jobs if each.kind == kinds[number].name):
            first = min(wanted, job.units)
            wanted -= first
            size = job.units - first
            give(number, size, spare[number], min(size, job.min_units) or 1, job.step_units)
        give(number, float(rest[number]), spare[number])
    for number in order:
        give(number, math.inf, kinds[number].alive)
    return got
