"""Cycles through all ranks of a group, along which ring collectives run, and the search for them.

Boxes of a 4x4x4 torus are in a shipped table (``python -m tools.ship_cycles FILE.csv``). The search
starts from the axes, whose steps are permutations of the chips. Two permutations exchange arcs
along an alternating closed trail; a move that does not raise the number of cycles is kept, and now
and then one that does, until each permutation is a single cycle.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, product
from pathlib import Path
from typing import TypeVar

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import is_trainium
from cluster_sim.collectives.group import Box, Group, ordered_box
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.schedule.table import PS_PER_S
from topologies.shapes.basic import FullMesh
from topologies.support.arrays import IntArray
from topologies.support.files import kept_files
from topologies.support.files.reading import csv_rows

Colours = list[list[int]]
"""Permutations of the chips, each as the list of the next chip of every chip. Together they colour
the arcs of the box, so that no arc is in two of them more often than its capacity allows."""
Part = TypeVar("Part")

BLOCK = 1000  # random moves drawn at once
COURAGE = 0.02
"""Probability of a move without gain in cycles; it halves with each cycle that a move adds."""


@dataclass(frozen=True)
class Grid:
    """A box of chips: for each axis size, wrap, and a cable's capacity in small whole units."""

    sizes: tuple[int, ...]
    wraps: tuple[bool, ...]
    units: tuple[int, ...]

    @property
    def chips(self) -> int:
        """Number of chips in the box."""
        return int(np.prod(self.sizes))


def arcs(grid: Grid) -> list[Colours]:
    """Return each axis's arcs as permutations, one for each direction and unit of capacity."""
    chips = np.arange(grid.chips).reshape(grid.sizes)
    return [
        [
            np.roll(chips, way, axis).ravel().tolist()
            for way in ((-1, 1) if wrap else (1,))
            for _ in range(units)
        ]
        for axis, (size, wrap, units) in enumerate(
            zip(grid.sizes, grid.wraps, grid.units, strict=True)
        )
        if size > 1
    ]


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


def exchange(first: list[int], second: list[int], start: int) -> Colours | None:
    """Exchange the arcs of two permutations along the alternating closed trail through a chip."""
    if first[start] == second[start]:
        return None
    first, second = list(first), list(second)
    previous = {target: chip for chip, target in enumerate(first)}
    chip, last = start, first[start]
    while True:
        first[chip], second[chip] = second[chip], first[chip]
        # Now two arcs of the first permutation lead to one chip: go on where the older of them
        # leaves.
        if first[chip] == last:
            return [first, second]
        chip = previous[first[chip]]


def _merged(
    parts: list[Part],
    wanted: int,
    limits: Sequence[int],
    moves: int,
    rng: np.random.Generator,
    exchanged: Callable[..., list[Part] | None],
    count: Callable[[Part], int],
) -> list[Part] | None:
    """Let parts exchange arcs at random until each of the first ``wanted`` is one cycle."""
    counts = [count(part) for part in parts]
    # A move draws two parts, and numbers below ``limits`` that say where they exchange.
    limits = [len(parts), len(parts), *limits]
    for _ in range(0, moves, BLOCK):
        picks = rng.integers(0, limits, (BLOCK, len(limits))).tolist()
        for (a, b, *where), luck in zip(picks, rng.random(BLOCK).tolist(), strict=True):
            if all(cycles == 1 for cycles in counts[:wanted]):
                return parts[:wanted]
            pair = None if a == b else exchanged(parts[a], parts[b], *where)
            if pair is None:
                continue
            new = [count(part) for part in pair]
            gain = sum(counts[k] - now for k, now in zip((a, b), new, strict=True) if k < wanted)
            if gain >= 0 or luck < COURAGE * 2.0**gain:
                parts[a], parts[b] = pair
                counts[a], counts[b] = new
    return None


def search(grid: Grid, wanted: int, rng: np.random.Generator) -> Colours | None:
    """Find ``wanted`` directed Hamiltonian cycles within the capacity of the box, or None."""
    colours = sorted(chain.from_iterable(arcs(grid)), key=cycles_of)
    if wanted > len(colours):
        return None
    return _merged(colours, wanted, [grid.chips], 200_000, rng, exchange, cycles_of)


def undirected(grid: Grid, rng: np.random.Generator) -> Colours | None:
    """Find Hamiltonian cycles that use all cables when each is run both ways, or None."""
    factors = _factors(grid)
    if factors is None:
        return None
    whole, limits = len(factors), [grid.chips, 2, 2]
    rings = _merged(
        factors, whole, limits, 400_000, rng, _exchanged, lambda factor: _directed(factor)[1]
    )
    return None if rings is None else [_directed(factor)[0] for factor in rings]


Factor = list[list[int]]
"""Undirected rings that together pass through every chip once: the two neighbours of each."""


