"""Messages of ring stages: the rounds of each stage, and the joins between two stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.algorithms.message_table import Table
from cluster_sim.collectives.messages import Channels
from topologies.arrays import IntArray

NO_LINK = -1
"""Link of a channel whose route the fabric chooses."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage of one part of the payload, in all slices.

    Attributes
    ----------
    lines : int32 array (lines, ranks of a line)
        Rings, as ranks in order; each rank is in one.
    low : int64 array (lines,)
        First chunk of the interval that each line works on, counted within the part.
    width : int
        Chunks of a block; a line's interval has one block for each of its ranks.
    reduces : bool
        Whether the stage is of a reduce-scatter; otherwise it is of an all-gather.
    rounds : int
        Rounds that are run.
    base : int
        First chunk of the part.
    link : int, optional
        Link of the domain that all messages cross; by default the fabric chooses their routes.
    """

    lines: IntArray
    low: IntArray
    width: int
    reduces: bool
    rounds: int
    base: int = 0
    link: int | None = None


class StageChannels:
    """Channels of stages, numbered in the order in which stages first use them."""

    def __init__(self, ranks: int) -> None:
        # A rank's channel to itself carries its joins.
        self._src: list[IntArray] = [np.arange(ranks, dtype=np.int32)]
        self._dst: list[IntArray] = [np.arange(ranks, dtype=np.int32)]
        self._link: list[IntArray] = [np.full(ranks, NO_LINK)]
        # By identity of the array: the reduce-scatter and the all-gather of a stage share lines.
        self._first: dict[int, int] = {}
        self._count = ranks

    def of(self, lines: IntArray, link: int | None = None) -> IntArray:
        """Return the channels from each rank to the next of its line, over a link if given."""
        if id(lines) not in self._first:
            self._first[id(lines)] = self._count
            self._src.append(lines.ravel())
            self._dst.append(np.roll(lines, -1, axis=1).ravel())
            self._link.append(np.full(lines.size, NO_LINK if link is None else link))
            self._count += lines.size
        first = self._first[id(lines)]
        return np.arange(first, first + lines.size, dtype=np.int32).reshape(lines.shape)

    def table(self) -> Channels:
        """Return the table of all channels."""
        src, dst, link = (np.concatenate(columns) for columns in (self._src, self._dst, self._link))
        has_link = link != NO_LINK
        if not has_link.any():
            return Channels.table(src, dst)
        ptr = np.concatenate([[0], np.cumsum(has_link)])
        return Channels.table(src, dst, ptr=ptr, link=link[has_link].astype(np.int32))


def add_stages(
    table: Table, channels: StageChannels, stages: Sequence[Stage], ranks: int, slices: int
) -> None:
    """Add the messages and joins of all stages of a part, one stage after the other."""
    step = 0
    for number, stage in enumerate(stages):
        add_stage(
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


def add_stage(
    table: Table,
    channel: IntArray,
    stage: Stage,
    *,
    ranks: int,
    slices: int,
    step: int,
    following: Stage | None,
    onward: bool,
) -> None:
    """Add the rounds of a stage, and the joins after it if another stage follows.

    Rows are in order of round, slice, line and place in the line; joins of slice and rank.

    ``channel`` (lines, ranks of a line): channel from each rank to the next of its line. ``step``:
    number of the stage's first round in the collective. ``following``: the next stage. ``onward``:
    whether a stage follows the next one.
    """
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
    stage: Stage, slices: int, ranks: int, start: int, exits: int | None
) -> list[IntArray]:
    """Return the rows that wait for each message of a stage.

    They are the next round's message of the rank that receives it, and that rank's join. The join
    of a reduce-scatter waits for the last arrival alone, which is the finished block; the join of
    an all-gather waits for every arrival, each of which is a part of what the rank then holds.

    ``start``: row of the stage's first message. ``exits``: row of the first join after the stage,
    None where no stage follows.
    """
    count, size = stage.lines.shape
    rounds = stage.rounds
    place = np.arange(slices * count * size, dtype=np.int32).reshape(slices, count, size)
    next_place = np.roll(place, -1, axis=2).ravel()
    starts = start + np.arange(1, rounds, dtype=np.int32)[:, None] * np.int32(place.size)
    forward = (starts + next_place).ravel()
    if exits is None:
        return [forward[:, None], np.empty((place.size, 0), np.int32)]
    receiver = np.roll(stage.lines, -1, axis=1).astype(np.int32)
    slice_ = np.arange(slices, dtype=np.int32)[:, None, None]
    join = np.ravel(exits + slice_ * np.int32(ranks) + receiver)
    if stage.reduces:
        return [forward[:, None], join[:, None]]
    both = np.stack([forward, np.tile(join, rounds - 1)], axis=1)
    return [both, join[:, None]]


def _add_joins(
    table: Table,
    stage: Stage,
    following: Stage,
    *,
    ranks: int,
    slices: int,
    step: int,
    onward: bool,
) -> None:
    """Add a join for each slice and rank, which waits until the rank has finished a stage.

    Its chunks are what the rank then holds: its block after a reduce-scatter, all blocks of its
    line after an all-gather. It leads to the messages of the next stage that need them, all rounds
    of a reduce-scatter and the first round of an all-gather, and, where a further stage follows
    (``onward``), to the rank's join after the next stage.
    """
    shape = (slices, ranks)
    size = stage.lines.shape[1]
    first_chunk = np.empty(ranks, np.int32)
    block = np.arange(size) if stage.reduces else np.zeros(size, np.int64)
    first_chunk[stage.lines] = stage.low[:, None] + block * stage.width
    width = stage.width if stage.reduces else stage.width * size
    start = table.count + slices * ranks
    rows, columns = following.lines.shape
    next_place = np.empty(ranks, np.int32)  # of each rank among the lines of the next stage
    next_place[following.lines] = np.arange(ranks, dtype=np.int32).reshape(rows, columns)
    slice_ = np.arange(slices, dtype=np.int32)[:, None]
    rounds = following.rounds if following.reduces else 1
    per_round = np.int32(slices * ranks)
    first_round = (start + slice_ * np.int32(ranks) + next_place)[:, :, None]
    targets = first_round + np.arange(rounds, dtype=np.int32) * per_round
    if onward:
        next_joins = start + following.rounds * per_round
        joins = next_joins + np.arange(per_round).reshape(slices, ranks, 1)
        targets = np.concatenate([targets, joins], axis=2)
    table.add(
        targets.reshape(slices * ranks, -1).astype(np.int32),
        channel=np.broadcast_to(np.arange(ranks, dtype=np.int32), shape),
        first=stage.base + slice_ * np.int32(ranks) + first_chunk,
        count=np.full(shape, width, np.int32),
        reduce=np.zeros(shape, np.int32),
        step=np.full(shape, step + stage.rounds - 1, np.int32),
        priority=np.broadcast_to(slice_, shape),
    )
