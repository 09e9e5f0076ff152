"""Directed links of a scale-up domain as arrays, computed from its shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from topologies.shapes.basic import LAYER_NAMES, Clos, FullMesh, Shape, Switch, Tier, Tiered, Torus
from topologies.support.arrays import BoolArray, IntArray, pointers


def clos_ends(shape: Clos) -> tuple[IntArray, IntArray, IntArray, int]:
    """Return all links' sources, destinations and layers, up then down, and the nodes."""
    counts = shape.switches
    first = np.cumsum([shape.size, *counts])
    chip = np.arange(shape.size)
    pairs = [(chip, first[0] + chip // shape.chips_per_leaf)]
    if shape.layers > 1:
        leaf = np.repeat(np.arange(counts[0]), shape.up)
        spine = leaf // shape.leaves_per_pod * shape.up + np.arange(len(leaf)) % shape.up
        pairs.append((first[0] + leaf, first[1] + spine))
    if shape.layers > 2:
        half = shape.radix // 2
        spine = np.repeat(np.arange(counts[1]), half)
        core = spine % shape.up * half + np.arange(len(spine)) % half
        pairs.append((first[1] + spine, first[2] + core))
    src = np.concatenate([end for low, high in pairs for end in (low, high)])
    dst = np.concatenate([end for low, high in pairs for end in (high, low)])
    layer = np.repeat(np.arange(len(pairs)), [2 * len(low) for low, _ in pairs])
    return src.astype(np.int32), dst.astype(np.int32), layer.astype(np.int8), int(first[-1])


def single_routes(shape: Clos, src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray]:
    """Return pointers and links of one path for each pair, chosen by the destination's number."""
    # The number of links up from a chip, from a leaf and from a spine.
    fans = [1, shape.up, shape.radix // 2][: shape.layers]
    levels, paths = _levels(shape, src, dst), np.cumprod(fans)
    ptr = pointers(2 * levels)
    link = np.empty(int(ptr[-1]), np.int32)
    for layer in range(shape.layers):
        pair = np.flatnonzero(levels > layer)
        whole = paths[levels[pair] - 1]
        path = dst[pair] % whole // (whole // paths[layer])
        up, down = _path_links(shape, layer, src[pair], dst[pair], path)
        link[ptr[pair] + layer] = up
        link[ptr[pair + 1] - 1 - layer] = down
    return ptr, link


def _levels(shape: Clos, src: IntArray, dst: IntArray) -> IntArray:
    """Return how many layers each pair's paths climb: 0 for a chip and itself, 1 in a leaf, …"""
    leaf = shape.chips_per_leaf
    pod = leaf * shape.leaves_per_pod
    apart = [src != dst, src // leaf != dst // leaf, src // pod != dst // pod]
    levels: IntArray = np.sum(apart, axis=0, dtype=np.int64)
    return levels


def _path_links(
    shape: Clos, layer: int, src: IntArray, dst: IntArray, path: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the links up into a layer, 0 for the leaves', and down from it, of numbered paths."""
    counts = (shape.size, shape.switches[0] * shape.up, 0)
    half = shape.radix // 2
    begin = 2 * sum(counts[:layer])
    if layer == 0:
        return src + 0 * path, begin + shape.size + dst + 0 * path
    leaves = [end // shape.chips_per_leaf for end in (src, dst)]
    if layer == 1:
        up, down = (leaf * shape.up + path for leaf in leaves)
        return begin + up, begin + counts[1] + down
    spines = [leaf // shape.leaves_per_pod * shape.up + path // half for leaf in leaves]
    up, down = (spine * half + path % half for spine in spines)
    return begin + up, begin + shape.switches[1] * half + down


UP, DOWN = 0, 1
"""Directions along an axis: to the next larger, and to the next smaller coordinate (both wrap)."""


@dataclass(frozen=True, eq=False)
class Links:
    """Directed links of one domain, a row for each; chips are nodes 0 … n-1, switches follow."""

    # src, dst (links,): chip or switch from which, and to which, the link leads
    src: IntArray
    dst: IntArray
    bandwidth_bytes_per_s: IntArray  # (links,): rate of all cables of the row together [B/s]
    latency_ps: IntArray  # (links,): latency of one hop [ps]
    # (links,): number among parallel rows of the same nodes: 1 for the second cable of an axis of
    # two, else 0
    lane: IntArray
    links: IntArray  # (links,): number of parallel cables that the row stands for
    tier: IntArray  # (links,): axis or tier that the link belongs to, an index into ``tiers``
    tiers: tuple[str, ...]
    nodes: int

    def __len__(self) -> int:
        return len(self.src)


def domain_links(shape: Shape, *, fold: bool = True) -> Links:
    """Return all directed links of a domain, with a plane's switches as one node if ``fold``."""
    # A message striped evenly over the switches takes as long as over the folded link.
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
    """Return each chip's links, int32 (chips, axes, 2); ``[..., UP]`` to larger, -1 for none."""
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
        bandwidth_bytes_per_s=np.array([item.bandwidth_bytes_per_s for item in shape.axes])[axis],
        latency_ps=np.array([item.latency_ps for item in shape.axes])[axis],
        lane=np.where(size == 2, cable, 0).astype(np.int16),
        links=np.ones(len(chip), np.int16),
        tier=axis.astype(np.int8),
        tiers=tuple(item.name for item in shape.axes),
        nodes=shape.chips,
    )


def strides(sizes: tuple[int, ...]) -> list[int]:
    """Return the difference in number between neighbouring chips along each axis."""
    return [math.prod(sizes[a + 1 :]) for a in range(len(sizes))]


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
    return replace(links, tier=layer, tiers=LAYER_NAMES[: shape.layers])


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
        else:
            part = _chip_links(shape, number, nodes)
        parts.append(part)
    columns = {
        item.name: np.concatenate([getattr(part, item.name) for part in parts])
        for item in fields(Links)
        if item.name not in ("tier", "tiers", "nodes")
    }
    tier_of = np.repeat(np.arange(len(parts), dtype=np.int8), [len(part) for part in parts])
    names = tuple(tier.name for tier in shape.tiers)
    return Links(**columns, tier=tier_of, tiers=names, nodes=nodes)


def _chip_links(shape: Tiered, number: int, nodes: int) -> Links:
    """Return the links of a ring or full mesh in each group of a tier, in order of source."""
    tier, stride = shape.tiers[number], strides(shape.sizes)[number]
    src = np.repeat(np.arange(shape.chips, dtype=np.int64), tier.fan)
    at = src // stride % tier.size
    way = np.tile(np.arange(tier.fan), shape.chips)
    to = (at + 1 - 2 * way) % tier.size if tier.ring else way + (way >= at)
    return _uniform(src, src + (to - at) * stride, tier, tier.link_bytes_per_s, nodes)


def _plane_links(shape: Tiered, number: int, nodes: int, switches: int) -> Links:
    """Return links from all chips to the switches of their planes, then those back to the chips."""
    tier = shape.tiers[number]
    chip = np.repeat(np.arange(shape.chips, dtype=np.int64), switches)
    # The group of the tier that each chip is in, counted from 0.
    stride = strides(shape.sizes)[number]
    plane = chip // (stride * shape.tiers[number].size) * stride + chip % stride
    switch = nodes + plane * switches + np.tile(np.arange(switches), shape.chips)
    src, dst = np.concatenate([chip, switch]), np.concatenate([switch, chip])
    rate = tier.bandwidth_bytes_per_s // switches
    cables = tier.switches // switches
    total = nodes + shape.planes[number] * switches
    return _uniform(src, dst, tier, rate, total, links=cables)