def _factors(grid: Grid) -> list[Factor] | None:
    """Return the cables as factors; None where a line has an odd number: a ring takes two."""
    factors: list[Factor] = []
    for along in arcs(grid):
        half = len(along) // 2
        if len(along) % 2:
            return None
        # Arcs up and arcs down; along two chips, where these are the same, two units of them.
        for up, down in zip(along[:half], along[half:], strict=True):
            factors.append([list(pair) for pair in zip(up, down, strict=True)])
    return factors


def _directed(factor: Factor) -> tuple[list[int], int]:
    """Return the next chip of every chip along the rings of a factor, and their number."""
    following, rings = [-1] * len(factor), 0
    for start in range(len(factor)):
        rings += following[start] < 0
        previous, at = -1, start
        while following[at] < 0:
            left, right = factor[at]
            following[at] = right if left == previous else left
            previous, at = at, following[at]
    return following, rings


def _exchanged(first: Factor, second: Factor, p: int, side: int, way: int) -> list[Factor] | None:
    """Exchange the opposite cables p-q and s-r of a square of two factors; None without one."""
    q, r = first[p][side], second[p][way]
    opposite = [s for s in second[q] if s not in (p, r) and s in first[r]] if q != r else []
    if not opposite:
        return None
    s = opposite[0]
    pair = [[list(row) for row in factor] for factor in (first, second)]
    one, other = ((p, q), (s, r)), ((q, s), (r, p))
    for factor, left, taken in zip(pair, (one, other), (other, one), strict=True):
        for x, y in left:
            factor[x].remove(y)
            factor[y].remove(x)
        for x, y in taken:
            factor[x].append(y)
            factor[y].append(x)
    return pair


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
    degree = sum(map(len, arcs(grid)))
    cuts = [
        units * (2 if wrap else 1) * grid.chips // size
        for size, wrap, units in zip(grid.sizes, grid.wraps, grid.units, strict=True)
        if size > 1
    ]
    return min([degree, *cuts])


def find(grid: Grid, rng: np.random.Generator) -> BoxCycles:
    """Find the cycles that carry the most; an odd number of units is doubled where that helps."""
    # With an odd number of cycles in a bipartite box the signs of the permutations can rule out
    # what the capacities allow; twice as many cycles with half the share each are not ruled out.
    doubled = Grid(grid.sizes, grid.wraps, tuple(2 * units for units in grid.units))
    tries = [(graph, most(graph)) for graph in (grid, doubled)]
    tries += [(grid, wanted) for wanted in range(most(grid) - 1, 0, -1)]
    for graph, wanted in tries:
        uses_all = wanted == sum(map(len, arcs(graph)))
        paired = undirected(graph, rng) if uses_all else None
        colours = search(graph, wanted, rng) if paired is None else paired
        if colours is not None:
            orders = np.array([rank_order(colour) for colour in colours])
            return BoxCycles(orders, both_ways=paired is not None)
    raise ValueError(f"no Hamiltonian cycle found in {grid}")


LARGEST_UNIT = 4  # largest ratio of the rates of two axes; larger ones are treated as this one
THREE_CABLES = 3
"""Cables of a chip of which a cycle uses two, and no second cycle can use the third."""
SEARCH_LIMIT = 4096
"""Chips of the largest box that is searched for cycles; a larger one gets a snake."""


def both_ways(rings: IntArray) -> IntArray:
    """Return each ring and its reverse; two ranks or fewer have only one way round."""
    ranks = rings.shape[1]
    return rings if ranks <= 2 else np.stack([rings, rings[:, ::-1]], axis=1).reshape(-1, ranks)


def one_ring(group: Group) -> IntArray:
    """Return a group's ring, int32 (1, ranks): the cycle of its box with fewest slow steps."""
    filled = ordered_box(group)
    if filled is None or len(filled.sizes) <= 1:  # on a line its own order is the ring
        return _with_cores(np.arange(len(group.chips))[None, :], group)
    orders = _hamiltonian(filled).orders
    place = np.stack(np.unravel_index(orders, filled.sizes))
    moved = place != np.roll(place, -1, axis=-1)
    slow = np.array([rate < max(filled.rates) for rate in filled.rates])
    steps = (moved & slow[:, None, None]).sum(axis=(0, 2))
    return _with_cores(filled.chip_at[orders[[int(np.argmin(steps))]]], group)


def all_rings(group: Group, share_bytes: int | None = None) -> IntArray:
    """Return rings, int32 (rings, ranks), that use a group's fabric most, one payload each."""
    # ``share_bytes``: payload for each message that a chip sends along one cycle [B]; by default
    # CC-Cores are taken to issue messages faster than links carry them.
    if isinstance(group.cluster.shape, FullMesh) and len(group.domains) == 1:
        return both_ways(_with_cores(mesh_rings(len(group.chips)), group))
    filled = ordered_box(group)
    if filled is None:
        return both_ways(one_ring(group))
    # A chip has one cable along a side of two chips, else two.
    cables = sum(1 if size == 2 else 2 for size in filled.sizes)
    # The Neuron runtime runs cycles that share no cable, each both ways: measured with nccom-test
    # on 16 ranks of Trn1 (8 chips), which are as fast as 8 ranks and half as fast as 32.
    has_one_cycle = cables == THREE_CABLES and len(set(filled.rates)) == 1
    if is_trainium(group.cluster) and has_one_cycle:
        return both_ways(one_ring(group))
    costs = communication_costs(group.cluster)
    issue_s = Fraction(0)
    if costs.issue_ps and share_bytes is not None:
        issued = max(1, share_bytes) * costs.cc_slots
        issue_s = Fraction(costs.slices * costs.issue_ps, issued * PS_PER_S)
    best = _hamiltonian(filled, issue_s)
    rings = _with_cores(filled.chip_at[best.orders], group)
    return both_ways(rings) if best.both_ways else rings


