"""Memory traffic of a collective: bytes that it reads and writes, and their mean rate."""

from __future__ import annotations

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.registry import AUTO, choose_algorithm
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.schedule.picoseconds import PS_PER_S


def hbm_bytes(call: CollectiveCall, algorithm: str | Algorithm = AUTO) -> int:
    """Bytes read and written in the memories of all chips of a group [B]; 0 where not known.

    A byte of an all-gather is read and written once at each of the other ranks:

    >>> from cluster_sim.collectives import whole
    >>> from topologies.clusters.names import cluster
    >>> call = CollectiveCall("all-gather", whole(cluster("trn2.48xlarge")), 2**20)
    >>> hbm_bytes(call, "ring") == 2 * 15 * 2**20
    True
    """
    cluster = call.group.cluster
    costs = communication_costs(cluster)
    if not costs.hbm_bytes_per_s or (algorithm == AUTO and covers(cluster)):
        return 0
    return int(choose_algorithm(call, algorithm).memory_accesses(call, costs) * call.size_bytes)


def hbm_bytes_per_s(call: CollectiveCall, algorithm: str | Algorithm = AUTO) -> int:
    """Mean rate at which a collective draws on the memory of each chip while it runs [B/s]."""
    moved = hbm_bytes(call, algorithm)
    if not moved:
        return 0
    return moved * PS_PER_S // (duration_ps(call, algorithm) * len(call.group.chips))
