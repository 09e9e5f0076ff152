"""Cycles through all ranks of a group, along which ring collectives run.

On a box of a torus they are Hamiltonian cycles that together use the cables as fully as they can:
from the shipped table for the boxes of a 4x4x4 torus, by search elsewhere.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster_sim.collectives.algorithms import cycle_search
from cluster_sim.collectives.algorithms.cycle_search import BoxCycles, Grid
from cluster_sim.collectives.algorithms.neuron_runtime import is_trainium
from cluster_sim.collectives.group import Box, Group, ordered_box
from topologies.arrays import IntArray
from topologies.files import kept_files
from topologies.files.reading import csv_rows
from topologies.shapes.basic import FullMesh

LARGEST_UNIT = 4  # largest ratio of the rates of two axes; larger ones are treated as this one
THREE_CABLES = 3
"""Cables of a chip of which a cycle uses two, and no second cycle can use the third."""
SEARCH_LIMIT = 4096
"""Chips of the largest box that is searched for cycles; a larger one gets a snake."""


@dataclass(frozen=True, eq=False)
class Cycles:
    """Directed cycles through the same ranks."""

    order: IntArray  # (cycles, ranks): ranks in the order of visiting
    weight: IntArray  # (cycles,): by which the payload is divided among the cycles

    @property
    def both_ways(self) -> Cycles:
        """Each cycle followed by its reverse; two ranks or fewer have only one way round."""
        if self.order.shape[1] <= 2:
            return self
        turned = np.stack([self.order, self.order[:, ::-1]], axis=1)
        order = turned.reshape(-1, self.order.shape[1])
        return cycles(order, np.repeat(self.weight, 2))


def cycles(order: IntArray, weight: IntArray | int = 1) -> Cycles:
    """Make cycles of these orders; a single weight applies to each of them."""
    orders = np.atleast_2d(np.asarray(order, np.int32))
    weights = np.broadcast_to(np.asarray(weight, np.int64), len(orders)).copy()
    return Cycles(orders, weights)


def one_ring(group: Group) -> Cycles:
    """Return the ring of a group: of the cycles of its box, that with fewest steps on slow axes."""
    filled = ordered_box(group)
    if filled is None or len(filled.sizes) <= 1:  # on a line its own order is the ring
        return _with_cores(np.arange(len(group.chips))[None, :], group)
    orders = _hamiltonian(filled).orders
    steps = _slow_steps(orders, filled)
    return _with_cores(filled.chip_at[orders[[int(np.argmin(steps))]]], group)


def all_rings(group: Group) -> Cycles:
    """Return directed cycles that together use the fabric of a group as fully as they can.

    For a group in an order of its own, these are the ring in their order, and its reverse. The
    Neuron runtime runs cycles that share no cable, each both ways, so a chip with three cables to
    others of its group has one: measured with nccom-test on 16 ranks of Trn1 (8 chips), which are
    as fast as 8 ranks (4 chips) and half as fast as 32.
    """
    if isinstance(group.cluster.shape, FullMesh) and len(group.domains) == 1:
        return _with_cores(_strides(len(group.chips)), group)
    filled = ordered_box(group)
    if filled is None:
        return one_ring(group).both_ways
    if is_trainium(group.cluster) and _has_one_cycle(filled):
        return one_ring(group).both_ways
    best = _hamiltonian(filled)
    orders = _with_cores(filled.chip_at[best.orders], group)
    return orders.both_ways if best.both_ways else orders


def _with_cores(order: IntArray, group: Group) -> Cycles:
    """Turn orders of chips into orders of ranks: the ranks of a chip follow one another."""
    ranks_per_chip = group.ranks_per_chip
    ranks = order[..., None] * ranks_per_chip + np.arange(ranks_per_chip)
    return cycles(ranks.reshape(len(order), -1))


def _has_one_cycle(filled: Box) -> bool:
    """Return whether each chip has three equal cables: one along a side of two chips, else two."""
    cables = sum(1 if size == 2 else 2 for size in filled.sizes)
    return cables == THREE_CABLES and len(set(filled.rates)) == 1


def _strides(chips: int) -> IntArray:
    """Return cycles of a full mesh: every stride that has no factor in common with the size."""
    strides = [s for s in range(1, max(2, chips)) if math.gcd(s, chips) == 1]
    return np.outer(strides, np.arange(chips)) % chips


def _slow_steps(orders: IntArray, box: Box) -> IntArray:
    """Count the steps of each cycle along axes that are slower than the fastest."""
    place = np.stack(np.unravel_index(orders, box.sizes))
    moved = place != np.roll(place, -1, axis=-1)
    slow = np.array([rate < max(box.rates) for rate in box.rates])
    return np.asarray((moved & slow[:, None, None]).sum(axis=(0, 2)))


def _hamiltonian(box: Box) -> BoxCycles:
    return hamiltonian_cycles(box.sizes, box.wraps, rate_units(box.rates))


def rate_units(rates: Sequence[int]) -> tuple[int, ...]:
    """Round the rates of the axes to small whole multiples of the slowest.

    The search divides the cables in whole units, so rates such as 129 and 64 GB/s become 2 and 1:
    their cycles use the fabric almost as well, where for the exact ratio it would find none.
    """
    slowest = max(1, min(rates, default=1))
    units = [min(LARGEST_UNIT, max(1, round(rate / slowest))) for rate in rates]
    divisor = max(1, math.gcd(*units))
    return tuple(unit // divisor for unit in units)


@functools.lru_cache(maxsize=256)
def hamiltonian_cycles(
    sizes: tuple[int, ...], wraps: tuple[bool, ...], units: tuple[int, ...]
) -> BoxCycles:
    """Return cycles of a box whose sides are all longer than 1, as row-major numbers of places."""
    shipped = _shipped().get((sizes, wraps, units))
    if shipped is not None:
        return shipped
    lines = any(not wrap and size > 2 for size, wrap in zip(sizes, wraps, strict=True))
    if lines or len(sizes) < 2 or math.prod(sizes) > SEARCH_LIMIT or max(units) > LARGEST_UNIT:
        return BoxCycles(snake(sizes)[None, :], both_ways=True)
    return _searched(Grid(sizes, wraps, units))


def _searched(grid: Grid) -> BoxCycles:
    """Search for cycles, and keep them for later runs: some boxes take several seconds."""
    # A change of the search makes the cycles that an earlier version found out of date, and so may
    # other random numbers of numpy.
    source = Path(cycle_search.__file__).read_bytes()
    name = f"cycles-{kept_files.digest(repr(grid), source, np.__version__)}.json"
    kept = kept_files.read_json(
        name, lambda document: BoxCycles(np.array(document[0], np.int32), bool(document[1]))
    )
    if kept is not None:
        return kept
    cycles = cycle_search.find(grid, np.random.default_rng(0))
    kept_files.keep(name, json.dumps([cycles.orders.tolist(), cycles.both_ways]).encode())
    return cycles


def snake(sizes: tuple[int, ...]) -> IntArray:
    """Return a cycle back and forth along rows, of neighbours if the first side is even."""
    order = np.arange(1)
    for side in sizes[::-1]:
        # The order inside a layer, forwards in even layers and backwards in odd ones.
        layers = np.tile(np.stack([order, order[::-1]]), ((side + 1) // 2, 1))[:side]
        order = (layers + np.arange(side)[:, None] * len(order)).ravel()
    return order


@functools.cache
def _shipped() -> dict[tuple[tuple[int, ...], tuple[bool, ...], tuple[int, ...]], BoxCycles]:
    table = Path(__file__).parent / "data/cycles.csv"
    orders: dict[tuple[str, str, str, str], list[list[int]]] = {}
    _, rows = csv_rows(table.read_text("utf-8"), "data/cycles.csv")
    for _, row in rows:
        key = (row["sizes"], row["wraps"], row["units"], row["both_ways"])
        orders.setdefault(key, []).append([int(chip) for chip in row["order"].split()])

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split("x"))

    return {
        (numbers(sizes), tuple(map(bool, numbers(wraps))), numbers(units)): BoxCycles(
            np.array(listed, np.int32), both_ways=both == "1"
        )
        for (sizes, wraps, units, both), listed in orders.items()
    }
