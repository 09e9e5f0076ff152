"""All-to-all along one axis after the other: few large messages instead of many small ones.

Along each axis a rank exchanges with every other rank of its line all that has to change to that
rank's coordinate, whoever it came from; after the last axis everything is where it belongs. The
payload is shared out over the cyclic orders of the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.collectives.algorithms.message_table import Table, gathered
from cluster_sim.collectives.chunks import Chunks, cut
from cluster_sim.collectives.group import Box, Group
from cluster_sim.collectives.messages import Channels, Messages, no_sends
from topologies.arrays import IntArray

LISTED_RANKS = 256
"""Ranks up to which messages list the chunks in them, so that the exchange can be proven; beyond,
each message is one chunk."""


def axis_exchange(
    group: Group, filled: Box, size_bytes: int, orders: Sequence[list[int]] | None = None
) -> Messages:
    """Write an all-to-all axis by axis on the box that a group fills.

    Parameters
    ----------
    group : Group
        One rank a chip.
    filled : Box
    size_bytes : int
        Whole buffer of one rank [B].
    orders : sequence of list of int, optional
        Orders of the axes over which the payload is shared; by default all cyclic ones.
    """
    ranks, axes = group.ranks, len(filled.sizes)
    if ranks == 1:
        return no_sends(Chunks.table([], [], []), ranks)
    if orders is None:
        orders = [np.roll(np.arange(axes)[::-1], -turn).tolist() for turn in range(axes)]
    share = cut(cut(size_bytes, ranks), len(orders))
    plan = _Plan(filled, ranks, listed=ranks <= LISTED_RANKS)
    for turn, order in enumerate(orders):
        plan.add_order(order, share[:, turn])
    return plan.finish()


@dataclass(frozen=True, eq=False)
class _Stage:
    """A stretch of one order of axes: the messages along an axis, or the joins before it.

    Attributes
    ----------
    order : list of int
        Axes in the order in which they are travelled.
    done : int
        Axes of that order that lie behind.
    share : int array (ranks,)
        Bytes that each rank has for every other in this order [B].
    join : bool
        Whether these are joins, which wait and move nothing.
    """

    order: list[int]
    done: int
    share: IntArray
    join: bool = False

    @property
    def came(self) -> list[int]:
        """Axes along which the data has travelled."""
        return self.order[: self.done]

    @property
    def to_come(self) -> list[int]:
        """Axes along which the data still travels after these messages."""
        return self.order[self.done if self.join else self.done + 1 :]


class _Plan:
    """Messages of all orders while they are gathered; content is numbered through the orders."""

    def __init__(self, box: Box, ranks: int, *, listed: bool) -> None:
        self.ranks, self.sizes, self.listed = ranks, box.sizes, listed
        self.at = np.empty((ranks, len(box.sizes)), np.int64)
        self.at[box.chip_at] = np.stack(np.unravel_index(np.arange(ranks), box.sizes), axis=1)
        self.rank_at = box.chip_at.reshape(box.sizes)
        self.table = Table.empty()
        rank = np.arange(ranks, dtype=np.int32)
        self.src, self.dst, self.channels = [rank], [rank], ranks
        self.bytes: list[IntArray] = []
        self.content: list[IntArray] = []
        self.shares: list[IntArray] = []
        self.filled = 0
        self.orders = 0

    def add_order(self, order: list[int], share: IntArray) -> None:
        """Add the messages of one order of axes; ``share`` is what each rank has for each [B]."""
        for number, axis in enumerate(order):
            last = number + 1 == len(order)
            width = self.sizes[axis] - 1
            start = self.table.count
            joins = start + width * self.ranks
            step = np.arange(1, width + 1)[:, None]
            there = np.broadcast_to(self.at, (width, *self.at.shape)).copy()
            there[:, :, axis] = (there[:, :, axis] + step) % self.sizes[axis]
            peer = self.rank_at[tuple(np.moveaxis(there, -1, 0))]
            channel = self.channels + np.arange(peer.size, dtype=np.int32)
            self.src.append(np.tile(np.arange(self.ranks, dtype=np.int32), width))
            self.dst.append(peer.ravel().astype(np.int32))
            self.channels += peer.size
            edges = np.empty((peer.size, 0), np.int32) if last else (joins + peer).reshape(-1, 1)
            ends = np.tile(self.at, (width, 1)), there.reshape(-1, len(order))
            self._add(_Stage(order, number, share), edges, channel, ends)
            if not last:
                following = self.sizes[order[number + 1]] - 1
                base = joins + self.ranks + np.arange(self.ranks)[:, None]
                # What does not move along the next axis goes on to the join after it.
                targets = following + (number + 2 < len(order))
                onward = base + np.arange(targets) * self.ranks
                rank = np.arange(self.ranks, dtype=np.int32)
                joins_before = _Stage(order, number + 1, share, join=True)
                self._add(joins_before, onward, rank, (self.at, self.at))
        self.shares.append(share)
        self.orders += 1

    def _add(
        self,
        stage: _Stage,
        edges: IntArray,
        channel: IntArray,
        ends: tuple[IntArray, IntArray],
    ) -> None:
        """Add the messages of a stage; ``ends`` are coordinates of their sources and targets."""
        if self.listed:
            ids = self._pairs(*ends, stage)
            self.content.append(np.ravel(ids + self.orders * self.ranks**2))
            width = ids.shape[1]
        else:
            nothing = np.zeros(len(channel), np.int64)
            self.bytes.append(nothing if stage.join else self._bytes(ends[1], stage))
            width = 1
        self.table.add(
            edges.astype(np.int32),
            channel=channel,
            first=self.filled + np.arange(len(channel)) * width,
            count=np.full(len(channel), width),
            reduce=np.zeros(len(channel), np.int32),
            step=np.full(len(channel), stage.done - stage.join),
            priority=np.zeros(len(channel), np.int32),
        )
        self.filled += len(channel) * width

    def _pairs(self, src: IntArray, dst: IntArray, stage: _Stage) -> IntArray:
        """Numbers ``source * ranks + target`` of the chunks in each message, ascending."""
        sources = self._free(src, stage.came)[:, :, None]
        targets = self._free(dst, stage.to_come)[:, None, :]
        return np.sort((sources * self.ranks + targets).reshape(len(src), -1), axis=1)

    def _free(self, at: IntArray, axes: list[int]) -> IntArray:
        """Ranks at all coordinates along some axes, with the others unchanged, (rows, ranks)."""
        picked = [np.arange(size) if axis in axes else None for axis, size in enumerate(self.sizes)]
        index = [
            at[:, axis].reshape(-1, *[1] * len(self.sizes))
            if share is None
            else share.reshape(-1, *[1] * (len(self.sizes) - 1 - axis))
            for axis, share in enumerate(picked)
        ]
        return self.rank_at[tuple(index)].reshape(len(at), -1)

    def _bytes(self, dst: IntArray, stage: _Stage) -> IntArray:
        """Bytes of each message, counted without listing its content."""
        to_come = stage.to_come
        grid = stage.share[self.rank_at].sum(axis=tuple(to_come), keepdims=True)
        place = tuple(0 if axis in to_come else dst[:, axis] for axis in range(len(self.sizes)))
        sources = int(np.prod([self.sizes[axis] for axis in stage.came], dtype=np.int64))
        return np.asarray(np.broadcast_to(grid[place], len(dst)) * sources)

    def finish(self) -> Messages:
        """Return the messages of all orders, with the chunks that they carry."""
        channels = Channels.table(np.concatenate(self.src), np.concatenate(self.dst))
        if self.listed:
            pair = np.tile(np.arange(self.ranks**2), self.orders)
            sizes = np.concatenate([np.tile(share, self.ranks) for share in self.shares])
            chunks = Chunks.table(sizes, pair // self.ranks, pair % self.ranks)
            chunks = replace(chunks, content=np.concatenate(self.content))
        else:
            chunks = replace(Chunks.table(np.concatenate(self.bytes), 0, 0), is_tracked=False)
        return gathered(self.table, channels, chunks, self.ranks)
