"""What a collective draws on the memories of its chips: bytes, and their mean rate."""

from __future__ import annotations

from cluster_sim.collectives.algorithms.hierarchical import drives_pairs_inside
from cluster_sim.collectives.algorithms.memory_accesses import PAIRED, accesses
from cluster_sim.collectives.algorithms.registry import chosen
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.duration.nccl.times import covers
from cluster_sim.collectives.group import Group
from cluster_sim.hardware.communication_costs import wire
from cluster_sim.schedule.picoseconds import PS_PER_S


def hbm_bytes(op: str, group: Group, size_bytes: int, algorithm: str = "auto") -> int:
    """Bytes read and written in the memories of all chips of a group [B].

    0 where no number of accesses is known: on plain shapes and NVIDIA's machines.

    Parameters
    ----------
    op : str
    group : Group
    size_bytes : int
        As in nccl-tests [B].
    algorithm : str

    Examples
    --------
    A byte of an all-gather is read and written once at each of the other ranks:

    >>> from cluster_sim.collectives import whole
    >>> from topologies.clusters.names import cluster
    >>> hbm_bytes("all-gather", whole(cluster("trn2.48xlarge")), 2**20, "ring") == 2 * 15 * 2**20
    True
    """
    costs = wire(group.cluster)
    if not costs.hbm_bytes_per_s or (algorithm == "auto" and covers(group.cluster)):
        return 0
    name = chosen(op, group, size_bytes, algorithm)
    if name == "hierarchical" and drives_pairs_inside(group, size_bytes):
        name = PAIRED
    return int(accesses(op, group, name, costs) * size_bytes)


def hbm_bytes_per_s(op: str, group: Group, size_bytes: int, algorithm: str = "auto") -> int:
    """Mean rate at which a collective draws on the memory of each chip while it runs [B/s].

    Its bytes over its chips and over :func:`cluster_sim.collectives.duration_ps`.
    """
    moved = hbm_bytes(op, group, size_bytes, algorithm)
    if not moved:
        return 0
    lasts = duration_ps(op, group, size_bytes, algorithm) * len(group.chips)
    return moved * PS_PER_S // lasts
