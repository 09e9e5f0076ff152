"""Routes inside a domain, and paths across the scale-out fabric, over shared links.

Outside, traffic is spread evenly over all equal paths of the Clos, as SRD does: parallel links
between a group and the layer above count as one, of which a pair takes its rate once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Clos, FullMesh, Shape, Switch, Tiered, Torus
from topologies.shapes.links import DOWN, UP, axis_links, coordinates, single_routes, strides
from topologies.shapes.scale_out import Layer, ScaleOut, layers
from topologies.support.arrays import BoolArray, IntArray, pointers
from topologies.support.errors import InputError

TABLES_KEPT = 8
"""Tables of the places along an axis that are kept: groups of one cluster ask for the same."""
ALTERNATE = 0  # rule for ties: chips whose coordinates have an even sum go up, the others down


@dataclass(frozen=True, eq=False)
class Routes:
    """The links on the way between the chips of each pair, in order."""

    ptr: IntArray  # (pairs + 1,): links of pair k are ``link[ptr[k]:ptr[k + 1]]``
    link: IntArray  # (hops,): rows of :func:`topologies.shapes.links.domain_links`

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @property
    def hops(self) -> IntArray:
        """Number of links on the way of each pair, (pairs,)."""
        return np.diff(self.ptr)


def routes(
    shape: Shape,
    src: npt.ArrayLike,
    dst: npt.ArrayLike,
    *,
    axis_order: Sequence[int] | None = None,
    tie: int = ALTERNATE,
) -> Routes:
    """Find the route from each source chip to its destination.

    On a torus and on tiers a route goes along one axis after the other, on rings the shorter way
    round. Where both ways are equally long, sources whose coordinates have an even sum go up and
    the others down, so that uniform traffic loads both ways equally; ``tie`` overrides this. On a
    Clos the destination's number chooses one of the equal paths.

    ``src, dst`` (pairs,): local chip numbers of the pairs; a pair of the same chip has no links.
    ``axis_order``: axes or tiers in the order in which routes go along them; by default the fastest
    (last) first, that is X, Y, Z on an UltraServer and sled, rack, cross-rack on Trn3. ``tie`` (0,
    +1, -1): direction where both ways round a ring are equally long: 0 alternates by source, +1
    always goes up, -1 always down.
    """
    starts, ends = np.broadcast_arrays(
        np.atleast_1d(np.asarray(src, np.int32)), np.atleast_1d(np.asarray(dst, np.int32))
    )
    check_ends(shape.chips, starts, ends)
    if isinstance(shape, FullMesh):
        apart = starts != ends
        link = (starts * np.int32(shape.size - 1) + ends - (ends > starts))[apart]
        return Routes(pointers(apart), link.astype(np.int32))
    if isinstance(shape, Clos):
        return Routes(*single_routes(shape, starts, ends))
    if isinstance(shape, Switch):
        return _switch_routes(shape, starts, ends)
    return _axis_routes(shape, starts, ends, _order(axis_order, len(shape.sizes)), tie)


def check_ends(count: int, src: IntArray, dst: IntArray) -> None:
    """Refuse numbers of chips that are not among so many."""
    for what, chips in (("source", src), ("destination", dst)):
        if len(chips) and not (chips.min() >= 0 and chips.max() < count):
            wrong = chips[(chips < 0) | (chips >= count)][0]
            raise InputError(f"{what} chip {wrong} is not one of 0 to {count - 1}")


def _order(axis_order: Sequence[int] | None, axes: int) -> list[int]:
    """Return the order of axes, by default the last first, which must name each once."""
    if axis_order is None:
        return list(range(axes))[::-1]
    if sorted(axis_order) != list(range(axes)):
        raise InputError(f"axis order {list(axis_order)} does not name each of {axes} axes once")
    return list(axis_order)


def _switch_routes(shape: Switch, src: IntArray, dst: IntArray) -> Routes:
    apart = src != dst
    pairs = np.stack([src[apart], dst[apart] + np.int32(shape.size)], axis=1)
    return Routes(pointers(2 * apart), pairs.ravel())


def _coordinates(shape: Torus | Tiered, chips: IntArray) -> list[IntArray]:
    """Return the coordinates of chips along each axis or tier, int32 (chips,), slowest first."""
    if len(chips) <= shape.chips:
        return [at.astype(np.int32) for at in coordinates(shape, chips)]
    # Some chips are repeated, and to look a coordinate up is faster than to divide.
    every = coordinates(shape, np.arange(shape.chips))
    return [at.astype(np.int32)[chips] for at in every]


def _walk(
    link: IntArray,
    *,
    first: IntArray,
    place: IntArray,
    hops: IntArray,
    link_at: IntArray,
    next_place: IntArray,
) -> None:
    """Write the links of pairs that walk along one axis, all pairs a hop at a time."""
    # A place is a chip and a direction, ``2 * chip + way``; ``link_at`` and ``next_place`` lead on.
    left = hops
    while len(left):
        link[first] = link_at[place]
        goes_on = np.flatnonzero(left > 1)
        first, place = first[goes_on] + 1, next_place[place[goes_on]]
        left = left[goes_on] - 1


@lru_cache(maxsize=TABLES_KEPT)
def _next_places(shape: Torus | Tiered, a: int) -> IntArray:
    """Return the next place from each place ``2 * chip + way`` along an axis; see :func:`_walk`."""
    size, stride = shape.sizes[a], strides(shape.sizes)[a]
    chip = np.arange(shape.chips)
    at = chip // stride % size
    places = np.empty((shape.chips, 2), np.int64)
    for way, onward in ((UP, 1), (DOWN, -1)):
        places[:, way] = 2 * (chip + ((at + onward) % size - at) * stride) + way
    places.flags.writeable = False  # all callers share it
    return places.ravel()


def _ties_up(at: list[IntArray], tie: int) -> BoolArray:
    """Return which pairs go up where both ways round a ring are equally long."""
    if tie == ALTERNATE:
        return np.asarray((np.sum(at, axis=0) & 1) == 0)
    return np.full(len(at[0]), tie > 0)


def _around(size: int, at: IntArray, to: IntArray, ties_up: BoolArray) -> IntArray:
    """Return the hops along a ring the shorter way round, positive upwards."""
    ahead = to - at
    up = np.where(ahead < 0, ahead + size, ahead)
    upward = 2 * up < size
    if size % 2 == 0:
        upward |= (2 * up == size) & ties_up
    return np.where(upward, up, up - size)


def _axis_routes(
    shape: Torus | Tiered, src: IntArray, dst: IntArray, order: list[int], tie: int
) -> Routes:
    """Find routes axis by axis: over a direct link, round a ring, or through a tier's switch."""
    at, to = _coordinates(shape, src), _coordinates(shape, dst)
    ties_up = _ties_up(at, tie)
    steps = [_steps(shape, a, at[a], to[a], ties_up) for a in range(len(at))]
    hops = [np.abs(along) for along in steps]
    ptr = pointers(np.sum(hops, axis=0))
    link = np.empty(int(ptr[-1]), np.int32)
    first, stride = _first_link(shape), strides(shape.sizes)
    table = axis_links(shape) if isinstance(shape, Torus) else None
    chip, begin = src.astype(np.int64), ptr[:-1].copy()
    for a in order:
        moved = np.flatnonzero(hops[a])
        here, there, row, leaves = at[a][moved], to[a][moved], begin[moved], chip[moved]
        arrives = leaves + (there - here) * stride[a]
        tier = None if isinstance(shape, Torus) else shape.tiers[a]
        if tier is None or tier.ring:
            along = first[a] + np.arange(2 * shape.chips) if table is None else table[:, a].ravel()
            way = np.where(steps[a][moved] > 0, UP, DOWN)
            _walk(
                link,
                first=row,
                place=2 * leaves + way,
                hops=hops[a][moved],
                link_at=along,
                next_place=_next_places(shape, a),
            )
        elif tier.switches:
            link[row] = first[a] + leaves
            link[row + 1] = first[a] + shape.chips + arrives
        else:
            link[row] = first[a] + leaves * tier.fan + there - (there > here)
        begin += hops[a]
        chip[moved] = arrives
    return Routes(ptr, link)


