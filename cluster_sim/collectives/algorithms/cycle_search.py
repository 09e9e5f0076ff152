"""Offline search for Hamiltonian cycles that together use the cables of a grid or torus box.

``python -m cluster_sim.collectives.algorithms.cycle_search FILE.csv`` rebuilds the shipped table.
A start is made from the axes themselves (every step along an axis is a permutation of the chips),
then two permutations exchange their arcs along an alternating closed trail, which keeps both
permutations, as long as that does not raise the number of separate cycles.
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from topologies.arrays import IntArray

Colours = list[list[int]]

BLOCK = 1000
"""Random moves drawn at once."""


@dataclass(frozen=True)
class Grid:
    """A box of chips: along each axis a size, whether it wraps, and the units of one cable."""

    sizes: tuple[int, ...]
    wraps: tuple[bool, ...]
    units: tuple[int, ...]

    @property
    def chips(self) -> int:
        """Chips in the box."""
        return int(np.prod(self.sizes))


def steps(grid: Grid) -> Colours:
    """All arcs of a box as permutations, one list a unit of capacity: ``next = list[chip]``.

    An axis that does not wrap can only be a line of two here.
    """
    chips = np.arange(grid.chips).reshape(grid.sizes)
    colours: Colours = []
    for axis, (size, wrap, units) in enumerate(
        zip(grid.sizes, grid.wraps, grid.units, strict=True)
    ):
        if size == 1:
            continue
        ways = (-1, 1) if wrap else (1,)
        for way in ways:
            colours += [np.roll(chips, way, axis).ravel().tolist() for _ in range(units)]
    return colours


def cycles_of(permutation: list[int]) -> int:
    """Number of separate cycles of a permutation."""
    seen = [False] * len(permutation)
    count = 0
    for start in range(len(permutation)):
        if not seen[start]:
            count += 1
            at = start
            while not seen[at]:
                seen[at] = True
                at = permutation[at]
    return count


def exchange(one: list[int], other: list[int], start: int) -> None:
    """Exchange the arcs of two permutations along the alternating closed trail through a chip."""
    before = {target: chip for chip, target in enumerate(one)}
    chip, last = start, one[start]
    while True:
        one[chip], other[chip] = other[chip], one[chip]
        if one[chip] == last:
            return
        chip = before[one[chip]]


def _draws(
    rng: np.random.Generator, limits: list[int], moves: int
) -> Iterator[tuple[list[int], float]]:
    """Draw random moves: numbers below their limits, and one between 0 and 1."""
    for _ in range(0, moves, BLOCK):
        picks = rng.integers(0, limits, (BLOCK, len(limits))).tolist()
        yield from zip(picks, rng.random(BLOCK).tolist(), strict=True)


def search(
    grid: Grid, wanted: int, rng: np.random.Generator, moves: int = 200_000
) -> Colours | None:
    """Find ``wanted`` directed Hamiltonian cycles within the capacity of the box, or None."""
    colours = steps(grid)
    if wanted > len(colours):
        return None
    colours = sorted(colours, key=cycles_of)
    counts = [cycles_of(colour) for colour in colours]
    limits = [len(colours), len(colours), grid.chips]
    for (a, b, chip), warm in _draws(rng, limits, moves):
        if all(count == 1 for count in counts[:wanted]):
            return colours[:wanted]
        if a == b or colours[a][chip] == colours[b][chip]:
            continue
        one, other = list(colours[a]), list(colours[b])
        exchange(one, other, chip)
        new = cycles_of(one), cycles_of(other)
        gain = sum(counts[k] - count for k, count in zip((a, b), new, strict=True) if k < wanted)
        if gain >= 0 or warm < 0.02 * 2.0**gain:
            colours[a], colours[b] = one, other
            counts[a], counts[b] = new
    return None


def undirected(grid: Grid, rng: np.random.Generator, moves: int = 400_000) -> Colours | None:
    """Find Hamiltonian cycles to be run both ways that use all cables, or None."""
    factors = _factors(grid)
    if factors is None:
        return None
    counts = [_rings(factor) for factor in factors]
    limits = [len(factors), len(factors), grid.chips, 2, 2]
    for (a, b, p, side, way), warm in _draws(rng, limits, moves):
        if all(count == 1 for count in counts):
            return [_order(factor) for factor in factors]
        square = None if a == b else _square(factors[a], factors[b], p, side, way)
        if square is None:
            continue
        one, other = [list(row) for row in factors[a]], [list(row) for row in factors[b]]
        _turn(one, other, square)
        new = _rings(one), _rings(other)
        gain = counts[a] + counts[b] - sum(new)
        if gain >= 0 or warm < 0.02 * 2.0**gain:
            factors[a], factors[b] = one, other
            counts[a], counts[b] = new
    return None


Factor = list[list[int]]
"""Two neighbours of every chip."""


def _factors(grid: Grid) -> list[Factor] | None:
    chips = np.arange(grid.chips).reshape(grid.sizes)
    factors: list[Factor] = []
    for axis, (size, wrap, units) in enumerate(
        zip(grid.sizes, grid.wraps, grid.units, strict=True)
    ):
        if size == 1:
            continue
        up = np.roll(chips, -1, axis).ravel().tolist()
        down = np.roll(chips, 1, axis).ravel().tolist()
        if not wrap and units % 2:
            return None
        both = [list(pair) for pair in zip(up, down, strict=True)]
        factors += [[list(row) for row in both] for _ in range(units if wrap else units // 2)]
    return factors


def _rings(factor: Factor) -> int:
    seen = [False] * len(factor)
    count = 0
    for start in range(len(factor)):
        if not seen[start]:
            count += 1
            before, at = -1, start
            while not seen[at]:
                seen[at] = True
                one, other = factor[at]
                before, at = at, other if one == before else one
    return count


def _order(factor: Factor) -> list[int]:
    following = [0] * len(factor)
    before, at = -1, 0
    for _ in range(len(factor)):
        one, other = factor[at]
        following[at] = other if one == before else one
        before, at = at, following[at]
    return following


def _square(
    one: Factor, other: Factor, p: int, side: int, way: int
) -> tuple[int, int, int, int] | None:
    """A move of four chips: p-q in one cycle, q-s in the other, s-r in one, r-p in the other."""
    q = one[p][side]
    r = other[p][way]
    if q == r:
        return None
    for s in other[q]:
        if s not in (p, r) and s in one[r]:
            return p, q, s, r
    return None


def _turn(one: Factor, other: Factor, square: tuple[int, int, int, int]) -> None:
    p, q, s, r = square
    for factor, (a, b), (c, d), targets in (
        (one, (p, q), (s, r), ((q, s), (r, p))),
        (other, (q, s), (r, p), ((p, q), (s, r))),
    ):
        for x, y in ((a, b), (c, d)):
            factor[x].remove(y)
            factor[y].remove(x)
        for x, y in targets:
            factor[x].append(y)
            factor[y].append(x)


def rank_order(following: list[int]) -> IntArray:
    """Chips in the order in which a cycle visits them, from chip 0."""
    order = [0]
    while (at := following[order[-1]]) != 0:
        order.append(at)
    return np.array(order, np.int32)


@dataclass(frozen=True)
class Found:
    """Cycles of a box: orders of chips, and whether each is run both ways."""

    orders: IntArray
    both_ways: bool


def most(grid: Grid) -> int:
    """Directed cycles that the box can carry at most, by degree and by the cut across each axis."""
    degree = len(steps(grid))
    cuts = [
        units * (2 if wrap else 1) * grid.chips // size
        for size, wrap, units in zip(grid.sizes, grid.wraps, grid.units, strict=True)
        if size > 1
    ]
    return min([degree, *cuts])


def find(grid: Grid, rng: np.random.Generator) -> Found:
    """Find the cycles that carry the most; an odd number of units is doubled where that helps.

    With an odd number of cycles in a bipartite box the signs of the permutations can forbid what
    the capacities allow; halving each cycle's share lifts that.
    """
    doubled = Grid(grid.sizes, grid.wraps, tuple(2 * units for units in grid.units))
    for graph in (grid, doubled):
        wanted = most(graph)
        if wanted == len(steps(graph)):
            paired = undirected(graph, rng)
            if paired is not None:
                return Found(np.array([rank_order(colour) for colour in paired]), True)
        single = search(graph, wanted, rng)
        if single is not None:
            return Found(np.array([rank_order(colour) for colour in single]), False)
    for wanted in range(most(grid) - 1, 0, -1):
        single = search(grid, wanted, rng)
        if single is not None:
            return Found(np.array([rank_order(colour) for colour in single]), False)
    raise ValueError(f"no Hamiltonian cycle found in {grid}")


def shipped_boxes() -> list[Grid]:
    """All boxes of sides 1, 2 and 4 in a 4x4x4 torus, of one rate or with half of it on an axis."""
    boxes = []
    for sizes, rates in itertools.product(
        itertools.product((1, 2, 4), repeat=3), ((1, 2, 2), (1, 1, 1))
    ):
        used = [units for size, units in zip(sizes, rates, strict=True) if size > 1]
        kept = tuple(size for size in sizes if size > 1)
        if kept:
            units = tuple(rate // min(used) for rate in used)
            boxes.append(Grid(kept, tuple(size == 4 for size in kept), units))
    return sorted(set(boxes), key=lambda box: (box.chips, box.sizes, box.units))


def main(path: str) -> None:
    """Search all boxes and write the table."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["sizes", "wraps", "units", "both_ways", "order"])
        for box in shipped_boxes():
            cycles = find(box, np.random.default_rng(0))
            for order in cycles.orders.tolist():
                writer.writerow(
                    [
                        "x".join(map(str, box.sizes)),
                        "x".join(str(int(wrap)) for wrap in box.wraps),
                        "x".join(map(str, box.units)),
                        int(cycles.both_ways),
                        " ".join(map(str, order)),
                    ]
                )


if __name__ == "__main__":
    main(sys.argv[1])
