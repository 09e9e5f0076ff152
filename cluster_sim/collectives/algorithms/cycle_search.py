"""Randomised search for Hamiltonian cycles that together use the cables of a box of chips.

``python -m tools.ship_cycles FILE.csv`` rebuilds the shipped table.
The search starts from the axes themselves: a step along an axis is a permutation of the chips.
Then two permutations exchange their arcs along an alternating closed trail, which leaves both of
them permutations. A move that does not raise the number of separate cycles is kept, and now and
then one that does, until each permutation is a single cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from topologies.arrays import IntArray

Colours = list[list[int]]
"""Permutations of the chips, each as the list of the next chip of every chip. Together they colour
the arcs of the box, so that no arc is in two of them more often than its capacity allows."""

BLOCK = 1000  # random moves drawn at once
COURAGE = 0.02
"""Probability of a move without gain in cycles; it halves with each cycle that a move adds."""


@dataclass(frozen=True)
class Grid:
    """A box of chips: for each axis its size, whether it wraps, and the capacity of a cable.

    Capacities are small whole units, so that axes may differ in rate.
    """

    sizes: tuple[int, ...]
    wraps: tuple[bool, ...]
    units: tuple[int, ...]

    @property
    def chips(self) -> int:
        """Number of chips in the box."""
        return int(np.prod(self.sizes))


def steps(grid: Grid) -> Colours:
    """Return all arcs as permutations, one for each axis, direction and unit of capacity."""
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
    """Count the separate cycles of a permutation."""
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


def exchange(first: list[int], second: list[int], start: int) -> None:
    """Exchange the arcs of two permutations along the alternating closed trail through a chip.

    After a chip's arcs are exchanged, two arcs of the first permutation lead to the same chip; the
    trail goes on at the chip that the older of these leaves, until none is left over.
    """
    previous = {target: chip for chip, target in enumerate(first)}
    chip, last = start, first[start]
    while True:
        first[chip], second[chip] = second[chip], first[chip]
        if first[chip] == last:
            return
        chip = previous[first[chip]]


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
    for (a, b, chip), luck in _draws(rng, limits, moves):
        if all(count == 1 for count in counts[:wanted]):
            return colours[:wanted]
        if a == b or colours[a][chip] == colours[b][chip]:
            continue
        first, second = list(colours[a]), list(colours[b])
        exchange(first, second, chip)
        new = cycles_of(first), cycles_of(second)
        gain = sum(counts[k] - count for k, count in zip((a, b), new, strict=True) if k < wanted)
        if gain >= 0 or luck < COURAGE * 2.0**gain:
            colours[a], colours[b] = first, second
            counts[a], counts[b] = new
    return None


def undirected(grid: Grid, rng: np.random.Generator, moves: int = 400_000) -> Colours | None:
    """Find Hamiltonian cycles that use all cables when each is run both ways, or None."""
    factors = _factors(grid)
    if factors is None:
        return None
    counts = [_rings(factor) for factor in factors]
    limits = [len(factors), len(factors), grid.chips, 2, 2]
    for (a, b, p, side, way), luck in _draws(rng, limits, moves):
        if all(count == 1 for count in counts):
            return [_directed(factor) for factor in factors]
        square = None if a == b else _square(factors[a], factors[b], p, side, way)
        if square is None:
            continue
        first, second = [list(row) for row in factors[a]], [list(row) for row in factors[b]]
        _exchange_square(first, second, square)
        new = _rings(first), _rings(second)
        gain = counts[a] + counts[b] - sum(new)
        if gain >= 0 or luck < COURAGE * 2.0**gain:
            factors[a], factors[b] = first, second
            counts[a], counts[b] = new
    return None


Factor = list[list[int]]
"""Undirected rings that together pass through every chip once: the two neighbours of each."""


def _factors(grid: Grid) -> list[Factor] | None:
    """Return the cables as factors; None where a line has an odd number: a ring takes two."""
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
            previous, at = -1, start
            while not seen[at]:
                seen[at] = True
                left, right = factor[at]
                previous, at = at, right if left == previous else left
    return count


def _directed(factor: Factor) -> list[int]:
    """Return the next chip of every chip along the single ring of a factor, in one direction."""
    following = [0] * len(factor)
    previous, at = -1, 0
    for _ in range(len(factor)):
        left, right = factor[at]
        following[at] = right if left == previous else left
        previous, at = at, following[at]
    return following


def _square(
    first: Factor, second: Factor, p: int, side: int, way: int
) -> tuple[int, int, int, int] | None:
    """Find chips whose cables p-q and s-r are in one factor, q-s and r-p in the other."""
    q = first[p][side]
    r = second[p][way]
    if q == r:
        return None
    for s in second[q]:
        if s not in (p, r) and s in first[r]:
            return p, q, s, r
    return None


def _exchange_square(first: Factor, second: Factor, square: tuple[int, int, int, int]) -> None:
    """Let two factors exchange the opposite cables of a square; every chip keeps two neighbours."""
    p, q, s, r = square
    for factor, (a, b), (c, d), targets in (
        (first, (p, q), (s, r), ((q, s), (r, p))),
        (second, (q, s), (r, p), ((p, q), (s, r))),
    ):
        for x, y in ((a, b), (c, d)):
            factor[x].remove(y)
            factor[y].remove(x)
        for x, y in targets:
            factor[x].append(y)
            factor[y].append(x)


def rank_order(following: list[int]) -> IntArray:
    """Return the chips in the order in which a cycle visits them, from chip 0."""
    order = [0]
    while (at := following[order[-1]]) != 0:
        order.append(at)
    return np.array(order, np.int32)


@dataclass(frozen=True)
class BoxCycles:
    """Cycles of a box: orders of chips (cycles, chips), and whether each is run both ways."""

    orders: IntArray
    both_ways: bool


def most(grid: Grid) -> int:
    """Bound the directed cycles that a box can carry, by degree and the cut across each axis."""
    degree = len(steps(grid))
    cuts = [
        units * (2 if wrap else 1) * grid.chips // size
        for size, wrap, units in zip(grid.sizes, grid.wraps, grid.units, strict=True)
        if size > 1
    ]
    return min([degree, *cuts])


def find(grid: Grid, rng: np.random.Generator) -> BoxCycles:
    """Find the cycles that carry the most; an odd number of units is doubled where that helps.

    With an odd number of cycles in a bipartite box the signs of the permutations can rule out what
    the capacities allow; twice as many cycles with half the share each are not ruled out.
    """
    doubled = Grid(grid.sizes, grid.wraps, tuple(2 * units for units in grid.units))
    for graph in (grid, doubled):
        wanted = most(graph)
        if wanted == len(steps(graph)):
            paired = undirected(graph, rng)
            if paired is not None:
                return BoxCycles(np.array([rank_order(colour) for colour in paired]), True)
        single = search(graph, wanted, rng)
        if single is not None:
            return BoxCycles(np.array([rank_order(colour) for colour in single]), False)
    for wanted in range(most(grid) - 1, 0, -1):
        single = search(grid, wanted, rng)
        if single is not None:
            return BoxCycles(np.array([rank_order(colour) for colour in single]), False)
    raise ValueError(f"no Hamiltonian cycle found in {grid}")