def _steps(
    shape: Torus | Tiered, a: int, at: IntArray, to: IntArray, ties_up: BoolArray
) -> IntArray:
    """Return the hops of each pair along an axis or tier, positive upwards."""
    if isinstance(shape, Torus):
        axis = shape.axes[a]
        return _around(axis.size, at, to, ties_up) if axis.wrap else to - at
    if shape.tiers[a].ring:
        return _around(shape.tiers[a].size, at, to, ties_up)
    return np.where(at != to, np.int32(2 if shape.planes[a] else 1), np.int32(0))


def _first_link(shape: Torus | Tiered) -> list[int]:
    """Return the row of each tier's first link among the folded links of the domain."""
    if isinstance(shape, Torus):
        return [0] * len(shape.axes)
    rows = [
        2 * shape.chips if planes else shape.chips * tier.fan
        for planes, tier in zip(shape.planes, shape.tiers, strict=True)
    ]
    return [sum(rows[:t]) for t in range(len(rows))]


@dataclass(frozen=True, eq=False)
class SharedLinks:
    """Shared links of a scale-out fabric: adapters out, in, then by layer up- and downlinks."""

    # (rows,): rate of all parallel links together, one direction [B/s]
    capacity_bytes_per_s: IntArray
    kind: IntArray  # (rows,): index into ``kinds``
    kinds: tuple[str, ...]  # ``adapter-out``, ``adapter-in``, ``ToR-up``, ``ToR-down`` and so on
    owner: IntArray  # (rows,): chip or group that the link belongs to

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class SharedPaths:
    """Shared links on the way between the chips of each pair."""

    ptr: IntArray  # (pairs + 1,): shared links of pair k are ``link[ptr[k]:ptr[k + 1]]``
    link: IntArray  # (crossings,): rows of :class:`SharedLinks`, upwards, then downwards
    latency_ps: IntArray  # (pairs,): time of one step from memory to memory over the path [ps]

    def __len__(self) -> int:
        return len(self.latency_ps)


