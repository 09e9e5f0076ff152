"""Routes inside a domain: dimension order on tori and tiers, one hop on meshes, two on a switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topologies.arrays import BoolArray, IntArray
from topologies.errors import InputError
from topologies.shapes.basic import FullMesh, Shape, Switch, Torus
from topologies.shapes.clos import Clos
from topologies.shapes.clos_links import single_routes
from topologies.shapes.links import DOWN, UP, axis_links, coordinates, strides
from topologies.shapes.tiered import Tiered

ALTERNATE = 0
"""Tie rule: chips whose coordinates add up to an even number go up, the others down."""


@dataclass(frozen=True, eq=False)
class Routes:
    """The links that each pair's traffic crosses, in order.

    Attributes
    ----------
    ptr : int64 array (pairs + 1,)
        Links of pair k are ``link[ptr[k]:ptr[k + 1]]``.
    link : int32 array (hops,)
        Rows of :func:`topologies.shapes.links.domain_links`.
    """

    ptr: IntArray
    link: IntArray

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @property
    def hops(self) -> IntArray:
        """Links crossed by each pair, (pairs,)."""
        return np.diff(self.ptr)


def routes(
    shape: Shape,
    src: npt.ArrayLike,
    dst: npt.ArrayLike,
    *,
    axis_order: Sequence[int] | None = None,
    tie: int = ALTERNATE,
) -> Routes:
    """Route from each source chip to the destination beside it; none where both are one chip.

    On a torus and on tiers one axis after the other is corrected, in rings the shorter way
    round. Rule for ties at half the ring: sources whose coordinates add up to an even number go up,
    the others down, so that uniform traffic loads both ways alike; ``tie`` overrides it. On a Clos
    the destination's number chooses one of the equal paths; see also
    :func:`topologies.shapes.clos_links.split_routes`.

    Parameters
    ----------
    shape : Torus, FullMesh, Switch, Tiered or Clos
    src, dst : int array (pairs,)
        Local chip numbers.
    axis_order : sequence of int, optional
        Axes or tiers in the order of correction; by default the fastest (last) first, that is X,
        Y, Z on an UltraServer and sled, rack, cross-rack on Trn3.
    tie : {0, +1, -1}
        0 alternates, +1 always goes up, -1 always down.

    Returns
    -------
    Routes

    Examples
    --------
    >>> from topologies.shapes.basic import Axis
    >>> ring = Torus((Axis("X", 8, 10**9, 0),))
    >>> routes(ring, [0, 0, 0], [3, 7, 4]).hops.tolist()
    [3, 1, 4]
    """
    starts, ends = np.broadcast_arrays(
        np.atleast_1d(np.asarray(src, np.int32)), np.atleast_1d(np.asarray(dst, np.int32))
    )
    _check_chips(shape, starts, ends)
    if isinstance(shape, FullMesh):
        apart = starts != ends
        return _single(apart, _mesh_link(shape.size, starts, ends)[apart])
    if isinstance(shape, Clos):
        return Routes(*single_routes(shape, starts, ends))
    if isinstance(shape, Switch):
        return _switch_routes(shape, starts, ends)
    order = _order(axis_order, len(shape.sizes))
    if isinstance(shape, Torus):
        return _torus_routes(shape, starts, ends, order, tie)
    return _tiered_routes(shape, starts, ends, order, tie)


def _check_chips(shape: Shape, src: IntArray, dst: IntArray) -> None:
    for what, chips in (("source", src), ("destination", dst)):
        if len(chips) and not (chips.min() >= 0 and chips.max() < shape.chips):
            wrong = chips[(chips < 0) | (chips >= shape.chips)][0]
            raise InputError(f"{what} chip {wrong} is not one of 0 to {shape.chips - 1}")


def _order(axis_order: Sequence[int] | None, axes: int) -> list[int]:
    if axis_order is None:
        return list(range(axes))[::-1]
    if sorted(axis_order) != list(range(axes)):
        raise InputError(f"axis order {list(axis_order)} does not name each of {axes} axes once")
    return list(axis_order)


def _single(apart: BoolArray, link: IntArray) -> Routes:
    return Routes(_pointers(apart), link.astype(np.int32))


def _pointers(counts: npt.NDArray[np.generic]) -> IntArray:
    ptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def _mesh_link(size: int, src: IntArray, dst: IntArray) -> IntArray:
    return src * np.int32(size - 1) + dst - (dst > src)


def _switch_routes(shape: Switch, src: IntArray, dst: IntArray) -> Routes:
    apart = src != dst
    pairs = np.stack([src[apart], dst[apart] + np.int32(shape.size)], axis=1)
    return Routes(_pointers(2 * apart), pairs.ravel())


def _torus_routes(shape: Torus, src: IntArray, dst: IntArray, order: list[int], tie: int) -> Routes:
    at, to = coordinates(shape, src), coordinates(shape, dst)
    steps = np.stack([_signed_steps(shape, a, at, to, tie) for a in range(len(shape.axes))])
    hops = np.abs(steps)
    routed = Routes(_pointers(hops.sum(axis=0)), np.empty(int(hops.sum()), np.int32))
    table = axis_links(shape)
    stride = strides(shape.sizes)
    chip, begin = src.astype(np.int64), routed.ptr[:-1].copy()
    for a in order:
        base = chip - at[a] * stride[a]
        pair, done = _each_hop(hops[a])
        way, along = _ring_places(at[a][pair], steps[a][pair], done, shape.sizes[a])
        routed.link[begin[pair] + done] = table[base[pair] + along * stride[a], a, way]
        begin += hops[a]
        chip = base + to[a] * stride[a]
    return routed


def _each_hop(hops: IntArray) -> tuple[IntArray, IntArray]:
    """Pair of each hop, and how many of the pair's hops came before it."""
    pair = np.repeat(np.arange(len(hops), dtype=np.int32), hops)
    return pair, np.arange(len(pair)) - np.repeat(np.cumsum(hops) - hops, hops)


