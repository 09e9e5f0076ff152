"""A table to which an algorithm appends messages, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cluster_sim.collectives.chunks import Chunks
from cluster_sim.collectives.messages import Channels, Messages
from cluster_sim.schedule.table import Edges
from topologies.arrays import IntArray

COLUMNS = ("channel", "first", "count", "reduce", "step", "priority")
"""Columns of a table, see :class:`~cluster_sim.collectives.messages.Messages`."""


@dataclass(eq=False)
class Table:
    """Blocks of messages, in the order in which they were added.

    ``columns``: blocks of each column.
    ``edges`` (messages of a block, edges of each): rows that wait for each message.
    ``count``: number of rows so far.
    """

    columns: dict[str, list[IntArray]]
    edges: list[IntArray]
    count: int = 0

    @classmethod
    def empty(cls) -> Table:
        """Return a table without rows."""
        return cls({name: [] for name in COLUMNS}, [])

    def add(self, edges: IntArray | Sequence[IntArray], **columns: IntArray) -> None:
        """Append a block of messages.

        ``edges`` (messages, edges of each): rows that wait for each message. ``**columns``: the
        columns of :data:`COLUMNS`, of any shape.
        """
        self.edges += [edges] if isinstance(edges, np.ndarray) else edges
        for name, values in columns.items():
            self.columns[name].append(np.ravel(values).astype(np.int32, copy=False))
        self.count += columns["channel"].size

    def messages(self, channels: Channels, chunks: Chunks, ranks: int) -> Messages:
        """Return all blocks as one table of messages."""
        columns: dict[str, Any] = {
            name: np.concatenate(blocks) for name, blocks in self.columns.items()
        }
        columns["reduce"] = columns["reduce"].astype(np.bool_)
        return Messages(
            **columns,
            edges=_edges(self.edges, self.count),
            channels=channels,
            chunks=chunks,
            ranks=ranks,
        )


def _edges(blocks: Sequence[IntArray], count: int) -> Edges:
    """Return the edges of ``count`` messages from blocks (messages, edges of each) of targets."""
    degrees = np.concatenate([np.full(len(block), block.shape[1]) for block in blocks])
    ptr = np.zeros(count + 1, np.int64)
    np.cumsum(degrees, out=ptr[1:])
    dst = np.concatenate([block.ravel() for block in blocks])
    return Edges(ptr, dst, np.broadcast_to(np.int64(0), len(dst)))
