"""Broadcasts from rank 0 of a group, and permutes, which send each rank's buffer to the next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_sim.collectives.algorithms.cycles import Cycles
from cluster_sim.collectives.chunks import EVERY, Chunks, cut, share
from cluster_sim.collectives.messages import Channels, Messages, no_messages, one_chunk_messages
from cluster_sim.schedule.table import Edges
from topologies.arrays import IntArray


def chain_broadcast(cycles: Cycles, size_bytes: int, slices: int) -> Messages:
    """Write a broadcast from rank 0 along cycles, slice after slice, each cycle with its share."""
    count, ranks = cycles.order.shape
    start = np.argmax(cycles.order == 0, axis=1)
    order = np.stack([np.roll(cycle, -by) for cycle, by in zip(cycles.order, start, strict=True)])
    sizes = np.concatenate([cut(int(part), slices) for part in share(size_bytes, cycles.weight)])
    chunks = Chunks.table(sizes, 0, EVERY)
    if ranks == 1:
        return no_messages(chunks, ranks)
    parts = count * slices
    chunk = np.broadcast_to(np.arange(parts, dtype=np.int32)[:, None], (parts, ranks - 1))
    channel = np.repeat(np.arange(count * (ranks - 1)).reshape(count, -1), slices, axis=0)
    row = np.arange(parts * (ranks - 1)).reshape(parts, ranks - 1)
    slice_ = np.tile(np.arange(slices, dtype=np.int32), count)[:, None]
    hop = np.arange(ranks - 1, dtype=np.int32)
    messages = one_chunk_messages(
        channel=channel,
        first=chunk,
        step=hop + slice_,
        edges=Edges.from_pairs(row.size, row[:, :-1].ravel(), row[:, 1:].ravel()),
        channels=Channels.table(order[:, :-1], order[:, 1:]),
        chunks=chunks,
        ranks=ranks,
    )
    # Earlier slices go first where they meet later ones on a link.
    return replace(messages, priority=np.broadcast_to(slice_, chunk.shape).ravel())


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


def permute(ranks: int, size_bytes: int) -> Messages:
    """Write a permute: each rank sends its buffer to the next, the last to the first."""
    src = np.arange(ranks, dtype=np.int32)
    dst = (src + 1) % np.int32(ranks)
    chunks = Chunks.table(np.full(ranks, size_bytes), src, dst)
    if ranks == 1:
        return no_messages(chunks, ranks)
    return one_chunk_messages(
        channel=src,
        first=src,
        edges=Edges.from_pairs(ranks, [], []),
        channels=Channels.table(src, dst),
        chunks=chunks,
        ranks=ranks,
    )
