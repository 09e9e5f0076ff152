"""Messages: a collective between its algorithm and its ops.

An algorithm is a table of sends, each one message from rank to rank over a channel, with edges
from the arrival of one send to the start of another. How a channel runs over links, and what a
step costs to issue, is added afterwards (:mod:`cluster_sim.collectives.lowering.lower`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives.chunks import Chunks
from cluster_sim.schedule.table import Edges
from topologies.arrays import BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class Channels:
    """Directed pairs of ranks that a collective uses.

    Attributes
    ----------
    src, dst : int32 array (channels,)
        Ranks.
    ptr : int64 array (channels + 1,) or None
        Where given, channel c is routed over ``link[ptr[c]:ptr[c + 1]]``; else, and where that is
        empty, the fabric routes.
    link : int32 array or None
        Link numbers of the domain.
    fused : bool array (channels,) or None
        Channels within a pair of ranks of one chip that share what one of them received.
    """

    src: IntArray
    dst: IntArray
    ptr: IntArray | None = None
    link: IntArray | None = None
    fused: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.src)

    @property
    def joins(self) -> BoolArray:
        """Channels of a rank to itself that cross no link, bool (channels,)."""
        joins: BoolArray = self.src == self.dst
        if self.ptr is not None:
            joins &= np.diff(self.ptr) == 0
        return joins

    @classmethod
    def table(
        cls,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        ptr: IntArray | None = None,
        link: IntArray | None = None,
    ) -> Channels:
        """Channels from arrays of any one shape."""
        sources = np.ravel(np.asarray(src, np.int32))
        targets = np.ravel(np.asarray(dst, np.int32))
        return cls(sources, targets, ptr, link)


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages in program order; columns are arrays, one element a send.

    Attributes
    ----------
    channel : int32 array (sends,)
    first, count : int32 array (sends,)
        Chunks ``first … first + count - 1`` are sent.
    reduce : bool array (sends,)
        Added to what the receiver holds; else it replaces it.
    step, priority : int32 array (sends,)
        Round of the collective; order on a contended link, smallest first.
    edges : Edges
        Arrival of one send → start of another; lags are not used.
    channels : Channels
    chunks : Chunks
    ranks : int
    """

    channel: IntArray
    first: IntArray
    count: IntArray
    reduce: BoolArray
    step: IntArray
    priority: IntArray
    edges: Edges
    channels: Channels
    chunks: Chunks
    ranks: int

    def __len__(self) -> int:
        return len(self.channel)

    def size_bytes(self, out: IntArray | None = None) -> IntArray:
        """Bytes of each send, none for a rank's joins with itself, int64 (sends,)."""
        size = np.empty(len(self), np.int64) if out is None else out
        if not len(self.count) or self.count.max() == self.count.min() == 1:
            np.take(self.chunks.listed(), self.first, out=size, mode="clip")
        else:
            offsets = self.chunks.offsets()
            np.take(offsets, self.first + self.count, out=size, mode="clip")
            size -= offsets[self.first]
        joins = self.channels.joins
        if joins.any():
            size[joins[self.channel]] = 0
        return size


def sends(
    *,
    channel: npt.ArrayLike,
    first: npt.ArrayLike,
    edges: Edges,
    channels: Channels,
    chunks: Chunks,
    ranks: int,
    reduce: npt.ArrayLike = False,
    step: npt.ArrayLike = 0,
) -> Messages:
    """Make a table of messages of one chunk each; columns broadcast to the shape of ``channel``.

    Parameters
    ----------
    channel, first : int array (messages, in any shape)
        Channel of each message, and the chunk that it carries.
    edges : Edges
        Arrival of one message → start of another, numbered in the order of ``channel``.
    channels : Channels
    chunks : Chunks
    ranks : int
    reduce : bool array or bool, default False
        Whether a message is added to what its receiver holds.
    step : int array or int, default 0
        Round of the collective.
    """
    shape = np.shape(channel)

    def column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> Any:
        array = np.asarray(values, dtype)
        if array.ndim == 0:
            return np.broadcast_to(array, int(np.prod(shape)))  # one value takes no memory
        return np.ravel(np.broadcast_to(array, shape))

    return Messages(
        channel=column(channel, np.int32),
        first=column(first, np.int32),
        count=column(1, np.int32),
        reduce=column(reduce, np.bool_),
        step=column(step, np.int32),
        priority=column(0, np.int32),
        edges=edges,
        channels=channels,
        chunks=chunks,
        ranks=ranks,
    )


