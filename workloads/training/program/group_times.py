"""Time and memory traffic of a communication of one group of ranks."""

from __future__ import annotations

from functools import cache

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group, hbm_bytes
from cluster_sim.collectives.duration.duration import duration_ps
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster

LOCAL_ACCESSES = 2
"""Memory accesses for each byte that ranks of one chip send each other: a write and a read."""


def exchange_ps(cluster: Cluster, chips: IntArray, op: str, size_bytes: int) -> int:
    """Time of one communication of the ranks on these chips [ps], see :func:`group_ps`."""
    return group_ps(group_of(cluster, chips), op, size_bytes)


def group_ps(group: Group, op: str, size_bytes: int) -> int:
    """Time of one communication of a group [ps], simulated by itself on an idle fabric.

    A send from one chip to another takes as long as a permutation of the same size.
    """
    if len(group.chips) == 1 and not _copies_within_chip(group):
        return _local_ps(group.cluster, size_bytes)
    kind = "permute" if op == "send" else op
    return max(1, duration_ps(CollectiveCall(kind, group, size_bytes)))


def group_bytes(group: Group, op: str, size_bytes: int) -> int:
    """Bytes that one rank's part of a communication reads and writes in memory [B]."""
    if len(group.chips) == 1:
        return LOCAL_ACCESSES * size_bytes
    return hbm_bytes(CollectiveCall(op, group, size_bytes)) // group.ranks


def group_of(cluster: Cluster, chips: IntArray) -> Group:
    """Return the group of ranks on these chips; a chip is listed once for each of its ranks."""
    if len(chips) == 1 or (np.diff(chips) > 0).all():
        return Group(cluster, chips, 1)
    _, first, per_chip = np.unique(chips, return_index=True, return_counts=True)
    return Group(cluster, chips[np.sort(first)], int(per_chip.max()))


def _copies_within_chip(group: Group) -> bool:
    """Return whether the catalogue says how fast ranks of one chip receive from each other."""
    catalogue = group.cluster.catalogue
    stated = catalogue is not None and catalogue.has(group.cluster.chip, "collective_copy")
    return stated and group.ranks > 1


@cache
def _local_ps(cluster: Cluster, size_bytes: int) -> int:
    """Time of a communication between ranks of one chip: a write to its memory and a read [ps]."""
    if cluster.catalogue is None:
        return 1
    rate = cluster.catalogue.value(cluster.chip, "hbm_bandwidth")
    return max(1, round(LOCAL_ACCESSES * size_bytes / rate * 10**12))
