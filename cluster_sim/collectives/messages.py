"""Messages between ranks: what an algorithm writes, before links and costs are known.

Messages of a table carry chunks of the buffer over channels, with edges from arrivals to starts. A
chunk states what the collective must achieve with it, so that one proof serves all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule.table import Edges
from topologies.support.arrays import BoolArray, IntArray, pointers
from topologies.support.errors import InputError

EVERY = -1  # as a source, every rank of the group contributes; as a target, every rank gets it


@dataclass(frozen=True, eq=False)
class Chunks:
    """Chunks of buffers; a message has ``first … first + count - 1``, or these of a list."""

    size_bytes: IntArray
    source: IntArray  # rank that holds the chunk at first; EVERY where it is the sum of all ranks'
    target: IntArray  # rank that must hold the chunk in the end, or EVERY
    group: IntArray  # replica group that the chunk belongs to
    content: IntArray | None = None
    is_tracked: bool = True  # messages state which chunks they carry, so that they can be proven

    def __len__(self) -> int:
        return len(self.size_bytes)

    @classmethod
    def table(
        cls, size_bytes: npt.ArrayLike, source: npt.ArrayLike, target: npt.ArrayLike
    ) -> Chunks:
        """Make the chunks of one group; one value in place of a column holds for all of them."""
        size = np.ascontiguousarray(np.ravel(np.asarray(size_bytes, np.int64)))

        def column(values: npt.ArrayLike) -> IntArray:
            array = np.asarray(values, np.int32)
            return np.full(len(size), array) if array.ndim == 0 else np.ravel(array)

        return cls(size, column(source), column(target), np.zeros(len(size), np.int32))

    def listed_bytes(self) -> IntArray:
        """Return the bytes of each entry of ``content``, else of each chunk, int64 (entries,)."""
        return self.size_bytes if self.content is None else self.size_bytes[self.content]

    def offsets(self) -> IntArray:
        """Return the bytes before each of these entries, and of all, int64 (entries + 1,)."""
        return pointers(self.listed_bytes())


def cut(size_bytes: npt.ArrayLike, parts: int) -> IntArray:
    """Cut sizes into parts that differ by at most one byte, int64 (…, parts)."""
    whole, rest = np.divmod(np.asarray(size_bytes, np.int64), parts)
    ends = np.multiply.outer(rest, np.arange(parts + 1, dtype=np.int64)) // parts
    return np.asarray(whole[..., None] + np.diff(ends, axis=-1), np.int64)


def share(size_bytes: npt.ArrayLike, weights: npt.ArrayLike) -> IntArray:
    """Divide sizes by integer weights into shares that sum to the size, int64 (…, weights).

    >>> share(100, [2, 1, 1]).tolist()
    [50, 25, 25]
    """
    weight = np.asarray(weights, np.int64)
    total = int(weight.sum())
    whole, rest = np.divmod(np.asarray(size_bytes, np.int64), total)
    before = pointers(weight)
    ends = np.multiply.outer(whole, before) + np.multiply.outer(rest, before) // total
    return np.asarray(np.diff(ends, axis=-1), np.int64)


def shards(size_bytes: int, ranks: int, weights: npt.ArrayLike) -> IntArray:
    """Divide each rank's shard of a buffer among weighted parts, int64 (parts, ranks)."""
    return share(cut(size_bytes, ranks), weights).T


