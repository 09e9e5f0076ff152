"""What a collective reads and writes in the memories of its chips, in closed form.

Every byte that arrives at a rank is read and written some times, as the vendor counts for rings and
for pairs of ranks that share what one of them received (:mod:`cluster_sim.wire`).
"""

from __future__ import annotations

from fractions import Fraction

from cluster_sim.collectives.algorithms import chosen
from cluster_sim.collectives.group import Group, box
from cluster_sim.collectives.nccl import covers
from cluster_sim.collectives.timing import duration_ps
from cluster_sim.instants import PS_PER_S
from cluster_sim.wire import Wire, wire


def hbm_bytes(op: str, group: Group, size_bytes: int, algorithm: str = "auto") -> int:
    """Bytes read and written in the memories of all chips of a group [B].

    None where no number of accesses is known: on plain shapes and NVIDIA's machines.

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
    >>> from topologies.machines import cluster
    >>> hbm_bytes("all-gather", whole(cluster("trn2.48xlarge")), 2**20, "ring") == 2 * 15 * 2**20
    True
    """
    costs = wire(group.cluster)
    if not costs.hbm_bytes_per_s or (algorithm == "auto" and covers(group.cluster)):
        return 0
    name = chosen(op, group, size_bytes, algorithm)
    return int(_accesses(op, group, name, costs) * size_bytes)


def hbm_bytes_per_s(op: str, group: Group, size_bytes: int, algorithm: str = "auto") -> int:
    """Mean rate at which a collective draws on the memory of each chip while it runs [B/s].

    Its bytes over its chips and over :func:`cluster_sim.collectives.duration_ps`.
    """
    moved = hbm_bytes(op, group, size_bytes, algorithm)
    if not moved:
        return 0
    lasts = duration_ps(op, group, size_bytes, algorithm) * len(group.chips)
    return moved * PS_PER_S // lasts


def _accesses(op: str, group: Group, algorithm: str, costs: Wire) -> Fraction:
    """Accesses in all memories for each byte of the buffer."""
    ranks, copy, added = group.ranks, costs.copy_accesses, costs.reduce_accesses
    if ranks == 1:
        return Fraction(0)
    if algorithm == "single-step-mesh":
        return Fraction(ranks * (ranks - 1) * added)
    if op == "permute":
        return Fraction(ranks * copy)
    if op == "all-to-all" and algorithm == "torus":
        return _axis_by_axis(group) * copy
    if algorithm == "kangaring":
        pairs = Fraction(ranks // 2)
        fused = (costs.fused_copy_accesses, costs.fused_reduce_accesses)
        gather, scatter = (
            pairs * inside + (pairs - 1) * across
            for inside, across in zip(fused, (copy, added), strict=True)
        )
    else:
        gather, scatter = Fraction((ranks - 1) * copy), Fraction((ranks - 1) * added)
    if op == "all-reduce":
        return gather + scatter
    return scatter if op == "reduce-scatter" else gather


def _axis_by_axis(group: Group) -> Fraction:
    """Buffers that an exchange along one axis after the other stores, of all ranks."""
    found = box(group)
    sizes = found.sizes if found is not None else ()
    return group.ranks * sum((Fraction(size - 1, size) for size in sizes), Fraction(0))
