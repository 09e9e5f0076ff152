"""Ring stages along the axes of a torus or the tiers of a switched domain, all busy at once.

The payload is shared out over the orders of the axes by a linear programme, so that axes of
different rates and lengths end together: in the order X, Y, Z the first axis carries (k - 1)/k of
the payload, the next only that of what is left.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from cluster_sim.collectives.algorithms.stages import Part, staged
from cluster_sim.collectives.group import Box, Group
from cluster_sim.collectives.messages import Messages
from cluster_sim.schedule.table import IntArray

WHOLE = 1000
"""Weights of the orders are rounded to parts of this."""
MOST_PERMUTED = 4
"""Axes up to which all orders are considered; beyond, only the cyclic ones."""


def torus(op: str, group: Group, found: Box, size_bytes: int, slices: int) -> Messages:
    """All-reduce, all-gather or reduce-scatter, axis by axis, on the box that a group fills."""
    return staged(op, group.ranks, parts(found), size_bytes, slices)


def parts(found: Box) -> list[Part]:
    """Parts of the payload: orders of axes with their shares, each both ways round where it can."""
    wraps = tuple(found.wraps)
    lines = [axis_lines(found, axis) for axis in range(len(found.sizes))]
    made = []
    for order, weight in shares(found.sizes, _capacities(found)):
        made.append(Part(tuple(lines[axis] for axis in order), weight))
        if any(wraps):
            turned = tuple(lines[axis][:, ::-1] if wraps[axis] else lines[axis] for axis in order)
            made.append(Part(turned, weight))
    return made


def axis_lines(found: Box, axis: int) -> IntArray:
    """Ranks along one axis, int32 (lines, size)."""
    grid = found.chip_at.reshape(found.sizes)
    return np.moveaxis(grid, axis, -1).reshape(-1, found.sizes[axis]).astype(np.int32)


def _capacities(found: Box) -> tuple[int, ...]:
    """Rate at which rings along each axis can send, both ways round together [B/s]."""
    return tuple(
        rate * (2 if wrap else 1) for rate, wrap in zip(found.rates, found.wraps, strict=True)
    )


@functools.lru_cache(maxsize=256)
def shares(
    sizes: tuple[int, ...], capacities: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Orders of the axes with integer weights, such that the busiest axis is as idle as can be.

    Examples
    --------
    >>> shares((4, 4), (1, 1))
    (((0, 1), 500), ((1, 0), 500))
    """
    axes = range(len(sizes))
    orders = list(itertools.permutations(axes))
    if len(sizes) > MOST_PERMUTED:
        orders = [tuple(np.roll(axes, -turn).tolist()) for turn in axes]
    loads = np.array([[_load(order, sizes, axis) for order in orders] for axis in axes])
    loads = loads / (np.array(capacities) / max(capacities))[:, None]
    from scipy.optimize import linprog  # takes half a second to import, and few need it

    # The last variable is the time of the busiest axis; a little weight on evenness breaks ties.
    cost = np.append(np.zeros(len(orders)), 1.0)
    busiest = np.hstack([loads, -np.ones((len(sizes), 1))])
    found = linprog(
        cost,
        A_ub=busiest,
        b_ub=np.zeros(len(sizes)),
        A_eq=[np.append(np.ones(len(orders)), 0.0)],
        b_eq=[1.0],
    )
    if found.x is None:
        raise ValueError(f"no shares for axes {sizes} of capacities {capacities}: {found.message}")
    weights = np.rint(found.x[:-1] * WHOLE).astype(int).tolist()
    return tuple((order, w) for order, w in zip(orders, weights, strict=True) if w)


def _load(order: tuple[int, ...], sizes: tuple[int, ...], axis: int) -> float:
    """Share of the payload that a reduce-scatter in this order sends along an axis."""
    upto = order[: order.index(axis) + 1]
    return (sizes[axis] - 1) / math.prod(sizes[a] for a in upto)
