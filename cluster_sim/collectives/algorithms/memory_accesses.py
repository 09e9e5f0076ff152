"""Reads and writes of a collective in the memories of its chips, for each byte of the buffer.

The vendor states the accesses for a chunk between two ranks, in rings and in pairs of ranks that
share what one of them received (:mod:`cluster_sim.hardware.communication_costs`); how many bytes
arrive at which rank depends on the algorithm.
"""

from __future__ import annotations

from fractions import Fraction

from cluster_sim.collectives.algorithms.neuron_runtime import has_pairs
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.hardware.communication_costs import CommunicationCosts


def each_byte_arrives_once(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    """Count the accesses if every rank receives each byte that it lacks once, and nothing else.

    This holds for rings, halving and doubling, meshes, stages along axes, chains and trees of a
    broadcast, and direct all-to-alls. A permute moves a whole buffer to each rank.
    """
    ranks = call.ranks
    if ranks == 1:
        return Fraction(0)
    if call.kind == "permute":
        return Fraction(ranks * costs.copy_accesses)
    gather, scatter = (ranks - 1) * costs.copy_accesses, (ranks - 1) * costs.reduce_accesses
    if call.kind == "all-reduce":
        return Fraction(gather + scatter)
    return Fraction(scatter if call.kind == "reduce-scatter" else gather)


def pairs_share(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    """Count the accesses if the two ranks of each pair share what one of them received.

    >>> from cluster_sim.collectives.group import Group
    >>> from cluster_sim.hardware.communication_costs import communication_costs
    >>> from topologies.clusters.names import cluster
    >>> chip = Group(cluster("trn2.48xlarge"), [0], 4)
    >>> call, costs = CollectiveCall("all-gather", chip, 1024), communication_costs(chip.cluster)
    >>> int(each_byte_arrives_once(call, costs)), int(pairs_share(call, costs))
    (6, 4)
    """
    pairs, arrivals = call.ranks // 2, call.ranks // 2 - 1
    gather = Fraction(pairs * costs.fused_copy_accesses + arrivals * costs.copy_accesses)
    scatter = Fraction(pairs * costs.fused_reduce_accesses + arrivals * costs.reduce_accesses)
    return gather * call.gathers + scatter * call.reduces


def fewest_accesses(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    """Count the accesses of the algorithm with the fewest: pairs that share, if there are pairs."""
    if call.kind in RING_KINDS and has_pairs(call.group):
        return pairs_share(call, costs)
    return each_byte_arrives_once(call, costs)
