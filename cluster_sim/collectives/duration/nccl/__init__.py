"""Collectives on NVIDIA's machines: the load on ports, the protocol that NCCL picks, the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topologies.clusters.cluster import Cluster

NAME = "nccl"  # name that auto resolves to on machines whose collectives take NCCL's measured times


def covers(cluster: Cluster) -> bool:
    """Return whether the collectives of a cluster take NCCL's measured times."""
    if cluster.plain or cluster.catalogue is None or not cluster.chip:
        return False
    from cluster_sim.collectives.duration.nccl.constants import has_constants

    return has_constants(cluster)


def reduces_in_switch(cluster: Cluster) -> bool:
    """Return whether switches can sum, so that an all-reduce may be faster than its two halves."""
    if not covers(cluster):
        return False
    from cluster_sim.collectives.duration.nccl.constants import SWITCH, constants

    return SWITCH[0] in constants(cluster).chip