def _with_cores(order: IntArray, group: Group) -> IntArray:
    """Turn orders of chips into orders of ranks: the ranks of a chip follow one another."""
    ranks_per_chip = group.ranks_per_chip
    ranks = order[..., None] * ranks_per_chip + np.arange(ranks_per_chip)
    return np.asarray(ranks.reshape(len(order), -1), np.int32)


def _hamiltonian(box: Box, issue_s: Fraction = Fraction(0)) -> BoxCycles:
    units = rate_units(box.sizes, box.wraps, box.rates, issue_s)
    return hamiltonian_cycles(box.sizes, box.wraps, units)


@functools.lru_cache(maxsize=256)
def rate_units(
    sizes: tuple[int, ...],
    wraps: tuple[bool, ...],
    rates: tuple[int, ...],
    issue_s: Fraction = Fraction(0),
) -> tuple[int, ...]:
    """Choose small whole units for the rates of the axes, with which the cycles end first."""
    # ``issue_s``: time in which CC-Cores issue a byte of one cycle [s]; n cycles take n times that.
    # For the exact ratio of rates such as 129 and 64 GB/s the search would find no cycles. The
    # nearest multiple of the slowest rate may let cycles carry less than that of a slower axis.
    slowest = max(1, min(rates, default=1))
    near = [{rate // slowest, -(-rate // slowest)} for rate in rates]
    kept = [sorted({min(LARGEST_UNIT, max(1, unit)) for unit in each}) for each in near]

    def time_s(units: tuple[int, ...]) -> tuple[Fraction, Fraction]:
        """Time of a byte, by links or by the issue of messages; and by links alone."""
        cycles = most(Grid(sizes, wraps, units))
        wire_s = 1 / (cycles * min(map(Fraction, rates, units)))
        return max(wire_s, cycles * issue_s), wire_s

    choices = list(product(*kept))
    units = min(choices, key=time_s) if len(choices) > 1 else choices[0]
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
    return kept_files.made_once(
        "cycles",
        kept_files.digest(repr(grid), Path(__file__).read_bytes(), np.__version__),
        lambda: find(grid, np.random.default_rng(0)),
        lambda document: BoxCycles(np.array(document[0], np.int32), bool(document[1])),
        lambda cycles: [cycles.orders.tolist(), cycles.both_ways],
    )


def mesh_rings(chips: int) -> IntArray:
    """Return as many rings of chips that all have cables to each other as share no cable.

    They are Walecki's (1892): one chip stays, and a zigzag through the others, which stand in a
    circle, is turned by a place from ring to ring. All cables are used if their number is odd.

    >>> mesh_rings(5).tolist()
    [[4, 0, 1, 3, 2], [4, 1, 2, 0, 3]]
    """
    others = chips - 1
    if others < 2:
        return np.arange(chips)[None, :]
    place = np.arange(others)
    zigzag = np.where(place % 2, (place + 1) // 2, -(place // 2))
    turn = np.arange(others // 2)[:, None]
    return np.hstack([np.full_like(turn, others), (zigzag + turn) % others])


def snake(sizes: tuple[int, ...]) -> IntArray:
    """Return a cycle back and forth along rows, of neighbours if a side is even."""
    if not sizes:
        return np.arange(1)
    even = next((axis for axis, side in enumerate(sizes) if side % 2 == 0), 0)
    rest = (*sizes[:even], *sizes[even + 1 :])
    row = _back_and_forth(np.arange(1), rest[::-1])
    numbers = np.moveaxis(np.arange(math.prod(sizes)).reshape(sizes), even, 0).ravel()
    if sizes[even] % 2 or len(row) == 1:
        return np.asarray(numbers[_back_and_forth(row, sizes[even : even + 1])])
    # The first place of each row is left out on the way there, and leads back.
    back = np.arange(sizes[even])[::-1] * len(row) + row[0]
    there = _back_and_forth(row, sizes[even : even + 1]).reshape(-1, len(row))
    return np.asarray(numbers[np.append(there[there % len(row) != row[0]], back)])


def _back_and_forth(order: IntArray, sides: tuple[int, ...]) -> IntArray:
    """Repeat an order along further sides, forwards in even layers and backwards in odd ones."""
    for side in sides:
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