def _ring_places(
    start: IntArray, steps: IntArray, done: IntArray, size: int
) -> tuple[IntArray, IntArray]:
    """Way of each hop of a ring or line, and the coordinate that it leaves."""
    ahead = steps > 0
    return np.where(ahead, UP, DOWN), (start + np.where(ahead, done, -done)) % size


def _signed_steps(
    shape: Torus, a: int, at: tuple[IntArray, ...], to: tuple[IntArray, ...], tie: int
) -> IntArray:
    """Hops along an axis, positive upwards; the shorter way round where it wraps."""
    axis = shape.axes[a]
    return _around(axis.size, a, at, to, tie) if axis.wrap else to[a] - at[a]


def _around(
    size: int, a: int, at: tuple[IntArray, ...], to: tuple[IntArray, ...], tie: int
) -> IntArray:
    """Hops along a ring the shorter way round, positive upwards."""
    up = (to[a] - at[a]) % size
    upward = 2 * up < size
    if size % 2 == 0:
        even = np.bitwise_and(sum(at), 1) == 0 if tie == ALTERNATE else np.bool_(tie > 0)
        upward |= (2 * up == size) & even
    return np.where(upward, up, up - size)


def _tiered_routes(
    shape: Tiered, src: IntArray, dst: IntArray, order: list[int], tie: int
) -> Routes:
    at, to = coordinates(shape, src), coordinates(shape, dst)
    steps = [
        _around(tier.size, t, at, to, tie)
        if tier.ring
        else (at[t] != to[t]) * (2 if shape.planes[t] else 1)
        for t, tier in enumerate(shape.tiers)
    ]
    hops = np.abs(np.stack(steps).astype(np.int64))
    routed = Routes(_pointers(hops.sum(axis=0)), np.empty(int(hops.sum()), np.int32))
    first, stride = _first_link(shape), strides(shape.sizes)
    chip, begin = src.astype(np.int64), routed.ptr[:-1].copy()
    for t in order:
        moved = np.flatnonzero(hops[t])
        here, there, row, leaves = at[t][moved], to[t][moved], begin[moved], chip[moved]
        arrives = leaves + (there - here) * stride[t]
        if shape.planes[t]:
            routed.link[row] = first[t] + leaves
            routed.link[row + 1] = first[t] + shape.chips + arrives
        elif shape.tiers[t].ring:
            pair, done = _each_hop(hops[t][moved])
            way, along = _ring_places(here[pair], steps[t][moved][pair], done, shape.sizes[t])
            node = (leaves - here * stride[t])[pair] + along * stride[t]
            routed.link[row[pair] + done] = first[t] + 2 * node + way
        else:
            routed.link[row] = first[t] + leaves * shape.tiers[t].fan + there - (there > here)
        begin += hops[t]
        chip[moved] = arrives
    return routed


def _first_link(shape: Tiered) -> list[int]:
    """Row of each tier's first link in the folded arrays."""
    rows = [
        2 * shape.chips if planes else shape.chips * tier.fan
        for planes, tier in zip(shape.planes, shape.tiers, strict=True)
    ]
    return [sum(rows[:t]) for t in range(len(rows))]
