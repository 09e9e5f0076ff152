"""Hierarchical collectives over several scale-up domains.

A reduce-scatter runs inside each domain, then between the chips at the same place of all domains,
so that the slower scale-out fabric carries only shards; an all-gather runs the stages backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.domains import (
    cycles_inside,
    drives_pairs_inside,
    inner_parts,
    is_symmetric,
    over_domains,
    radices,
    rank_table,
)
from cluster_sim.collectives.algorithms.hierarchical_few import hierarchical_ps
from cluster_sim.collectives.algorithms.kangaring import fuse_pairs
from cluster_sim.collectives.algorithms.memory_accesses import each_byte_arrives_once, pairs_share
from cluster_sim.collectives.algorithms.slices import stage_slices
from cluster_sim.collectives.algorithms.stages import (
    Part,
    lengths_of,
    staged,
    staged_count,
    staged_rounds,
)
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts
from topologies.arrays import IntArray


def hierarchical(call: CollectiveCall, slices: int) -> Messages:
    """Write an all-reduce, all-gather or reduce-scatter of a group symmetric over its domains.

    Between domains each chip exchanges the shard that it owns inside its domain, in the stages
    that :func:`radices` gives.
    """
    ranks = rank_table(call.group)
    if ranks is None:
        raise ValueError("the group is not symmetric over its domains")
    across = _lines_across(ranks, radices(call.group))
    parts = [
        Part((*(over_domains(lines, ranks) for lines in part.lines), *across), part.weight)
        for part in inner_parts(call)
    ]
    messages = replace(staged(call, parts, slices), cycles=cycles_inside(call))
    return fuse_pairs(messages) if drives_pairs_inside(call) else messages


def _lines_across(ranks: IntArray, sizes: Sequence[int]) -> list[IntArray]:
    """Return the lines of each stage between domains, int32 (lines, domains of a line) each.

    Domains are numbered with digits in the radices ``sizes``, the first the least significant. A
    line of a stage joins the ranks whose domains differ in the digit of that stage alone.
    """
    digits = ranks.reshape(*sizes[::-1], -1)
    return [
        np.moveaxis(digits, axis, -1).reshape(-1, digits.shape[axis]).astype(np.int32)
        for axis in reversed(range(len(sizes)))
    ]


def _lengths(call: CollectiveCall) -> list[list[int]]:
    """Return the ranks in a line of each stage of each part, inside and then between domains."""
    across = radices(call.group)
    return [[*inside, *across] for inside in lengths_of(inner_parts(call))]


def _message_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    return staged_count(call, _lengths(call), stage_slices(call, costs))


def _memory_accesses(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    shared = drives_pairs_inside(call)
    return pairs_share(call, costs) if shared else each_byte_arrives_once(call, costs)


HIERARCHICAL = Algorithm(
    name="hierarchical",
    summary="reduce-scatter inside each domain, all-reduce between equal places, all-gather inside",
    kinds=RING_KINDS,
    suits=lambda call: is_symmetric(call.group),
    messages=lambda call, costs: hierarchical(call, stage_slices(call, costs)),
    message_count=_message_count,
    rounds=lambda call, costs: staged_rounds(call, _lengths(call)),
    memory_accesses=_memory_accesses,
    stands_for=hierarchical_ps,
)