def no_sends(chunks: Chunks, ranks: int) -> Messages:
    """A collective in which nothing has to move."""
    none = np.empty(0, np.int32)
    return sends(
        channel=none,
        first=none,
        edges=Edges.from_pairs(0, none, none),
        channels=Channels.table(none, none),
        chunks=chunks,
        ranks=ranks,
    )


def side_by_side(tables: Sequence[Messages]) -> Messages:
    """Put several groups' collectives together: ranks, chunks and channels are numbered on."""
    if len(tables) == 1:
        return tables[0]
    if any(table.chunks.content is not None for table in tables):
        tables = [_listed(table) for table in tables]
    before = _Counts.before(tables)

    def joined(name: str, shift: IntArray | None = None) -> Any:
        columns = [getattr(table, name) for table in tables]
        if shift is not None:
            columns = [column + by for column, by in zip(columns, shift.tolist(), strict=True)]
        return np.concatenate(columns)

    return Messages(
        channel=joined("channel", before.channels).astype(np.int32),
        first=joined("first", before.chunks).astype(np.int32),
        count=joined("count"),
        reduce=joined("reduce"),
        step=joined("step"),
        priority=joined("priority"),
        edges=_join_edges([table.edges for table in tables], before.sends),
        channels=_join_channels([table.channels for table in tables], before.ranks),
        chunks=_join_chunks([table.chunks for table in tables], before.ranks),
        ranks=sum(table.ranks for table in tables),
    )


@dataclass(frozen=True, eq=False)
class _Counts:
    """Number of rows of each kind before each table, int64 (tables,)."""

    sends: IntArray
    channels: IntArray
    chunks: IntArray
    ranks: IntArray

    @classmethod
    def before(cls, tables: Sequence[Messages]) -> _Counts:
        """Count the rows of all tables that stand before each."""

        def starts(lengths: list[int]) -> IntArray:
            return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)

        return cls(
            starts([len(table) for table in tables]),
            starts([len(table.channels) for table in tables]),
            starts([len(table.chunks.listed()) for table in tables]),
            starts([table.ranks for table in tables]),
        )


def _join_edges(tables: Sequence[Edges], before: IntArray) -> Edges:
    shifts = before.tolist()
    edges_before = np.concatenate([[0], np.cumsum([len(table) for table in tables])]).tolist()
    ptr = [table.ptr[:-1] + shift for table, shift in zip(tables, edges_before, strict=False)]
    dst = [table.dst + shift for table, shift in zip(tables, shifts, strict=True)]
    return Edges(
        np.concatenate([*ptr, [edges_before[-1]]]).astype(np.int64),
        np.concatenate(dst).astype(np.int32),
        np.concatenate([table.lag_ps for table in tables]),
    )


def _join_channels(tables: Sequence[Channels], ranks_before: IntArray) -> Channels:
    shifts = ranks_before.tolist()
    pairs = list(zip(tables, shifts, strict=True))
    src = np.concatenate([table.src + shift for table, shift in pairs])
    dst = np.concatenate([table.dst + shift for table, shift in pairs])
    links = [table.link for table in tables if table.link is not None]
    fused = [table.fused for table in tables if table.fused is not None]
    if not links:
        channels = Channels.table(src, dst)
        return replace(channels, fused=np.concatenate(fused)) if fused else channels
    hops = np.concatenate([np.diff(table.ptr) for table in tables if table.ptr is not None])
    return Channels.table(src, dst, np.concatenate([[0], np.cumsum(hops)]), np.concatenate(links))


def _join_chunks(tables: Sequence[Chunks], ranks_before: IntArray) -> Chunks:
    pairs = list(zip(tables, ranks_before.tolist(), strict=True))

    def ranks(name: str) -> IntArray:
        columns = [(getattr(table, name), shift) for table, shift in pairs]
        return np.concatenate([np.where(column < 0, column, column + by) for column, by in columns])

    return Chunks(
        np.concatenate([table.size_bytes for table in tables]),
        ranks("source").astype(np.int32),
        ranks("target").astype(np.int32),
        np.repeat(np.arange(len(tables), dtype=np.int32), [len(table) for table in tables]),
        content=_join_content(tables),
        is_tracked=all(table.is_tracked for table in tables),
    )


def _join_content(tables: Sequence[Chunks]) -> IntArray | None:
    lists = [table.content for table in tables if table.content is not None]
    if not lists:
        return None
    before = np.cumsum([0, *(len(table) for table in tables)]).tolist()
    return np.concatenate([column + by for column, by in zip(lists, before, strict=False)])


def _listed(table: Messages) -> Messages:
    """Return the same messages with their chunks listed."""
    chunks = table.chunks
    content = np.arange(len(chunks)) if chunks.content is None else chunks.content
    return replace(table, chunks=replace(chunks, content=content))
