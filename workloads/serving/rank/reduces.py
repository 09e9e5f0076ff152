"""Times of the all-reduces between the ranks of a replica."""

from __future__ import annotations

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import FloatArray
from topologies.shapes.measures import scale_up_bytes_per_s
from workloads.serving.rank.share import RankShare

LARGE_BYTES, SMALL_BYTES = 2**28, 2**15
"""Sizes of all-reduces from which the rate and the latency of the runtime's library are taken."""


def reduces_s(rank: RankShare, tokens: FloatArray, family: str) -> FloatArray:
    """Return the time of two all-reduces a layer over the ranks of the replica [s]."""
    if rank.ranks == 1:
        return np.zeros_like(tokens)
    size = tokens * rank.model.hidden * 2.0
    large_s = _reduce_s(rank, LARGE_BYTES) / LARGE_BYTES * size
    floor_s = rank.overhead("all_reduce_floor")
    if rank.chips == 1:
        floor_s = rank.overhead("chip_all_reduce_floor") or floor_s
    if floor_s:
        once = floor_s + large_s
    else:
        once = np.minimum(
            _reduce_s(rank, SMALL_BYTES) + large_s, direct_reduce_s(rank, size, family)
        )
    return np.asarray(2 * rank.model.layers * once)


def _reduce_s(rank: RankShare, size: int) -> float:
    """Time of one all-reduce of the runtime's library between chips, or cores of one chip [s]."""
    group = Group(rank.cluster, np.arange(rank.chips))
    if rank.chips == 1:
        group = Group(rank.cluster, np.arange(1), rank.ranks)
    return duration_ps(CollectiveCall("all-reduce", group, size)) / PS_PER_S


def direct_reduce_s(rank: RankShare, size: FloatArray, family: str) -> FloatArray:
    """Return the time of one all-reduce as serving engines write it [s].

    Every rank reads its peers' memory, either all of it in one step, or first its own share and
    then the reduced shares of the others, whichever takes less.
    """
    port = scale_up_bytes_per_s(rank.cluster.shape) * rank.catalogue.value(family, "peer_rate")
    peers = rank.chips - 1
    one_step_s = rank.catalogue.value(family, "one_step_floor") + peers * size / port
    two = rank.catalogue.value(family, "two_step_floor") + 2 * peers / rank.chips * size / port
    return np.minimum(one_step_s, two)
