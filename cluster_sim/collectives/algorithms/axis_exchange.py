"""All-to-all along one axis after the other: few large messages instead of many small ones.

Along each axis a rank exchanges with every other rank of its line all that has to change to that
rank's coordinate, whoever it came from; after the last axis everything is where it belongs. The
payload is shared out over the cyclic orders of the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cluster_sim.collectives.algorithms.message_table import Table, gathered
from cluster_sim.collectives.chunks import Chunks, cut
from cluster_sim.collectives.group import Box, Group
from cluster_sim.collectives.messages import Channels, Messages, no_sends
from cluster_sim.schedule.table import IntArray

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


class _Plan:
    """Messages of all orders while they are gathered; content is numbered through the orders."""

    def __init__(self, found: Box, ranks: int, *, listed: bool) -> None:
        self.ranks, self.sizes, self.listed = ranks, found.sizes, listed
        self.at = np.empty((ranks, len(found.sizes)), np.int64)
        self.at[found.chip_at] = np.stack(np.unravel_index(np.arange(ranks), found.sizes), axis=1)
        self.rank_at = found.chip_at.reshape(found.sizes)
        self.table = Table.empty()
        own = np.arange(ranks, dtype=np.int32)
        self.src, self.dst, self.channels = [own], [own], ranks
        self.bytes: list[IntArray] = []
        self.content: list[IntArray] = []
        self.shares: list[IntArray] = []
        self.filled = 0
        self.orders = 0

    def add_order(self, order: list[int], share: IntArray) -> None:
        """Messages of one order of axes; ``share`` are the bytes that each rank has for each."""
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
            sources = np.tile(self.at, (width, 1))
            self._add(edges, channel, sources, there.reshape(-1, len(order)), order, number, share)
            if not last:
                following = self.sizes[order[number + 1]] - 1
                base = joins + self.ranks + np.arange(self.ranks)[:, None]
                # What does not move along the next axis goes on to the join after it.
                targets = following + (number + 2 < len(order))
                onward = base + np.arange(targets) * self.ranks
                own = np.arange(self.ranks, dtype=np.int32)
                self._add(onward, own, self.at, self.at, order, number + 1, share, join=True)
        self.shares.append(share)
        self.orders += 1

    def _add(
        self,
        edges: IntArray,
        channel: IntArray,
        src: IntArray,
        dst: IntArray,
        order: list[int],
        done: int,
        share: IntArray,
        *,
        join: bool = False,
    ) -> None:
        """Messages whose data came from along the axes done and still goes along those to come."""
        came, to_come = order[:done], order[done:] if join else order[done + 1 :]
        width = int(np.prod([self.sizes[axis] for axis in (*came, *to_come)], dtype=np.int64))
        if self.listed:
            ids = self._pairs(src, dst, came, to_come)
            self.content.append(np.ravel(ids + self.orders * self.ranks**2))
            width = ids.shape[1]
        else:
            self.bytes.append(
                np.zeros(len(channel), np.int64) if join else self._bytes(dst, came, to_come, share)
            )
            width = 1
        self.table.add(
            edges.astype(np.int32),
            channel=channel,
            first=self.filled + np.arange(len(channel)) * width,
            count=np.full(len(channel), width),
            reduce=np.zeros(len(channel), np.int32),
            step=np.full(len(channel), done - join),
            priority=np.zeros(len(channel), np.int32),
        )
        self.filled += len(channel) * width

    def _pairs(self, src: IntArray, dst: IntArray, came: list[int], to_come: list[int]) -> IntArray:
        """Numbers ``source * ranks + target`` of the chunks in each message, ascending."""
        sources = self._free(src, came)[:, :, None]
        return np.sort(
            (sources * self.ranks + self._free(dst, to_come)[:, None, :]).reshape(len(src), -1),
            axis=1,
        )

    def _free(self, at: IntArray, axes: list[int]) -> IntArray:
        """Ranks at all coordinates along some axes, the others as they are, (rows, ranks)."""
        picked = [np.arange(size) if axis in axes else None for axis, size in enumerate(self.sizes)]
        index = [
            at[:, axis].reshape(-1, *[1] * len(self.sizes))
            if one is None
            else one.reshape(-1, *[1] * (len(self.sizes) - 1 - axis))
            for axis, one in enumerate(picked)
        ]
        return self.rank_at[tuple(index)].reshape(len(at), -1)

    def _bytes(
        self, dst: IntArray, came: list[int], to_come: list[int], share: IntArray
    ) -> IntArray:
        """Bytes of each message without listing what is in it."""
        grid = share[self.rank_at].sum(axis=tuple(to_come), keepdims=True)
        place = tuple(0 if axis in to_come else dst[:, axis] for axis in range(len(self.sizes)))
        sources = int(np.prod([self.sizes[axis] for axis in came], dtype=np.int64))
        return np.asarray(np.broadcast_to(grid[place], len(dst)) * sources)

    def finish(self) -> Messages:
        """The sends, with the chunks that they speak of."""
        channels = Channels.table(np.concatenate(self.src), np.concatenate(self.dst))
        if self.listed:
            pair = np.tile(np.arange(self.ranks**2), self.orders)
            sizes = np.concatenate([np.tile(share, self.ranks) for share in self.shares])
            chunks = Chunks.table(sizes, pair // self.ranks, pair % self.ranks)
            chunks = replace(chunks, content=np.concatenate(self.content))
        else:
            chunks = replace(Chunks.table(np.concatenate(self.bytes), 0, 0), known=False)
        return gathered(self.table, channels, chunks, self.ranks)
