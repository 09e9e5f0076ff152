"""KangaRing, the pair-alternating ring of the Neuron runtime.

First the two ranks of each pair exchange halves. Then rings run in which one rank of every pair
takes part while the other rests; for the other half of the payload the roles are exchanged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm, pairs_share
from cluster_sim.collectives.algorithms.cycles import all_rings
from cluster_sim.collectives.algorithms.neuron_runtime import has_pairs, waits_for_receivers
from cluster_sim.collectives.algorithms.stages import Part, lengths_of, staged, staged_count
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts


def kangaring(call: CollectiveCall, slices: int) -> Messages:
    """Write an all-reduce, all-gather or reduce-scatter by pairs whose ranks drive in turn."""
    parts = kangaring_parts(call.group)
    return replace(
        fuse_pairs(staged(call, parts, slices)),
        cycles=len(parts),
        handshakes=waits_for_receivers(call.group, call.size_bytes),
    )


def kangaring_parts(group: Group) -> list[Part]:
    """Return parts of two stages: the pairs, then a ring of first ranks and one of second."""
    ranks_per_chip = group.ranks_per_chip
    pairs = np.arange(group.ranks, dtype=np.int32).reshape(-1, 2)
    chips = all_rings(Group(group.cluster, group.chips))
    first_of_pairs = np.arange(ranks_per_chip // 2) * 2
    parts = []
    for order, weight in zip(chips.order, chips.weight.tolist(), strict=True):
        primaries = np.ravel(order[:, None] * ranks_per_chip + first_of_pairs)
        rings = np.stack([primaries, primaries + 1]).astype(np.int32)
        parts.append(Part((pairs, rings), weight))
    return parts


def fuse_pairs(messages: Messages) -> Messages:
    """Mark the channels inside pairs, whose ranks share what one of them received from outside."""
    ends = messages.channels
    return replace(messages, channels=replace(ends, fused=ends.src // 2 == ends.dst // 2))


def _rounds(call: CollectiveCall, costs: CommunicationCosts) -> int:
    return call.ways * call.ranks // 2


def _message_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    return staged_count(call, lengths_of(kangaring_parts(call.group)), costs.slices)


KANGARING = Algorithm(
    name="kangaring",
    summary="pairs exchange halves, then rings in which one of each pair drives",
    kinds=RING_KINDS,
    suits=lambda call: has_pairs(call.group),
    messages=lambda call, costs: kangaring(call, costs.slices),
    message_count=_message_count,
    rounds=_rounds,
    memory_accesses=pairs_share,
)
