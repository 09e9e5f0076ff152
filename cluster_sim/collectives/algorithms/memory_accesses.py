"""How often a byte of a collective's buffer is read and written in the memories of its chips.

The vendor counts the accesses of a chunk and two ranks, for rings and for pairs of ranks that share
what one of them received (:mod:`cluster_sim.hardware.communication_costs`); what arrives where is
the algorithm's.
"""

from __future__ import annotations

from fractions import Fraction

from cluster_sim.collectives.algorithms.cube import has_pairs
from cluster_sim.collectives.algorithms.ring import RING_OPS
from cluster_sim.collectives.group import Group, box
from cluster_sim.hardware.communication_costs import CommunicationCosts

PAIRED = "kangaring"


def accesses(op: str, group: Group, algorithm: str, costs: CommunicationCosts) -> Fraction:
    """Accesses in all memories for each byte of the buffer.

    Parameters
    ----------
    op, algorithm : str
    group : Group
    costs : CommunicationCosts

    Examples
    --------
    >>> from cluster_sim.hardware.communication_costs import wire
    >>> from topologies.clusters.names import cluster
    >>> chip = Group(cluster("trn2.48xlarge"), [0], 4)
    >>> costs = wire(chip.cluster)
    >>> [int(accesses("all-gather", chip, name, costs)) for name in ("ring", "kangaring")]
    [6, 4]
    """
    ranks, copy, added = group.ranks, costs.copy_accesses, costs.reduce_accesses
    if ranks == 1:
        return Fraction(0)
    if algorithm == "single-step-mesh":
        return Fraction(ranks * (ranks - 1) * added)
    if op == "permute":
        return Fraction(ranks * copy)
    if op == "all-to-all" and algorithm == "torus":
        return _axis_by_axis(group) * copy
    fused = (0, 0)
    pairs, arrivals = 0, ranks - 1
    if algorithm == PAIRED:
        fused = (costs.fused_copy_accesses, costs.fused_reduce_accesses)
        pairs, arrivals = ranks // 2, ranks // 2 - 1
    gather = Fraction(pairs * fused[0] + arrivals * copy)
    scatter = Fraction(pairs * fused[1] + arrivals * added)
    if op == "all-reduce":
        return gather + scatter
    return scatter if op == "reduce-scatter" else gather


def fewest_accesses(op: str, group: Group, costs: CommunicationCosts) -> Fraction:
    """Of all algorithms, for each byte of the buffer: pairs that share, where there are pairs."""
    paired = op in RING_OPS and has_pairs(group)
    return accesses(op, group, PAIRED if paired else "", costs)


def _axis_by_axis(group: Group) -> Fraction:
    """Buffers that an exchange along one axis after the other stores, of all ranks."""
    found = box(group)
    sizes = found.sizes if found is not None else ()
    return group.ranks * sum((Fraction(size - 1, size) for size in sizes), Fraction(0))
