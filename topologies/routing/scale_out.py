"""Paths across the scale-out fabric, over shared links up and down again.

Traffic is spread evenly over all equal paths of the Clos, packet by packet as SRD does. All
parallel links between a group and the layer above therefore carry the same load. They count as one
shared link with the sum of their rates, of which the traffic of a pair takes its rate once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from topologies.routing.domain import check_ends
from topologies.shapes.scale_out import Layer, ScaleOut, layers


@dataclass(frozen=True, eq=False)
class SharedLinks:
    """The shared links of a scale-out fabric, to whose rows :func:`scale_out_paths` refers.

    Rows are the adapters of all chips outwards, then inwards; then, layer by layer below the top,
    the uplinks of all groups, then their downlinks.

    ``capacity_bytes_per_s`` (rows,): rate of all parallel links together, one direction [B/s].
    ``kind`` (rows,): index into ``kinds``.
    ``kinds``: ``adapter-out``, ``adapter-in``, ``ToR-up``, ``ToR-down`` and so on.
    ``owner`` (rows,): chip or group that the link belongs to.
    """

    capacity_bytes_per_s: IntArray
    kind: IntArray
    kinds: tuple[str, ...]
    owner: IntArray

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class SharedPaths:
    """Shared links on the way between the chips of each pair.

    ``ptr`` (pairs + 1,): shared links of pair k are ``link[ptr[k]:ptr[k + 1]]``.
    ``link`` (crossings,): rows of :class:`SharedLinks`, upwards, then downwards.
    ``weight`` (crossings,): rate of the link that 1 B/s of the pair takes [B/s].
    ``latency_ps`` (pairs,): time of one step from memory to memory over the path [ps].
    """

    ptr: IntArray
    link: IntArray
    weight: IntArray
    latency_ps: IntArray

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
    """Find the shared links from each source chip to its destination.

    ``src, dst`` (pairs,): global chip numbers. Chips of the same domain use their adapters, too; a
    pair of the same chip has no links.
    """
    fabric, layers = clos(cluster)
    starts, ends = np.broadcast_arrays(
        np.atleast_1d(np.asarray(src, np.int64)), np.atleast_1d(np.asarray(dst, np.int64))
    )
    check_ends(cluster.chips, starts, ends)
    top = np.zeros(len(starts), np.int64)  # highest layer that the path climbs to
    for layer in layers[:-1]:
        top += starts // layer.chips != ends // layer.chips
    apart = starts != ends
    ptr = np.zeros(len(starts) + 1, np.int64)
    np.cumsum((2 + 2 * top) * apart, out=ptr[1:])
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
    return SharedPaths(ptr, link, np.ones(len(link), np.int32), latency_ps)
