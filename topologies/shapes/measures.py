"""Measures of scale-up shapes in closed form, from those of one line of chips a dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topologies.shapes.basic import Axis, Clos, FullMesh, Shape, Switch, Tier, Tiered, Torus


@dataclass(frozen=True)
class Line:
    """Measures of one line of chips along a dimension."""

    name: str
    size: int
    # farthest, mean: most hops between two chips, and the mean over all pairs, a chip and itself
    # included
    farthest: int
    mean: float
    # Rate from the larger half of the line to the smaller one, one direction [B/s]
    cut_bytes_per_s: int
    # Number of pairs of chips whose traffic crosses the busiest directed link, ties split evenly
    busiest: float
    link_bytes_per_s: int  # rate of the busiest link [B/s]
    links_per_chip: float


def lines(shape: Torus | FullMesh | Switch | Tiered) -> list[Line]:
    """Return the measures of a line along each dimension, slowest first."""
    if isinstance(shape, Torus):
        return [_ring(axis) if axis.wrap else _grid(axis) for axis in shape.axes]
    if isinstance(shape, Tiered):
        return [_line(tier) for tier in shape.tiers]
    if isinstance(shape, Switch):
        return [
            _switched(Tier("switch", shape.size, shape.bandwidth_bytes_per_s, shape.latency_ps, 1))
        ]
    total = shape.bandwidth_bytes_per_s * max(1, shape.size - 1)
    return [_direct(Tier("mesh", shape.size, total, shape.latency_ps))]


def _line(tier: Tier) -> Line:
    if tier.ring:
        return _ring(Axis(tier.name, tier.size, tier.link_bytes_per_s, tier.latency_ps))
    return _switched(tier) if tier.switches else _direct(tier)


def _ring(axis: Axis) -> Line:
    n, rate = axis.size, axis.bandwidth_bytes_per_s
    mean = n / 4 if n % 2 == 0 else (n * n - 1) / (4 * n)
    joined = n > 1
    return Line(axis.name, n, n // 2, mean, 2 * rate * joined, n * mean / 2, rate, 2.0 * joined)


def _grid(axis: Axis) -> Line:
    n, rate = axis.size, axis.bandwidth_bytes_per_s
    middle = (n // 2) * (n - n // 2)
    mean = (n * n - 1) / (3 * n)
    return Line(axis.name, n, n - 1, mean, rate * (n > 1), middle, rate, 2 * (n - 1) / n)


def _direct(tier: Tier) -> Line:
    n, rate = tier.size, tier.link_bytes_per_s
    cut = (n // 2) * (n - n // 2) * rate
    return Line(tier.name, n, int(n > 1), (n - 1) / n, cut, float(n > 1), rate, n - 1)


def _switched(tier: Tier) -> Line:
    n, rate = tier.size, tier.bandwidth_bytes_per_s
    far = 2 * (n > 1)
    cut = (n // 2) * rate
    return Line(tier.name, n, far, 2 * (n - 1) / n, cut, n - 1, rate, float(tier.fan))


def diameter_hops(shape: Shape) -> int:
    """Return the largest number of links on a route between two chips."""
    if isinstance(shape, Clos):
        return 2 * shape.layers if shape.size > 1 else 0
    return sum(line.farthest for line in lines(shape))


def mean_hops(shape: Shape) -> float:
    """Return the mean number of links between two different chips; 0 for a single chip."""
    if shape.chips == 1:
        return 0.0
    if isinstance(shape, Clos):
        return _clos_mean_hops(shape)
    with_itself = sum(line.mean for line in lines(shape))
    return with_itself * shape.chips / (shape.chips - 1)


def _clos_mean_hops(shape: Clos) -> float:
    """Return the mean of 2 hops in a leaf, 4 in a pod and 6 beyond, where the last are not full."""

    def pairs_within(group: int) -> int:
        full, rest = divmod(shape.size, group)
        return full * group * (group - 1) + rest * (rest - 1)

    within = [shape.chips_per_leaf, shape.chips_per_leaf * shape.leaves_per_pod, shape.size]
    pairs = [pairs_within(group) for group in within]
    hops = 2 * pairs[0] + 4 * (pairs[1] - pairs[0]) + 6 * (pairs[2] - pairs[1])
    return hops / pairs[2]


def bisections(shape: Shape) -> dict[str, int]:
    """Return the rate through a cut across the middle of each dimension, one direction [B/s]."""
    if isinstance(shape, Clos):
        return {"Clos": _clos_bisection(shape)}
    return {
        line.name: line.cut_bytes_per_s * (shape.chips // line.size)
        for line in lines(shape)
        if line.size > 1
    }


def bisection(shape: Shape) -> int:
    """Return the smallest cut into halves that differ by at most one chip, one direction [B/s]."""
    # A dimension of odd size is cut before the middle chip in one half of its lines and behind it
    # in the other, which cuts the other dimensions, too. Exact for tori, meshes, switches and tiers
    # of even sizes; for odd tiers and a Clos that is not full, the smallest of these straight cuts.
    if isinstance(shape, Clos):
        return _clos_bisection(shape)
    return _smallest_cut([line for line in lines(shape) if line.size > 1])


def _smallest_cut(crossed: Sequence[Line]) -> int:
    cuts = []
    for number, line in enumerate(crossed):
        rest = [*crossed[:number], *crossed[number + 1 :]]
        others = 1
        for other in rest:
            others *= other.size
        odd = _smallest_cut(rest) if line.size % 2 else 0
        cuts.append(line.cut_bytes_per_s * others + odd)
    return min(cuts, default=0)


def _clos_bisection(shape: Clos) -> int:
    """Return the rate of half of the chips' links or half of the leaves' uplinks, the smaller."""
    links = shape.size // 2
    if shape.layers > 1:
        links = min(links, shape.switches[0] * shape.up // 2)
    return links * shape.bandwidth_bytes_per_s


def all_to_all_bytes_per_s(shape: Shape) -> float | None:
    """Return a chip's rate of a uniform all-to-all [B/s]; None for a single chip."""
    if shape.chips == 1:
        return None
    if isinstance(shape, Clos):
        rate = float(shape.bandwidth_bytes_per_s)
        if shape.layers == 1:
            return rate
        leaf = shape.chips_per_leaf
        return min(rate, rate * shape.up * (shape.size - 1) / (leaf * (shape.size - leaf)))
    return min(
        line.link_bytes_per_s * (shape.chips - 1) * line.size / (shape.chips * line.busiest)
        for line in lines(shape)
        if line.size > 1
    )


