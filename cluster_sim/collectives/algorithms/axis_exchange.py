"""All-to-all along one axis after the other: few large messages instead of many small ones.

Along each axis a rank sends to every other rank of its line all data whose destination has that
rank's coordinate on this axis, whatever its origin; after the last axis all data is at its
destination. The payload is divided among the cyclic orders of the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.collectives.chunks import Chunks, cut
from cluster_sim.collectives.group import Box, Group
from cluster_sim.collectives.messages import Channels, Messages, Table, no_messages
from topologies.arrays import IntArray

LISTED_RANKS = 256
"""Ranks up to which each message lists the chunks in it, one for each pair of ranks, so that the
exchange can be proven; beyond, a message is a single chunk."""


def axis_exchange(
    group: Group, filled: Box, size_bytes: int, orders: Sequence[list[int]] | None = None
) -> Messages:
    """Write an all-to-all axis by axis on the box that a group of one rank a chip fills.

    ``orders``: orders of the axes among which the payload is divided; by default all cyclic ones.
    """
    ranks, axes = group.ranks, len(filled.sizes)
    if ranks == 1:
        return no_messages(Chunks.table([], [], []), ranks)
    if orders is None:
        orders = [np.roll(np.arange(axes)[::-1], -turn).tolist() for turn in range(axes)]
    share = cut(cut(size_bytes, ranks), len(orders))
    plan = _Plan(filled, ranks, listed=ranks <= LISTED_RANKS)
    for turn, order in enumerate(orders):
        plan.add_order(order, share[:, turn])
    return plan.finish()


@dataclass(frozen=True, eq=False)
class _Stage:
    """A stage of one order of axes: the messages along an axis, or the joins before them."""

    order: list[int]  # axes in the order in which data travels along them
    done: int  # axes of that order along which the data has travelled before
    share: IntArray  # (ranks,): bytes that each rank has for each other rank in this order [B]
    join: bool = False  # joins wait and move nothing

    @property
    def axes_before(self) -> list[int]:
        """Axes along which the data has travelled before."""
        return self.order[: self.done]

    @property
    def axes_after(self) -> list[int]:
        """Axes along which the data still travels after these messages."""
        return self.order[self.done if self.join else self.done + 1 :]


class _Plan:
    """Messages of all orders while they are written; content is numbered through the orders."""

    def __init__(self, box: Box, ranks: int, *, listed: bool) -> None:
        self.ranks, self.sizes, self.listed = ranks, box.sizes, listed
        self.place = np.empty((ranks, len(box.sizes)), np.int64)  # coordinates of each rank
        self.place[box.chip_at] = np.stack(np.unravel_index(np.arange(ranks), box.sizes), axis=1)
        self.rank_at = box.chip_at.reshape(box.sizes)
        self.table = Table.empty()
        rank = np.arange(ranks, dtype=np.int32)
        self.src, self.dst, self.channels = [rank], [rank], ranks  # to itself, for joins
        self.bytes: list[IntArray] = []
        self.content: list[IntArray] = []
        self.shares: list[IntArray] = []
        self.filled = 0  # entries of content, or chunks, so far
        self.orders = 0

    def add_order(self, order: list[int], share: IntArray) -> None:
        """Add the stages of an order of axes, with ``share`` bytes of each rank for each other."""
        for number in range(len(order)):
            self._add_axis(order, number, share)
            if number + 1 < len(order):
                self._add_joins(order, number + 1, share)
        self.shares.append(share)
        self.orders += 1

    def _add_axis(self, order: list[int], number: int, share: IntArray) -> None:
        """Add the messages along an axis: each rank sends to every other rank of its line."""
        axis = order[number]
        width = self.sizes[axis] - 1
        step = np.arange(1, width + 1)[:, None]
        target = np.broadcast_to(self.place, (width, *self.place.shape)).copy()
        target[:, :, axis] = (target[:, :, axis] + step) % self.sizes[axis]
        peer = self.rank_at[tuple(np.moveaxis(target, -1, 0))]
        channel = self.channels + np.arange(peer.size, dtype=np.int32)
        self.src.append(np.tile(np.arange(self.ranks, dtype=np.int32), width))
        self.dst.append(peer.ravel().astype(np.int32))
        self.channels += peer.size
        # A message leads to the join of its receiver, which stands behind all messages.
        joins = self.table.count + width * self.ranks
        is_last = number + 1 == len(order)
        edges = np.empty((peer.size, 0), np.int32) if is_last else (joins + peer).reshape(-1, 1)
        ends = np.tile(self.place, (width, 1)), target.reshape(-1, len(order))
        self._add(_Stage(order, number, share), edges, channel, ends)

    def _add_joins(self, order: list[int], number: int, share: IntArray) -> None:
        """Add a join for each rank before the messages of axis ``order[number]``."""
        base = self.table.count + self.ranks + np.arange(self.ranks)[:, None]
        # A join leads to its rank's messages of the next axis. Data that does not move along that
        # axis goes on to the rank's join after it, which is the row behind those messages.
        targets = self.sizes[order[number]] - 1 + (number + 1 < len(order))
        onward = base + np.arange(targets) * self.ranks
        rank = np.arange(self.ranks, dtype=np.int32)
        joins = _Stage(order, number, share, join=True)
        self._add(joins, onward, rank, (self.place, self.place))

    def _add(
        self, stage: _Stage, edges: IntArray, channel: IntArray, ends: tuple[IntArray, IntArray]
    ) -> None:
        """Add messages between ``ends`` (coordinates), with the rows that wait for each."""
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
        """Return the chunks in each message, numbered ``origin * ranks + destination``, ascending.

        The origin may be anywhere along the axes travelled before, the destination along those
        after.
        """
        origins = self._along(src, stage.axes_before)[:, :, None]
        destinations = self._along(dst, stage.axes_after)[:, None, :]
        return np.sort((origins * self.ranks + destinations).reshape(len(src), -1), axis=1)

    def _along(self, place: IntArray, axes: list[int]) -> IntArray:
        """Return the ranks at all coordinates along some axes from each place, (rows, ranks)."""
        index = [
            np.arange(size).reshape(-1, *[1] * (len(self.sizes) - 1 - axis))
            if axis in axes
            else place[:, axis].reshape(-1, *[1] * len(self.sizes))
            for axis, size in enumerate(self.sizes)
        ]
        return self.rank_at[tuple(index)].reshape(len(place), -1)

    def _bytes(self, dst: IntArray, stage: _Stage) -> IntArray:
        """Return the bytes of each message, counted without listing its content."""
        after = stage.axes_after
        grid = stage.share[self.rank_at].sum(axis=tuple(after), keepdims=True)
        place = tuple(0 if axis in after else dst[:, axis] for axis in range(len(self.sizes)))
        origins = int(np.prod([self.sizes[axis] for axis in stage.axes_before], dtype=np.int64))
        return np.asarray(np.broadcast_to(grid[place], len(dst)) * origins)

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
        return self.table.messages(channels, chunks, self.ranks)
