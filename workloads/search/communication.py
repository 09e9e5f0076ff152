"""Estimated times of communication, from a few small simulations of each geometry.

Within a scale-up domain the time of a collective is interpolated between simulations at a few
sizes. A ring over domains takes a round for each further rank, each as long as one block between
two domains; stages of rings follow one another. A collective both within domains and between them
takes the longer of the two times and, as its slices follow one another, a small part of the shorter
one. Nothing larger than one domain or two chips is simulated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives import Group
from cluster_sim.collectives.algorithms.domains import radices
from cluster_sim.collectives.algorithms.slices import MOST_SLICES
from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import FloatArray, IntArray
from topologies.clusters.cluster import Cluster
from workloads.training.program.group_times import exchange_ps, group_of, group_ps

SIZES = (2**18, 2**21, 2**24, 2**27, 2**30)
"""Sizes at which collectives within a domain are simulated [B]; their rate is constant beyond."""
BLOCKS = (2**12, 2**16, 2**20, 2**25)
"""Sizes of blocks whose transfer from one domain to another is simulated [B]."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Time as a piecewise linear function of size.

    Attributes
    ----------
    size_bytes : tuple of int
        Sizes at which the time is simulated, ascending [B].
    run : function of a size
        Simulated time [s]. It is called only for the sizes on both sides of a requested one.
    """

    size_bytes: tuple[int, ...]
    run: Callable[[int], float]

    def at(self, size_bytes: int) -> float:
        """Return the time of a buffer of this size [s].

        Examples
        --------
        >>> curve = Curve((10, 20), {10: 1.0, 20: 3.0}.__getitem__)
        >>> [curve.at(size) for size in (5, 15, 40)]
        [1.0, 2.0, 7.0]
        """
        sizes, size = self.size_bytes, float(size_bytes)
        if size <= sizes[0]:
            return self.run(sizes[0])
        left = min(bisect_right(sizes, size), len(sizes) - 1) - 1
        low, high = self.run(sizes[left]), self.run(sizes[left + 1])
        slope = (high - low) / (sizes[left + 1] - sizes[left])
        if size >= sizes[left + 1]:
            return high + (size - sizes[left + 1]) * slope
        return slope * (size - sizes[left]) + low


def communication_s(
    cluster: Cluster, chips: IntArray, op: str, size_bytes: npt.ArrayLike
) -> FloatArray:
    """Estimate the time of a communication among the ranks on these chips [s].

    Parameters
    ----------
    cluster : Cluster
    chips : int64 array (ranks,)
        Chip of each rank of one group.
    op : str
        ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all`` or ``send``.
    size_bytes : int or int array
        Size as nccl-tests count it [B].

    Returns
    -------
    float64 array
        Times in the shape of ``size_bytes`` [s].
    """
    group, sizes = meeting(cluster, chips), np.asarray(size_bytes, np.int64)
    seconds = [group.seconds(op, size) for size in sizes.reshape(-1).tolist()]
    return np.array(seconds, float).reshape(sizes.shape)


@dataclass(frozen=True, eq=False)
class Meeting:
    """Positions of the ranks of one group, as far as the time of communication depends on them.

    Attributes
    ----------
    cluster : Cluster
    ranks : int
        Ranks of the group.
    stages : tuple of int
        Domains of each ring over domains; the rings follow one another. Empty within one domain.
    each : int
        Ranks in every domain. It is 1 if domains have different numbers, and all ranks form one
        ring.
    chips : int64 array
        Chip of each rank, for a group within a domain or with times in closed form; else empty.
    closed : bool
        Whether the simulation itself uses a closed form of the time.
    within : Meeting, optional
        Ranks of one of several domains.
    """

    cluster: Cluster
    ranks: int
    stages: tuple[int, ...]
    each: int
    chips: IntArray
    closed: bool
    within: Meeting | None = None

    @cached_property
    def group(self) -> Group:
        """Group of the ranks on ``chips``."""
        return group_of(self.cluster, self.chips)

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Cache of the curves of simulations within a domain, by operation."""
        return {}

    def seconds(self, op: str, size_bytes: int) -> float:
        """Return the estimated time of an operation on a buffer of this size [s]."""
        if self.ranks == 1:
            return 0.0
        if self.closed:
            return group_ps(self.group, op, size_bytes) / PS_PER_S
        if not self.stages:
            if op not in self.curves:
                self.curves[op] = _curve(self.cluster, _key(self.cluster, self.chips), op)
            return self.curves[op].at(size_bytes)
        if op == "send":
            return _hop(self.cluster).at(size_bytes)
        if op == "all-reduce":
            return self.seconds("reduce-scatter", size_bytes) + self.seconds(
                "all-gather", size_bytes
            )
        return self._across(op, size_bytes)

    def _across(self, op: str, size_bytes: int) -> float:
        """Time of a collective over several domains [s]."""
        if op == "all-to-all":
            # A rank sends a block of its own to each rank of the other domains.
            block_s = _hop(self.cluster).at(size_bytes // self.ranks)
            between = (self.ranks - self.each) * block_s
        else:
            between = _staged(self.cluster, self.stages, size_bytes // self.each)
        if self.within is None:
            return between
        within = self.within.seconds(op, size_bytes)
        return max(between, within) + min(between, within) / MOST_SLICES


def meeting(cluster: Cluster, chips: IntArray) -> Meeting:
    """Return the positions of the ranks of a group, from the chip of each rank."""
    domain = chips // cluster.chips_per_domain
    closed, first = covers(cluster), domain == domain[0]
    if closed or len(chips) == 1 or first.all():
        return Meeting(cluster, len(chips), (), len(chips), chips, closed)
    _, ranks = np.unique(domain, return_counts=True)
    even = bool(ranks.min() == ranks.max())
    each = int(ranks[0]) if even else 1
    stages = tuple(radices(group_of(cluster, chips))) if even else (len(chips),)
    within = meeting(cluster, chips[first]) if each > 1 else None
    return Meeting(cluster, len(chips), stages, each, chips[:0], closed, within)


def _staged(cluster: Cluster, stages: Sequence[int], size_bytes: int) -> float:
    """Time of rings over domains, one after the other, each on a block of the previous one [s]."""
    between = 0.0
    for domains in stages:
        size_bytes = size_bytes // domains
        between += (domains - 1) * _hop(cluster).at(size_bytes)
    return between


def _key(cluster: Cluster, chips: IntArray) -> tuple[int, ...]:
    """Key that groups at the same places of different domains share."""
    return tuple((chips % cluster.chips_per_domain).tolist())


@cache
def _curve(cluster: Cluster, chips: tuple[int, ...], op: str) -> Curve:
    """Curve of an operation of a group within a domain."""
    group = np.array(chips, np.int64)
    return Curve(SIZES, cache(lambda size: exchange_ps(cluster, group, op, size) / PS_PER_S))


@cache
def _hop(cluster: Cluster) -> Curve:
    """Curve of the transfer of one block from a domain to the next."""
    pair = np.array([0, cluster.chips_per_domain], np.int64)
    return Curve(BLOCKS, cache(lambda size: exchange_ps(cluster, pair, "send", size) / PS_PER_S))
