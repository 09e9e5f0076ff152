"""Contributors to chunks as bitsets: what ranks hold at first, and must hold in the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.chunks import EVERY, Chunks
from topologies.arrays import IntArray


@dataclass(frozen=True, eq=False)
class Contributors:
    """Bits that stand for the contributions of ranks.

    Attributes
    ----------
    chunks : Chunks
    bit : int array (ranks,)
        Bit of each rank's contribution.
    size : int array (groups,)
        Ranks of each group.
    words : int
        Words of 64 bits in a bitset.
    """

    chunks: Chunks
    bit: IntArray
    size: IntArray
    words: int

    @classmethod
    def of(cls, chunks: Chunks, group_of_rank: IntArray) -> Contributors:
        """Give every rank of a group a bit; where nothing is summed, all share one bit."""
        order = np.argsort(group_of_rank, kind="stable")
        size = np.bincount(group_of_rank)
        bit = np.empty(len(group_of_rank), np.int64)
        bit[order] = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
        summed = (chunks.source == EVERY).any()
        widest = int(size.max(initial=1)) if summed else 1
        return cls(chunks, bit, size, (widest + 63) // 64)

    def at_first(self, rank: IntArray, chunk: IntArray) -> IntArray:
        """Return what a rank holds of a chunk at first, for each pair, as bitsets (rows, words)."""
        source = self.chunks.source[chunk]
        bits = np.where(source == EVERY, self.bit[rank], 0)
        rows = np.zeros((len(rank), self.words), np.uint64)
        holds = np.flatnonzero((source == EVERY) | (source == rank))
        rows[holds, bits[holds] // 64] = np.uint64(1) << (bits[holds] % 64).astype(np.uint64)
        return rows

    def full(self, chunk: IntArray) -> IntArray:
        """Return the number of contributions that each chunk must have in the end."""
        every = self.chunks.source[chunk] == EVERY
        return np.where(every, self.size[self.chunks.group[chunk]], 1)