def clos(cluster: Cluster) -> tuple[ScaleOut, tuple[Layer, ...]]:
    """Return the scale-out fabric of a cluster, and the layers that join all its chips."""
    if cluster.scale_out is None:
        raise InputError(f"{cluster.name} has no scale-out fabric")
    return cluster.scale_out, layers(cluster.scale_out, cluster.chips, cluster.chips_per_server)


def switch_chips(cluster: Cluster) -> list[int]:
    """Return the chips of a domain, and those under a switch of each layer but the top."""
    above = clos(cluster)[1][:-1] if cluster.scale_out is not None else ()
    return [cluster.chips_per_domain, *(layer.chips for layer in above)]


def period(cluster: Cluster) -> int:
    """Return the number of chips after which domains and switches above them begin alike."""
    return math.lcm(*switch_chips(cluster))


def shared_links(cluster: Cluster) -> SharedLinks:
    """Return all shared links of the scale-out fabric."""
    fabric, layers = clos(cluster)
    parts = [("adapter", cluster.chips, fabric.bandwidth_bytes_per_s)]
    parts += [(layer.name, layer.groups, layer.up_bytes_per_s) for layer in layers[:-1]]
    ways = [("-out", "-in"), *[("-up", "-down")] * (len(layers) - 1)]
    counts = np.repeat([count for _, count, _ in parts], 2)
    return SharedLinks(
        capacity_bytes_per_s=np.repeat(np.repeat([rate for *_, rate in parts], 2), counts),
        kind=np.repeat(np.arange(2 * len(parts), dtype=np.int8), counts),
        kinds=tuple(part[0] + way for part, both in zip(parts, ways, strict=True) for way in both),
        owner=np.concatenate([np.arange(count, dtype=np.int32) for count in counts]),
    )


def scale_out_paths(cluster: Cluster, src: npt.ArrayLike, dst: npt.ArrayLike) -> SharedPaths:
    """Find the shared links between global chips, through adapters within a domain, too."""
    fabric, layers = clos(cluster)
    starts, ends = np.broadcast_arrays(
        np.atleast_1d(np.asarray(src, np.int64)), np.atleast_1d(np.asarray(dst, np.int64))
    )
    check_ends(cluster.chips, starts, ends)
    top = np.zeros(len(starts), np.int64)  # highest layer that the path climbs to
    for layer in layers[:-1]:
        top += starts // layer.chips != ends // layer.chips
    apart = starts != ends
    ptr = pointers((2 + 2 * top) * apart)
    link = np.empty(int(ptr[-1]), np.int32)
    first, last = ptr[:-1], ptr[1:] - 1
    link[first[apart]] = starts[apart]
    link[last[apart]] = cluster.chips + ends[apart]
    row = 2 * cluster.chips
    for number, layer in enumerate(layers[:-1]):
        climbs = top > number
        link[first[climbs] + 1 + number] = row + starts[climbs] // layer.chips
        link[last[climbs] - 1 - number] = row + layer.groups + ends[climbs] // layer.chips
        row += 2 * layer.groups
    extra = np.array(fabric.climb_ps, np.int64)
    climb_ps = extra[np.minimum(top, len(extra) - 1)]
    latency_ps = np.where(apart, fabric.latency_ps + climb_ps, 0)
    return SharedPaths(ptr, link, latency_ps)
