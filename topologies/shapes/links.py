"""Directed links of a scale-up domain as arrays, computed from its shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from topologies.arrays import BoolArray, IntArray
from topologies.shapes.basic import FullMesh, Shape, Switch, Torus
from topologies.shapes.clos import Clos
from topologies.shapes.clos_links import clos_ends, layer_names
from topologies.shapes.tiered import Tier, Tiered

UP, DOWN = 0, 1
"""Directions along an axis: to the next larger, and to the next smaller coordinate (both wrap)."""


@dataclass(frozen=True, eq=False)
class Links:
    """Directed links of one domain, a row for each; chips are nodes 0 … n-1, switches follow.

    ``src, dst`` (links,): chip or switch from which, and to which, the link leads.
    ``bandwidth_bytes_per_s`` (links,): rate of all cables of the row together [B/s].
    ``latency_ps`` (links,): latency of one hop [ps].
    ``lane`` (links,): number among parallel rows of the same nodes: 1 for the second cable of an
        axis of two, else 0.
    ``links`` (links,): number of parallel cables that the row stands for.
    ``tier`` (links,): axis or tier that the link belongs to, an index into ``tiers``.
    ``tiers``: names of the axes or tiers.
    ``nodes``: number of chips and switches.
    """

    src: IntArray
    dst: IntArray
    bandwidth_bytes_per_s: IntArray
    latency_ps: IntArray
    lane: IntArray
    links: IntArray
    tier: IntArray
    tiers: tuple[str, ...]
    nodes: int

    def __len__(self) -> int:
        return len(self.src)


def domain_links(shape: Shape, *, fold: bool = True) -> Links:
    """Return all directed links of a domain.

    ``fold``: whether the parallel switches of a plane count as one node that has all their cables.
    A message that is striped evenly over the switches takes the same time as over the folded link,
    so routes and engines use the folded links; drawings do not.

    >>> from topologies.shapes.basic import Axis
    >>> ring = Torus((Axis("X", 3, 10**9, 0),))
    >>> links = domain_links(ring)
    >>> list(zip(links.src.tolist(), links.dst.tolist()))
    [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)]
    """
    if isinstance(shape, Torus):
        return _torus_links(shape)
    if isinstance(shape, FullMesh):
        return _mesh_links(shape)
    if isinstance(shape, Switch):
        return _switch_links(shape)
    if isinstance(shape, Clos):
        return _clos_links(shape)
    return _tiered_links(shape, fold)


def coordinates(shape: Shape, chips: npt.ArrayLike) -> tuple[IntArray, ...]:
    """Return the coordinates of chips along each axis or tier, slowest first."""
    return tuple(np.unravel_index(np.asarray(chips, np.int64), shape.sizes))


def axis_links(shape: Torus) -> IntArray:
    """Return the link of each chip along each axis and direction, int32 (chips, axes, 2).

    ``axis_links(shape)[chip, axis, UP]`` leads to the next larger coordinate; -1 stands for none.
    """
    has_link = _torus_mask(shape)
    number = np.cumsum(has_link.ravel(), dtype=np.int32) - 1
    return np.where(has_link, number.reshape(has_link.shape), np.int32(-1))


def _torus_mask(shape: Torus) -> BoolArray:
    """Return whether a chip has a link along an axis in a direction, (chips, axes, 2)."""
    has_link = np.ones((*shape.sizes, len(shape.axes), 2), bool)
    for a, axis in enumerate(shape.axes):
        along = np.moveaxis(has_link[..., a, :], a, 0)
        if axis.size == 1:
            along[...] = False
        elif not axis.wrap:
            along[-1, ..., UP] = False
            along[0, ..., DOWN] = False
    return has_link.reshape(shape.chips, len(shape.axes), 2)


def _torus_links(shape: Torus) -> Links:
    """Return the links of a torus, in order of chip, axis and direction."""
    chip, axis, way = (place.astype(np.int32) for place in np.nonzero(_torus_mask(shape)))
    size = np.array(shape.sizes, np.int32)[axis]
    stride = np.array(strides(shape.sizes), np.int32)[axis]
    at = chip // stride % size
    to = (at + 1 - 2 * way) % size
    cable = np.where(way == UP, at, to)  # the chip at whose upper side the cable is
    return Links(
        src=chip,
        dst=(chip + (to - at) * stride).astype(np.int32),
        bandwidth_bytes_per_s=_by(axis, [item.bandwidth_bytes_per_s for item in shape.axes]),
        latency_ps=_by(axis, [item.latency_ps for item in shape.axes]),
        lane=np.where(size == 2, cable, 0).astype(np.int16),
        links=np.ones(len(chip), np.int16),
        tier=axis.astype(np.int8),
        tiers=tuple(item.name for item in shape.axes),
        nodes=shape.chips,
    )


def strides(sizes: tuple[int, ...]) -> list[int]:
    """Return the difference in number between neighbouring chips along each axis."""
    return [math.prod(sizes[a + 1 :]) for a in range(len(sizes))]


def _by(code: IntArray, values: list[int]) -> IntArray:
    return np.array(values, np.int64)[code]


def _mesh_links(shape: FullMesh) -> Links:
    src = np.repeat(np.arange(shape.size, dtype=np.int32), shape.size - 1)
    skip = np.tile(np.arange(shape.size - 1, dtype=np.int32), shape.size)
    tier = Tier("mesh", shape.size, shape.bandwidth_bytes_per_s, shape.latency_ps)
    return _uniform(src, skip + (skip >= src), tier, shape.bandwidth_bytes_per_s, shape.size)


def _switch_links(shape: Switch) -> Links:
    chip = np.arange(shape.size, dtype=np.int32)
    switch = np.full(shape.size, shape.size, np.int32)
    tier = Tier("switch", shape.size, shape.bandwidth_bytes_per_s, shape.latency_ps)
    src, dst = np.concatenate([chip, switch]), np.concatenate([switch, chip])
    rate = shape.bandwidth_bytes_per_s
    return _uniform(src, dst, tier, rate, shape.size + 1, links=shape.links)


def _clos_links(shape: Clos) -> Links:
    src, dst, layer, nodes = clos_ends(shape)
    tier = Tier("leaf", shape.size, shape.bandwidth_bytes_per_s, shape.latency_ps)
    links = _uniform(src, dst, tier, shape.bandwidth_bytes_per_s, nodes)
    return replace(links, tier=layer, tiers=layer_names(shape))


def _uniform(
    src: IntArray, dst: IntArray, tier: Tier, rate: int, nodes: int, *, links: int = 1
) -> Links:
    """Return links of a single tier, all with the same rate, latency and number of cables."""
    rows = len(src)
    return Links(
        src=src.astype(np.int32),
        dst=dst.astype(np.int32),
        bandwidth_bytes_per_s=np.full(rows, rate, np.int64),
        latency_ps=np.full(rows, tier.latency_ps, np.int64),
        lane=np.zeros(rows, np.int16),
        links=np.full(rows, links, np.int16),
        tier=np.zeros(rows, np.int8),
        tiers=(tier.name,),
        nodes=nodes,
    )


def _tiered_links(shape: Tiered, fold: bool) -> Links:
    parts = []
    nodes = shape.chips
    for number, tier in enumerate(shape.tiers):
        if tier.size > 1 and tier.switches:
            part = _plane_links(shape, number, nodes, 1 if fold else tier.switches)
            nodes = part.nodes
        elif tier.ring:
            part = _ring_links(shape, number, nodes)
        else:
            part = _direct_links(shape, number, nodes)
        parts.append(part)
    columns = {
        item.name: np.concatenate([getattr(part, item.name) for part in parts])
        for item in fields(Links)
        if item.name not in ("tier", "tiers", "nodes")
    }
    tier_of = np.repeat(np.arange(len(parts), dtype=np.int8), [len(part) for part in parts])
    names = tuple(tier.name for tier in shape.tiers)
    return Links(**columns, tier=tier_of, tiers=names, nodes=nodes)


def _direct_links(shape: Tiered, number: int, nodes: int) -> Links:
    """Return the links of a full mesh in each group of a tier, in order of their source chips."""
    tier = shape.tiers[number]
    stride = strides(shape.sizes)[number]
    src = np.repeat(np.arange(shape.chips, dtype=np.int64), tier.size - 1)
    at = src // stride % tier.size
    other = np.tile(np.arange(tier.size - 1), shape.chips)
    to = other + (other >= at)
    return _uniform(src, src + (to - at) * stride, tier, tier.link_bytes_per_s, nodes)


def _ring_links(shape: Tiered, number: int, nodes: int) -> Links:
    """Return the links of a ring in each group of a tier, in order of their source chips."""
    tier = shape.tiers[number]
    stride = strides(shape.sizes)[number]
    src = np.repeat(np.arange(shape.chips, dtype=np.int64), tier.fan)
    at = src // stride % tier.size
    way = np.tile(np.arange(tier.fan), shape.chips)
    to = (at + 1 - 2 * way) % tier.size
    return _uniform(src, src + (to - at) * stride, tier, tier.link_bytes_per_s, nodes)


def _plane_links(shape: Tiered, number: int, nodes: int, switches: int) -> Links:
    """Return links from all chips to the switches of their planes, then those back to the chips."""
    tier = shape.tiers[number]
    chip = np.repeat(np.arange(shape.chips, dtype=np.int64), switches)
    plane = plane_of(shape, number, chip)
    switch = nodes + plane * switches + np.tile(np.arange(switches), shape.chips)
    src, dst = np.concatenate([chip, switch]), np.concatenate([switch, chip])
    rate = tier.bandwidth_bytes_per_s // switches
    cables = tier.switches // switches
    total = nodes + shape.planes[number] * switches
    return _uniform(src, dst, tier, rate, total, links=cables)


def plane_of(shape: Tiered, number: int, chip: IntArray) -> IntArray:
    """Return the group of a tier that each chip is in, counted from 0."""
    stride = strides(shape.sizes)[number]
    return chip // (stride * shape.tiers[number].size) * stride + chip % stride
