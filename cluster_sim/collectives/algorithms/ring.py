"""Ring collectives over one or several cycles of the same ranks at once.

In round t the rank at position p of a cycle sends block ``p - 1 - t`` (reduce-scatter and
all-reduce) or ``p - t`` (all-gather) to the rank at position p + 1; the block it receives is the
one it sends in the next round, which is the only dependency.
"""

from __future__ import annotations

import numpy as np

from cluster_sim.collectives.algorithms.cycles import Cycles
from cluster_sim.collectives.chunks import EVERY, Chunks, shards
from cluster_sim.collectives.messages import Channels, Messages, no_sends, sends
from cluster_sim.schedule.table import Edges, IntArray

RING_OPS = ("all-reduce", "all-gather", "reduce-scatter")


def ring(op: str, cycles: Cycles, size_bytes: int, slices: int = 1) -> Messages:
    """All-reduce, all-gather or reduce-scatter over weighted directed cycles of the same ranks.

    Parameters
    ----------
    op : str
        One of ``RING_OPS``.
    cycles : Cycles
        Each carries its share of the payload; all run at once.
    size_bytes : int
        Whole buffer, as in nccl-tests [B].
    slices : int
        Each cycle's share is cut into as many slices, which follow one another.

    Notes
    -----
    One cycle of n ranks takes 2 (n - 1) rounds for an all-reduce and n - 1 for the others, of
    size / n bytes each (Patarasuk & Yuan, 2009).
    """
    ranks = cycles.order.shape[1]
    order = np.repeat(cycles.order, slices, axis=0)
    weights = np.repeat(cycles.weight, slices)
    pieces = np.take_along_axis(shards(size_bytes, ranks, weights), order, axis=1)
    reduces, gathers = op != "all-gather", op != "reduce-scatter"
    chunks = Chunks.table(
        pieces, source=EVERY if reduces else order, target=EVERY if gathers else order
    )
    rounds = (ranks - 1) * (reduces + gathers)
    return ring_rounds(cycles, slices, chunks, rounds, reduces=reduces)


def ring_rounds(
    cycles: Cycles, slices: int, chunks: Chunks, rounds: int, *, reduces: bool
) -> Messages:
    """Rounds of rings whose chunks are numbered by cycle, slice and position.

    Parameters
    ----------
    cycles : Cycles
    slices : int
        Of each cycle, one after the other.
    chunks : Chunks
        (cycles * slices * ranks).
    rounds : int
    reduces : bool
        Whether the first ``ranks - 1`` rounds add up.
    """
    count, ranks = cycles.order.shape
    parts = count * slices
    if rounds == 0:
        return no_sends(chunks, ranks)
    channels = Channels.table(cycles.order, np.roll(cycles.order, -1, axis=1))
    round_ = np.arange(rounds, dtype=np.int32)[:, None, None]
    channel = np.repeat(np.arange(count * ranks, dtype=np.int32).reshape(count, ranks), slices, 0)
    return sends(
        channel=np.broadcast_to(channel, (rounds, parts, ranks)),
        first=_blocks(rounds, parts, ranks, reduces),
        reduce=round_ < (ranks - 1) * reduces,
        step=round_,
        edges=_next_round(rounds, parts, ranks),
        channels=channels,
        chunks=chunks,
        ranks=ranks,
    )


def _blocks(rounds: int, parts: int, ranks: int, reduces: bool) -> IntArray:
    """Chunk that each position sends in each round, int32 (rounds, parts, ranks)."""
    at = np.arange(ranks, dtype=np.int32) - np.int32(reduces)
    block = (at - np.arange(rounds, dtype=np.int32)[:, None]) % np.int32(ranks)
    base = np.arange(parts, dtype=np.int32)[:, None] * np.int32(ranks)
    return block[:, None, :] + base


def _next_round(rounds: int, parts: int, ranks: int) -> Edges:
    """Position p in round t → position p + 1 in round t + 1, in every part."""
    a_round = parts * ranks
    ops, edges = rounds * a_round, (rounds - 1) * a_round
    position = np.arange(a_round, dtype=np.int32).reshape(parts, ranks)
    following = np.roll(position, -1, axis=1).ravel()
    starts = np.arange(1, rounds, dtype=np.int32)[:, None] * np.int32(a_round)
    ptr = np.minimum(np.arange(ops + 1, dtype=np.int64), edges)
    return Edges(ptr, np.ravel(starts + following), np.broadcast_to(np.int64(0), edges))
