"""Multi-dimensional collectives: ring stages along one dimension after the other.

A reduce-scatter runs its stages from the first dimension to the last, each on what the one before
left; an all-gather runs them backwards; an all-reduce does both. The payload is shared out over
parts, each with an order of dimensions of its own, so that all dimensions are busy at once, and
each part is cut into slices that follow one another. Within a rank a stage begins when the one
before it has ended, which a join of the rank with itself marks; there is no barrier between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.collectives.algorithms.message_table import Table, gathered
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.chunks import EVERY, Chunks, shards, share
from cluster_sim.collectives.messages import Channels, Messages, no_sends
from topologies.arrays import IntArray

NO_LINK = -1


@dataclass(frozen=True, eq=False)
class Part:
    """A share of the payload and the dimensions that it is reduced along, in order.

    Attributes
    ----------
    lines : tuple of int32 array (lines, ranks of a line)
        For each stage the rings, as ranks in order; each stage's rings hold every rank once, and
        ranks of one ring agree in their places in all earlier stages.
    weight : int
        Share of the payload.
    """

    lines: tuple[IntArray, ...]
    weight: int = 1


@dataclass(frozen=True, eq=False)
class Leg:
    """A stage of which a few ranks stand for many that do the same at the same time.

    Attributes
    ----------
    lines : int32 array (lines, ranks of a line)
        The few, each in one line.
    length : int
        Ranks of a line that they stand for: blocks of the buffer, and rounds but for one.
    rounds : int
        Rounds that are run.
    link : int, optional
        Link of the domain over which a rank that stands for a whole line sends to itself.
    """

    lines: IntArray
    length: int
    rounds: int
    link: int | None = None


@dataclass(frozen=True, eq=False)
class _Stage:
    """One stage of one part, slices included.

    ``base`` is the first chunk of the part, ``low`` of each line's interval within the part,
    ``width`` the chunks of one block of it.
    """

    lines: IntArray
    low: IntArray
    width: int
    reduces: bool
    rounds: int
    base: int = 0
    link: int | None = None


def staged(call: CollectiveCall, parts: Sequence[Part], slices: int) -> Messages:
    """Write an all-reduce, all-gather or reduce-scatter in stages.

    Parameters
    ----------
    call : CollectiveCall
    parts : sequence of Part
    slices : int
        Slices of each part; a slice is the priority of its messages, so that early ones go ahead.
    """
    ranks, reduces, gathers = call.ranks, call.reduces, call.gathers
    places = [_places(part, ranks) for part in parts]
    weights = np.repeat([part.weight for part in parts], slices)
    pieces = shards(call.size_bytes, ranks, weights).reshape(len(parts), slices, ranks)
    owner = np.stack([np.argsort(place) for place in places])[:, None, :]
    owner = np.broadcast_to(owner, pieces.shape)
    chunks = Chunks.table(
        np.take_along_axis(pieces, owner, axis=2),
        source=EVERY if reduces else owner,
        target=EVERY if gathers else owner,
    )
    if ranks == 1:
        return no_sends(chunks, ranks)
    table = Table.empty()
    channels = _Channels(ranks)
    for number, part in enumerate(parts):
        down, up = _stages(part, ranks, number * slices * ranks)
        _add_part(table, channels, [*down] * reduces + [*up] * gathers, ranks, slices)
    return gathered(table, channels.table(), chunks, ranks)


def staged_by_few(
    call: CollectiveCall, ranks: int, parts: Sequence[tuple[Sequence[Leg], int]], slices: int
) -> Messages:
    """Write the stages of many ranks, all of which do the same, as messages of a few of them.

    Parameters
    ----------
    call : CollectiveCall
        The many's; blocks that differ by a byte all get the larger size.
    ranks : int
        The few.
    parts : sequence of (legs, weight)
        As :class:`Part`, with legs in place of lines.
    slices : int
    """
    pieces = share(call.size_bytes, np.repeat([weight for _, weight in parts], slices))
    table, channels = Table.empty(), _Channels(ranks)
    blocks: list[IntArray] = []
    for (legs, _), piece in zip(parts, pieces.reshape(-1, slices), strict=True):
        down, left = [], piece
        for leg in legs:
            left = -(-left // leg.length)
            low, base = np.zeros(len(leg.lines), np.int64), len(blocks) * slices * ranks
            down.append(_Stage(leg.lines, low, 1, True, leg.rounds, base, leg.link))
            blocks.append(left)
        up = [replace(stage, reduces=False) for stage in down[::-1]]
        _add_part(table, channels, down * call.reduces + up * call.gathers, ranks, slices)
    chunks = Chunks.table(np.repeat(np.concatenate(blocks), ranks), EVERY, EVERY)
    return gathered(table, channels.table(), replace(chunks, is_tracked=False), ranks)


def staged_count(call: CollectiveCall, parts: Sequence[Sequence[int]], slices: int) -> int:
    """Count the rows of :func:`staged` without building them.

    Parameters
    ----------
    call : CollectiveCall
    parts : sequence of sequence of int
        Ranks of a line of each stage, for each part.
    slices : int
    """
    rows = 0
    for lengths in parts:
        stages = [length for length in lengths if length > 1]
        if stages:
            joins = call.ways * len(stages) - 1
            rows += call.ways * (sum(stages) - len(stages)) + joins
    return rows * slices * call.ranks


def staged_rounds(call: CollectiveCall, parts: Sequence[Sequence[int]]) -> int:
    """Rounds of :func:`staged`, one after the other; ``parts`` as in :func:`staged_count`."""
    return call.ways * max(sum(lengths) - len(lengths) for lengths in parts)


def lengths_of(parts: Sequence[Part]) -> list[list[int]]:
    """Ranks of a line of each stage, for each part."""
    return [[lines.shape[1] for lines in part.lines] for part in parts]


def ring_stage(lines: IntArray, chunks: Chunks, *, reduces: bool) -> Messages:
    """One stage by itself: a reduce-scatter or all-gather in every ring at once.

    Parameters
    ----------
    lines : int32 array (ways, lines, ranks of a line)
        Every way holds every rank once.
    chunks : Chunks
        One block for each way, line and place.
    reduces : bool
        Reduce-scatter, or all-gather.
    """
    ways, count, size = lines.shape
    ranks = count * size
    if size == 1:
        return no_sends(chunks, ranks)
    rows = np.ascontiguousarray(lines).reshape(ways * count, size)
    stage = _Stage(rows, np.arange(ways * count) * size, 1, reduces, size - 1)
    table, channels = Table.empty(), _Channels(ranks)
    _add_stage(
        table,
        channels.of(rows),
        stage,
        ranks=ranks,
        slices=1,
        step=0,
        following=None,
        onward=False,
    )
    return gathered(table, channels.table(), chunks, ranks)


def _places(part: Part, ranks: int) -> IntArray:
    """Number of each rank by its places in the stages, the first the most significant."""
    number = np.zeros(ranks, np.int64)
    for lines in part.lines:
        at = np.empty(ranks, np.int64)
        at[lines] = np.arange(lines.shape[1])
        number = number * lines.shape[1] + at
    return number


def _stages(part: Part, ranks: int, base: int) -> tuple[list[_Stage], list[_Stage]]:
    """Stages of the reduce-scatter, and of the all-gather, in the order in which they run."""
    down, up, width = [], [], ranks
    number = _places(part, ranks)
    for lines in part.lines:
        low = number[lines[:, 0]] // width * width
        width //= lines.shape[1]
        rounds = lines.shape[1] - 1
        if rounds:
            down.append(_Stage(lines, low, width, True, rounds, base))
            up.append(_Stage(lines, low, width, False, rounds, base))
    return down, up[::-1]


class _Channels:
    """Channels numbered in the order in which stages use them first."""

    def __init__(self, ranks: int) -> None:
        # A rank's channel to itself carries its joins.
        self._src: list[IntArray] = [np.arange(ranks, dtype=np.int32)]
        self._dst: list[IntArray] = [np.arange(ranks, dtype=np.int32)]
        self._link: list[IntArray] = [np.full(ranks, NO_LINK)]
        self._known: dict[int, int] = {}
        self._count = ranks

    def of(self, lines: IntArray, link: int | None = None) -> IntArray:
        """Channels from each rank of each line to the next, over one link if it is given."""
        if id(lines) not in self._known:
            self._known[id(lines)] = self._count
            self._src.append(lines.ravel())
            self._dst.append(np.roll(lines, -1, axis=1).ravel())
            self._link.append(np.full(lines.size, NO_LINK if link is None else link))
            self._count += lines.size
        first = self._known[id(lines)]
        return np.arange(first, first + lines.size, dtype=np.int32).reshape(lines.shape)

    def table(self) -> Channels:
        """Table of all channels."""
        src, dst, link = (np.concatenate(columns) for columns in (self._src, self._dst, self._link))
        has_link = link != NO_LINK
        if not has_link.any():
            return Channels.table(src, dst)
        ptr = np.concatenate([[0], np.cumsum(has_link)])
        return Channels.table(src, dst, ptr=ptr, link=link[has_link].astype(np.int32))


def _add_part(
    table: Table, channels: _Channels, stages: Sequence[_Stage], ranks: int, slices: int
) -> None:
    step = 0
    for number, stage in enumerate(stages):
        _add_stage(
            table,
            channels.of(stage.lines, stage.link),
            stage,
            ranks=ranks,
            slices=slices,
            step=step,
            following=stages[number + 1] if number + 1 < len(stages) else None,
            onward=number + 2 < len(stages),
        )
        step += stage.rounds


def _add_stage(
    table: Table,
    channel: IntArray,
    stage: _Stage,
    *,
    ranks: int,
    slices: int,
    step: int,
    following: _Stage | None,
    onward: bool,
) -> None:
    """Rounds of a stage (rounds, slices, lines, places), and the join after it (slices, ranks)."""
    count, size = stage.lines.shape
    rounds = stage.rounds
    shape = (rounds, slices, count, size)
    round_ = np.arange(rounds, dtype=np.int32)[:, None, None, None]
    slice_ = np.arange(slices, dtype=np.int32)[None, :, None, None]
    place = np.arange(size, dtype=np.int32)
    block = (place - np.int32(stage.reduces) - round_) % np.int32(size)
    first = stage.base + slice_ * np.int32(ranks) + stage.low.astype(np.int32)[:, None]
    start = table.count
    exits = start + int(np.prod(shape))
    table.add(
        _stage_edges(stage, slices, ranks, start, exits if following else None),
        channel=np.broadcast_to(channel, shape),
        first=np.broadcast_to(first + block * np.int32(stage.width), shape),
        count=np.broadcast_to(np.int32(stage.width), shape),
        reduce=np.broadcast_to(np.int32(stage.reduces), shape),
        step=np.broadcast_to(round_ + np.int32(step), shape),
        priority=np.broadcast_to(slice_, shape),
    )
    if following is not None:
        _add_joins(
            table,
            stage,
            following,
            ranks=ranks,
            slices=slices,
            step=step,
            onward=onward,
        )


def _stage_edges(
    stage: _Stage, slices: int, ranks: int, start: int, exits: int | None
) -> list[IntArray]:
    """Targets of each send: the next place's next round, and the join of the rank it arrives at.

    In a reduce-scatter only the last arrival of a rank is one that nothing waits for but the join;
    in an all-gather every arrival completes a part of what the rank then holds.
    """
    count, size = stage.lines.shape
    rounds = stage.rounds
    at = np.arange(slices * count * size, dtype=np.int32).reshape(slices, count, size)
    onward = np.roll(at, -1, axis=2).ravel()
    starts = start + np.arange(1, rounds, dtype=np.int32)[:, None] * np.int32(at.size)
    forward = (starts + onward).ravel()
    if exits is None:
        return [forward[:, None], np.empty((at.size, 0), np.int32)]
    receiver = np.roll(stage.lines, -1, axis=1).astype(np.int32)
    slice_ = np.arange(slices, dtype=np.int32)[:, None, None]
    join = np.ravel(exits + slice_ * np.int32(ranks) + receiver)
    if stage.reduces:
        return [forward[:, None], join[:, None]]
    both = np.stack([forward, np.tile(join, rounds - 1)], axis=1)
    return [both, join[:, None]]


def _add_joins(
    table: Table,
    stage: _Stage,
    following: _Stage,
    *,
    ranks: int,
    slices: int,
    step: int,
    onward: bool,
) -> None:
    """Add a join for each rank: it holds its block (reduce-scatter) or the line's (all-gather).

    It leads to the sends of the next stage that need it, all rounds of a reduce-scatter and the
    first of an all-gather, and ``onward`` to the rank's join after that stage.
    """
    shape = (slices, ranks)
    size = stage.lines.shape[1]
    held = np.empty(ranks, np.int32)
    place = np.arange(size) if stage.reduces else np.zeros(size, np.int64)
    held[stage.lines] = stage.low[:, None] + place * stage.width
    width = stage.width if stage.reduces else stage.width * size
    start = table.count + slices * ranks
    rows, columns = following.lines.shape
    where = np.empty(ranks, np.int32)
    where[following.lines] = np.arange(ranks, dtype=np.int32).reshape(rows, columns)
    slice_ = np.arange(slices, dtype=np.int32)[:, None]
    rounds = following.rounds if following.reduces else 1
    a_round = np.int32(slices * ranks)
    first_round = (start + slice_ * np.int32(ranks) + where)[:, :, None]
    targets = first_round + np.arange(rounds, dtype=np.int32) * a_round
    if onward:
        after = start + following.rounds * a_round + np.arange(a_round).reshape(slices, ranks, 1)
        targets = np.concatenate([targets, after], axis=2)
    table.add(
        targets.reshape(slices * ranks, -1).astype(np.int32),
        channel=np.broadcast_to(np.arange(ranks, dtype=np.int32), shape),
        first=stage.base + slice_ * np.int32(ranks) + held,
        count=np.full(shape, width, np.int32),
        reduce=np.zeros(shape, np.int32),
        step=np.full(shape, step + stage.rounds - 1, np.int32),
        priority=np.broadcast_to(slice_, shape),
    )
