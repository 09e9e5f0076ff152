"""Collectives on NVIDIA's machines: load on ports, protocol that NCCL picks, and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topologies.clusters.cluster import Cluster

NAME = "nccl"
"""Name of ``auto`` on machines whose collectives are NCCL's, as it was measured."""


def covers(cluster: Cluster) -> bool:
    """Return whether the collectives of a cluster take NCCL's measured times."""
    if cluster.plain or cluster.catalogue is None or not cluster.chip:
        return False
    from cluster_sim.collectives.duration.nccl.constants import has_constants

    return has_constants(cluster)