@dataclass(frozen=True, eq=False)
class Channels:
    """Directed pairs of ranks, over ``link[ptr[c]:ptr[c + 1]]`` or the fabric's route."""

    src: IntArray
    dst: IntArray
    ptr: IntArray | None = None
    link: IntArray | None = None
    fused: BoolArray | None = None  # joins two ranks that share what one received: fewer accesses

    def __len__(self) -> int:
        return len(self.src)

    @property
    def joins(self) -> BoolArray:
        """Channels from a rank to itself over no link: their messages move nothing, and wait."""
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
        """Make channels from arrays of ranks of the same, arbitrary shape."""
        sources = np.ravel(np.asarray(src, np.int32))
        targets = np.ravel(np.asarray(dst, np.int32))
        return cls(sources, targets, ptr, link)


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages in program order; columns are arrays, one element for each message."""

    channel: IntArray  # int32 (messages,), as are the columns that follow
    first: IntArray  # a message carries the chunks first … first + count - 1 of Chunks
    count: IntArray
    reduce: BoolArray  # whether it is added to what the receiver holds, or replaces that
    step: IntArray  # round of the collective
    priority: IntArray  # order on a contended link, smallest first
    edges: Edges  # from the arrival of one message to the start of another, without lags
    channels: Channels
    chunks: Chunks
    ranks: int
    # Directed cycles that run at once, each of which the DMA engines of a chip serve by itself.
    cycles: int = 1
    # Whether every message waits for a handshake with its receiver, and not the first ones only.
    handshakes: bool = False

    def __len__(self) -> int:
        return len(self.channel)

    def size_bytes(self) -> IntArray:
        """Return the bytes of each message, 0 for a join, int64 (messages,)."""
        size = np.empty(len(self), np.int64)
        if not len(self.count) or self.count.max() == self.count.min() == 1:
            np.take(self.chunks.listed_bytes(), self.first, out=size, mode="clip")
        else:
            offsets = self.chunks.offsets()
            np.take(offsets, self.first + self.count, out=size, mode="clip")
            size -= offsets[self.first]
        joins = self.channels.joins
        if joins.any():
            size[joins[self.channel]] = 0
        return size


def one_chunk_messages(
    *,
    channel: npt.ArrayLike,
    first: npt.ArrayLike,
    channels: Channels,
    chunks: Chunks,
    ranks: int,
    edges: Edges | None = None,
    reduce: npt.ArrayLike = False,
    step: npt.ArrayLike = 0,
) -> Messages:
    """Make a table of messages of one chunk each; columns broadcast to ``channel``."""
    shape = np.shape(channel)

    def column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> Any:
        """Column with one value for each message."""
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
        edges=edges or Edges.from_pairs(int(np.prod(shape)), [], []),
        channels=channels,
        chunks=chunks,
        ranks=ranks,
    )


def no_messages(chunks: Chunks, ranks: int) -> Messages:
    """Return the messages of a collective in which nothing has to move."""
    none = np.empty(0, np.int32)
    return one_chunk_messages(
        channel=none, first=none, channels=Channels.table(none, none), chunks=chunks, ranks=ranks
    )


def check_messages(messages: Messages, ranks: int, algorithm: str) -> None:
    """Refuse messages that refer to ranks, channels, chunks or messages that do not exist."""
    # The compiled loops check no index, and numpy takes a negative one as counted from the end.
    channels, chunks = messages.channels, len(messages.chunks.listed_bytes())
    if messages.ranks != ranks:
        raise InputError(
            f"algorithm {algorithm} writes messages of {messages.ranks} ranks, and the call has "
            f"{ranks}. Correct its ranks."
        )
    columns = [
        ("the source of channel", channels.src, "rank", ranks),
        ("the peer of channel", channels.dst, "rank", ranks),
        ("the channel of message", messages.channel, "channel", len(channels)),
        ("the first chunk of message", messages.first, "chunk", chunks),
        ("the target of edge", messages.edges.dst, "message", len(messages)),
    ]
    if int(messages.first.max(initial=0)) + int(messages.count.max(initial=0)) > chunks:
        last = np.maximum(messages.first + messages.count - 1, 0)  # joins may carry no chunk
        columns.append(("the last chunk of message", last, "chunk", chunks))
    for row, values, thing, limit in columns:
        if len(values) and not (values.min() >= 0 and values.max() < limit):
            wrong = int(np.argmax((values < 0) | (values >= limit)))
            there = f"{thing}s 0 to {limit - 1}" if limit else f"no {thing}s"
            raise InputError(
                f"algorithm {algorithm}: {row} {wrong} is {thing} {values[wrong]}, and there are "
                f"{there}. Correct its messages."
            )


def side_by_side(tables: Sequence[Messages]) -> Messages:
    """Merge the messages of several groups; later ranks, chunks and channels get higher numbers."""
    if len(tables) == 1:
        return tables[0]
    if any(table.chunks.content is not None for table in tables):
        tables = [_with_content(table) for table in tables]
    first_channel = _starts([len(table.channels) for table in tables])
    first_chunk = _starts([len(table.chunks.listed_bytes()) for table in tables])
    first_rank = _starts([table.ranks for table in tables])

    def joined(name: str, offset: Sequence[int] | None = None) -> Any:
        """One column of all tables, with the offset of each added."""
        columns = [getattr(table, name) for table in tables]
        if offset is not None:
            columns = [column + by for column, by in zip(columns, offset, strict=True)]
        return np.concatenate(columns)

    return Messages(
        channel=joined("channel", first_channel).astype(np.int32),
        first=joined("first", first_chunk).astype(np.int32),
        count=joined("count"),
        reduce=joined("reduce"),
        step=joined("step"),
        priority=joined("priority"),
        edges=Edges.concat([table.edges for table in tables]),
        channels=_join_channels([table.channels for table in tables], first_rank),
        chunks=_join_chunks([table.chunks for table in tables], first_rank),
        ranks=sum(table.ranks for table in tables),
        cycles=max(table.cycles for table in tables),
        handshakes=any(table.handshakes for table in tables),
    )


def _starts(lengths: Sequence[int]) -> list[int]:
    """Return the number of rows in all tables before each."""
    return list(itertools.accumulate(lengths[:-1], initial=0))


def _join_channels(tables: Sequence[Channels], first_rank: Sequence[int]) -> Channels:
    pairs = list(zip(tables, first_rank, strict=True))
    src = np.concatenate([table.src + offset for table, offset in pairs])
    dst = np.concatenate([table.dst + offset for table, offset in pairs])
    links = [table.link for table in tables if table.link is not None]
    fused = [table.fused for table in tables if table.fused is not None]
    if not links:
        channels = Channels.table(src, dst)
        return replace(channels, fused=np.concatenate(fused)) if fused else channels
    hops = np.concatenate([np.diff(table.ptr) for table in tables if table.ptr is not None])
    return Channels.table(src, dst, pointers(hops), np.concatenate(links))


def _join_chunks(tables: Sequence[Chunks], first_rank: Sequence[int]) -> Chunks:
    pairs = list(zip(tables, first_rank, strict=True))

    def ranks(name: str) -> IntArray:
        columns = [(getattr(table, name), offset) for table, offset in pairs]
        # EVERY is negative and stays as it is.
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
    first_chunk = np.cumsum([0, *(len(table) for table in tables)]).tolist()
    return np.concatenate([column + by for column, by in zip(lists, first_chunk, strict=False)])


def _with_content(table: Messages) -> Messages:
    """Return the same messages with a list of chunks, which all tables that are merged need."""
    chunks = table.chunks
    content = np.arange(len(chunks)) if chunks.content is None else chunks.content
    return replace(table, chunks=replace(chunks, content=content))


COLUMNS = ("channel", "first", "count", "reduce", "step", "priority")
"""Columns of a table, see :class:`~cluster_sim.collectives.messages.Messages`."""


@dataclass(eq=False)
class Table:
    """Blocks of messages, in the order in which they were added."""

    columns: dict[str, list[IntArray]]
    edges: list[IntArray]  # (messages of a block, edges of each): rows that wait for each message
    count: int = 0

    @classmethod
    def empty(cls) -> Table:
        """Return a table without rows."""
        return cls({name: [] for name in COLUMNS}, [])

    def add(self, edges: IntArray | Sequence[IntArray], **columns: IntArray) -> None:
        """Append a block of messages, from the columns of :data:`COLUMNS` in any shape."""
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
            **columns, edges=_edges(self.edges), channels=channels, chunks=chunks, ranks=ranks
        )


def _edges(blocks: Sequence[IntArray]) -> Edges:
    """Return the edges of messages from blocks (messages, edges of each) of targets."""
    degrees = np.concatenate([np.full(len(block), block.shape[1]) for block in blocks])
    dst = np.concatenate([block.ravel() for block in blocks])
    return Edges(pointers(degrees), dst, np.broadcast_to(np.int64(0), len(dst)))
