"""Times of the all-reduces between the ranks of a replica."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from cluster_sim.schedule.table import PS_PER_S
from topologies.arrays import FloatArray
from topologies.clusters.cluster import Cluster
from topologies.shapes.measures import scale_up_bytes_per_s
from workloads.kernels.precision import ELEMENT_BYTES
from workloads.serving.rank.share import RankShare

LARGE_BYTES, SMALL_BYTES = 2**28, 2**15
"""Sizes of all-reduces from which the rate and the latency of the runtime's library are taken."""
SIZES = 2.0 ** np.arange(15, 29)
"""Sizes of all-reduces over all ranks of a Trainium replica whose times are interpolated [B]."""
REPLICAS = 64
"""Number of replicas whose all-reduces are kept."""


def reduces_s(
    rank: RankShare, tokens: FloatArray, family: str, *, prompts: bool = False
) -> FloatArray:
    """Return the time of all-reduces over the ranks of the replica, one a part of a layer [s].

    On Trainium they take a floor, which was fitted to decode, and those of prompts at least what
    the runtime's library takes for their size over all ranks, where that was measured.
    """
    if rank.attention_dp > 1:
        within = reduces_s(rank.alone, tokens / rank.attention_dp, family)
        routed = 1 - rank.model.moe_layers / rank.parts  # sums of experts are part of the exchange
        return within * routed + rank.model.moe_layers * exchange_s(rank, tokens, family)
    if rank.ranks == 1:
        return np.zeros_like(tokens)
    size = tokens * rank.model.hidden * 2.0
    large_s = _reduce_s(rank, LARGE_BYTES) / LARGE_BYTES * size
    floor_s = rank.overhead("all_reduce_floor")
    if rank.chips == 1:
        floor_s = rank.overhead("chip_all_reduce_floor") or floor_s
    if floor_s:
        once = floor_s + large_s
        if prompts and rank.overhead("sized_reduces"):
            once = np.maximum(once, library_reduce_s(rank, size))
    else:
        once = np.minimum(
            _reduce_s(rank, SMALL_BYTES) + large_s, direct_reduce_s(rank, size, family)
        )
    return np.asarray(rank.parts * once)


def _reduce_s(rank: RankShare, size: int) -> float:
    """Time of one all-reduce of the runtime's library between chips, or cores of one chip [s]."""
    group = Group(rank.cluster, np.arange(rank.chips))
    if rank.chips == 1:
        group = Group(rank.cluster, np.arange(1), rank.ranks)
    return duration_ps(CollectiveCall("all-reduce", group, size)) / PS_PER_S


def library_reduce_s(rank: RankShare, size: FloatArray) -> FloatArray:
    """Return the time of one all-reduce of the runtime's library over all ranks [s].

    It is interpolated between powers of two, in proportion to the size above them, and 0 for sizes
    below them, which the floor of decode covers.
    """
    times = _library_times_s(rank.cluster, rank.chips, rank.ranks)
    inside = np.exp(np.interp(np.log(size), np.log(SIZES), np.log(times)))
    longer = np.where(size > SIZES[-1], times[-1] * size / SIZES[-1], inside)
    return np.where(size < SIZES[0], 0.0, longer)


@lru_cache(REPLICAS)
def _library_times_s(cluster: Cluster, chips: int, ranks: int) -> FloatArray:
    """Times of all-reduces of ``SIZES`` over the first ranks of a cluster's first chips [s].

    Between two algorithms of the library a longer one may take less; here it takes as much.
    """
    group = Group(cluster, np.arange(chips), max(1, ranks // chips))
    calls = [CollectiveCall("all-reduce", group, int(size)) for size in SIZES]
    return np.maximum.accumulate([duration_ps(call) for call in calls]) / PS_PER_S


def exchange_s(rank: RankShare, tokens: FloatArray, family: str) -> FloatArray:
    """Return the time in which groups that divide the requests share one layer's tokens [s].

    All ranks gather the tokens of all groups, in the precision of the products, and sum their
    results in 16 bits, as TensorRT-LLM and SGLang do inside a server.
    """
    element = ELEMENT_BYTES[rank.experts.format.products] + 2.0
    moved = (1 - 1 / rank.attention_dp) * tokens * rank.model.hidden * element
    port = scale_up_bytes_per_s(rank.cluster.shape) * rank.catalogue.value(family, "peer_rate")
    return np.asarray(2 * rank.catalogue.value(family, "one_step_floor") + moved / port)


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