def links_per_chip(shape: Shape) -> float:
    """Return the mean number of directed links that leave a chip."""
    if isinstance(shape, Clos | Switch):
        return 1.0
    return float(sum(line.links_per_chip for line in lines(shape)))


def scale_up_bytes_per_s(shape: Shape) -> int:
    """Return the mean rate of a chip over all its links, one direction [B/s]."""
    if isinstance(shape, Clos | Switch):
        return shape.bandwidth_bytes_per_s
    if isinstance(shape, Tiered):
        return sum(tier.bandwidth_bytes_per_s for tier in shape.tiers if tier.size > 1)
    return round(sum(line.links_per_chip * line.link_bytes_per_s for line in lines(shape)))


def switch_hops(shape: Shape) -> dict[str, int]:
    """Count switches and forwarding chips between the farthest of each neighbourhood."""
    if isinstance(shape, Clos):
        names = ("leaf", "pod", "core")[: shape.layers]
        return {name: 2 * number + 1 for number, name in enumerate(names)}
    if isinstance(shape, Switch):
        return {"switch": 1}
    if not isinstance(shape, Tiered) or not shape.switches:
        return {}
    width = [line.farthest for line in lines(shape)]
    outer = next(number for number, planes in enumerate(shape.planes) if planes)
    within = {
        tier.name: sum(width[number:]) - 1 for number, tier in enumerate(shape.tiers[: outer + 1])
    }
    return {"plane": 1} | dict(reversed(within.items()))
