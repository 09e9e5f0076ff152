"""Recursive halving and doubling: stages of pairs, one for each dimension of a hypercube."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm, each_byte_arrives_once
from cluster_sim.collectives.algorithms.neuron_runtime import waits_for_receivers
from cluster_sim.collectives.algorithms.stages import (
    Leg,
    Part,
    lengths_of,
    staged,
    staged_by_few,
    staged_count,
)
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.chunks import EVERY, Chunks
from cluster_sim.collectives.few_ranks import (
    FEW,
    has_thin_uplinks,
    schedule_of_few,
    spans_many_domains,
    with_one_latency,
)
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.messages import Channels, Messages, one_chunk_messages
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.schedule.table import Edges
from cluster_sim.trace.trace import run
from topologies.arrays import IntArray


def halving_doubling(call: CollectiveCall, slices: int) -> Messages:
    """Write an all-reduce, all-gather or reduce-scatter on a power of two of ranks.

    A ring of four is a 2-cube, so a 4x4 torus is a 4-cube and every exchange is between neighbours.
    There are as many parts as dimensions, each of which begins with another one.
    """
    messages = staged(call, cube_parts(call.group), slices)
    return replace(messages, handshakes=waits_for_receivers(call.group, call.size_bytes))


def cube_parts(group: Group) -> list[Part]:
    """Return parts with a stage of pairs for each dimension, first those inside chips."""
    rank_at = cube(group)
    dimensions = group.ranks.bit_length() - 1
    inside = (group.ranks_per_chip & -group.ranks_per_chip).bit_length() - 1  # factors of 2
    pairs = [_pairs(rank_at, bit) for bit in range(dimensions)]
    outer, inner = pairs[inside:], pairs[:inside]
    return [Part((*inner, *outer[turn:], *outer[:turn])) for turn in range(max(1, len(outer)))]


def is_cube(group: Group) -> bool:
    """Return whether the number of ranks is a power of two."""
    return group.ranks & (group.ranks - 1) == 0 and group.ranks > 1


def cube(group: Group) -> IntArray:
    """Return the rank at each corner of the hypercube, neighbours side by side by the Gray code."""
    filled = group.filled_box
    powers = filled is not None and all(size & (size - 1) == 0 for size in filled.sizes)
    if filled is None or not powers:
        chip_at: IntArray = np.arange(len(group.chips))
    else:
        grid: IntArray = filled.chip_at.reshape(filled.sizes)
        for axis, size in enumerate(filled.sizes):
            corner = np.arange(size)
            place = np.empty(size, np.int64)
            place[corner ^ (corner >> 1)] = corner
            grid = np.take(grid, place, axis=axis)
        chip_at = grid.ravel()
    ranks_per_chip = group.ranks_per_chip
    return np.ravel(chip_at[:, None] * ranks_per_chip + np.arange(ranks_per_chip))


def _pairs(rank_at: IntArray, bit: int) -> IntArray:
    """Return the pairs of ranks at corners that differ in one dimension, int32 (ranks / 2, 2)."""
    corner = np.arange(len(rank_at))
    low = corner[corner >> bit & 1 == 0]
    return np.stack([rank_at[low], rank_at[low | 1 << bit]], axis=1).astype(np.int32)


def tree_broadcast(rank_at: IntArray, size_bytes: int) -> Messages:
    """Write a broadcast by recursive doubling; ``rank_at`` is at each corner of a hypercube."""
    ranks = len(rank_at)
    # Number the corners from that of rank 0 by exclusive or, which leaves neighbours neighbours.
    rank_at = rank_at[np.arange(ranks) ^ int(np.argmax(rank_at == 0))]
    dimensions = ranks.bit_length() - 1
    src, dst, step = [], [], []
    for bit in range(dimensions):
        corner = np.arange(1 << bit)
        src.append(corner)
        dst.append(corner | 1 << bit)
        step.append(np.full(len(corner), bit))
    sources, targets = np.concatenate(src), np.concatenate(dst)
    # Corner c receives by message c - 1, and sends on afterwards.
    from_arrival = np.flatnonzero(sources > 0)
    return one_chunk_messages(
        channel=np.arange(ranks - 1),
        first=np.zeros(ranks - 1, np.int32),
        step=np.concatenate(step),
        edges=Edges.from_pairs(ranks - 1, sources[from_arrival] - 1, from_arrival),
        channels=Channels.table(rank_at[sources], rank_at[targets]),
        chunks=Chunks.table([size_bytes], 0, EVERY),
        ranks=ranks,
    )


def _messages(call: CollectiveCall, costs: CommunicationCosts) -> Messages:
    if call.kind == "broadcast":
        return tree_broadcast(cube(call.group), call.size_bytes)
    return halving_doubling(call, costs.slices)


def _message_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    if call.kind == "broadcast":
        return call.ranks - 1
    return staged_count(call, lengths_of(cube_parts(call.group)), costs.slices)


def _rounds(call: CollectiveCall, costs: CommunicationCosts) -> int:
    return call.ways * (call.ranks.bit_length() - 1)


def _one_rank_a_domain_ps(call: CollectiveCall, costs: CommunicationCosts) -> int | None:
    """Simulate one pair for one rank in each of many domains [ps]; None for others."""
    group = call.group
    if not spans_many_domains(call) or len(group.domains) != group.ranks:
        return None
    if has_thin_uplinks(group, costs):
        return None
    dimensions = group.ranks.bit_length() - 1
    level = with_one_latency(group, group.chips, 1)
    legs = [Leg(np.arange(FEW, dtype=np.int32)[None, :], 2, 1)] * dimensions
    messages = staged_by_few(call, FEW, [(legs, 1)] * dimensions, costs.slices)
    return run(
        schedule_of_few(messages, level, level.chips_per_domain * np.arange(FEW), costs)
    ).total_ps


RDH = Algorithm(
    name="rdh",
    summary="recursive halving and doubling; 4x4 is a 4-cube, 4x4x4 a 6-cube",
    kinds=(*RING_KINDS, "broadcast"),
    suits=lambda call: is_cube(call.group),
    messages=_messages,
    message_count=_message_count,
    rounds=_rounds,
    memory_accesses=each_byte_arrives_once,
    stands_for=_one_rank_a_domain_ps,
)
