"""Mesh collectives: every rank sends to every other at once, in few steps over shared links."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import (
    Algorithm,
    each_byte_arrives_once,
    suits_every_group,
)
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.chunks import EVERY, Chunks, cut
from cluster_sim.collectives.messages import Channels, Messages, no_messages, one_chunk_messages
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.schedule.table import Edges
from topologies.arrays import IntArray


def mesh(call: CollectiveCall) -> Messages:
    """Write an all-reduce, all-gather or reduce-scatter by direct exchange of shards.

    An all-reduce sends each part of a shard to its owner, and the sums to all ranks, with a join on
    every rank between them.
    """
    ranks, reduces, gathers = call.ranks, call.reduces, call.gathers
    rank = np.arange(ranks, dtype=np.int32)
    chunks = Chunks.table(
        cut(call.size_bytes, ranks),
        source=EVERY if reduces else rank,
        target=EVERY if gathers else rank,
    )
    if ranks == 1:
        return no_messages(chunks, ranks)
    src, dst, channels = _pairs(ranks)
    channel = ranks + np.arange(len(src), dtype=np.int32)
    blocks: list[tuple[IntArray, IntArray, bool, int]] = []  # channel, chunk, reduce, step
    if reduces:
        blocks.append((channel, dst, True, 0))
    if reduces and gathers:
        blocks.append((rank, rank, False, 0))
    if gathers:
        blocks.append((channel, src, False, int(reduces)))
    return one_chunk_messages(
        channel=np.concatenate([block[0] for block in blocks]),
        first=np.concatenate([block[1] for block in blocks]),
        reduce=np.concatenate([np.full(len(block[0]), block[2]) for block in blocks]),
        step=np.concatenate([np.full(len(block[0]), block[3]) for block in blocks]),
        edges=_two_phases(ranks, dst)
        if len(blocks) == 3
        else Edges.from_pairs(len(channel), [], []),
        channels=channels,
        chunks=chunks,
        ranks=ranks,
    )


def single_step_mesh(ranks: int, size_bytes: int) -> Messages:
    """Write an all-reduce in which every rank sends its whole buffer to every other: one step."""
    chunks = Chunks.table([size_bytes], EVERY, EVERY)
    if ranks == 1:
        return no_messages(chunks, ranks)
    src, _, channels = _pairs(ranks)
    return one_chunk_messages(
        channel=ranks + np.arange(len(src), dtype=np.int32),
        first=np.zeros(len(src), np.int32),
        reduce=True,
        edges=Edges.from_pairs(len(src), [], []),
        channels=channels,
        chunks=chunks,
        ranks=ranks,
    )


def mesh_broadcast(ranks: int, size_bytes: int) -> Messages:
    """Write a broadcast in one step: rank 0 sends the whole buffer to each other rank."""
    chunks = Chunks.table([size_bytes], 0, EVERY)
    if ranks == 1:
        return no_messages(chunks, ranks)
    dst = np.arange(1, ranks, dtype=np.int32)
    return one_chunk_messages(
        channel=dst - 1,
        first=np.zeros(ranks - 1, np.int32),
        edges=Edges.from_pairs(ranks - 1, [], []),
        channels=Channels.table(np.zeros(ranks - 1, np.int32), dst),
        chunks=chunks,
        ranks=ranks,
    )


def _pairs(ranks: int) -> tuple[IntArray, IntArray, Channels]:
    """Return source, destination and channels of all pairs; first come the channels for joins."""
    rank = np.arange(ranks, dtype=np.int32)
    dst = (rank + np.arange(1, ranks, dtype=np.int32)[:, None]) % np.int32(ranks)
    src = np.broadcast_to(rank, dst.shape).ravel()
    channels = Channels.table(np.append(rank, src), np.append(rank, dst.ravel()))
    return src, dst.ravel(), channels


def _two_phases(ranks: int, dst: IntArray) -> Edges:
    """Return edges from the first phase to the receivers' joins, and from these to the second."""
    pairs = len(dst)
    second = pairs + ranks + np.arange(pairs, dtype=np.int32).reshape(ranks - 1, ranks)
    ptr = np.concatenate(
        [
            np.arange(pairs, dtype=np.int64),
            pairs + np.arange(ranks, dtype=np.int64) * (ranks - 1),
            np.full(pairs + 1, 2 * pairs, np.int64),
        ]
    )
    targets = np.concatenate([pairs + dst, second.T.ravel()]).astype(np.int32)
    return Edges(ptr, targets, np.broadcast_to(np.int64(0), len(targets)))


def _messages(call: CollectiveCall, costs: CommunicationCosts) -> Messages:
    if call.kind == "broadcast":
        return mesh_broadcast(call.ranks, call.size_bytes)
    return mesh(call)


def _message_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    ranks = call.ranks
    if ranks == 1:
        return 0
    if call.kind == "broadcast":
        return ranks - 1
    joins = ranks * (call.ways - 1)
    return call.ways * ranks * (ranks - 1) + joins


def _rounds(call: CollectiveCall, costs: CommunicationCosts) -> int:
    return call.ways if call.ranks > 1 else 0


def _whole_buffers(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    """Count memory accesses if each rank receives the whole buffer of every other rank."""
    return Fraction(call.ranks * (call.ranks - 1) * costs.reduce_accesses)


MESH = Algorithm(
    name="mesh",
    summary="every shard straight to its owner, and back to all",
    kinds=(*RING_KINDS, "broadcast"),
    suits=suits_every_group,
    messages=_messages,
    message_count=_message_count,
    rounds=_rounds,
    memory_accesses=each_byte_arrives_once,
    crosses_links=True,
)
SINGLE_STEP_MESH = Algorithm(
    name="single-step-mesh",
    summary="the whole buffer to everybody",
    kinds=("all-reduce",),
    suits=suits_every_group,
    messages=lambda call, costs: single_step_mesh(call.ranks, call.size_bytes),
    message_count=lambda call, costs: call.ranks * (call.ranks - 1),
    rounds=lambda call, costs: int(call.ranks > 1),
    memory_accesses=_whole_buffers,
    crosses_links=True,
)
