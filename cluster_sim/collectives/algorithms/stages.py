"""Multi-dimensional collectives: ring stages along one dimension after the other.

A reduce-scatter runs its stages from the first dimension to the last, each on the shards that the
stage before left; an all-gather runs them backwards; an all-reduce does both. The payload is
divided into parts, each with its own order of dimensions, so that all dimensions are busy at once,
and each part is cut into slices that follow one another. A rank begins a stage when it has finished
the one before, which a join of the rank marks; there is no barrier between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.collectives.algorithms.message_table import Table
from cluster_sim.collectives.algorithms.stage_messages import (
    Stage,
    StageChannels,
    add_stage,
    add_stages,
)
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.chunks import EVERY, Chunks, shards, share
from cluster_sim.collectives.messages import Messages, no_messages
from topologies.arrays import IntArray


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the payload, and the stages along which it is reduced, in order.

    Attributes
    ----------
    lines : tuple of int32 array (lines, ranks of a line)
        For each stage the rings, as ranks in order. The rings of a stage hold every rank once, and
        the ranks of a ring have the same places in the rings of all earlier stages.
    weight : int
        Weight by which the payload is divided among parts.
    """

    lines: tuple[IntArray, ...]
    weight: int = 1


@dataclass(frozen=True, eq=False)
class Leg:
    """A stage that is run on a few ranks, in place of many that do the same at the same time.

    Attributes
    ----------
    lines : int32 array (lines, ranks of a line)
        The few ranks, each in one line.
    length : int
        Number of ranks of a line that they stand for: the buffer is cut into as many blocks.
    rounds : int
        Rounds that are run; all of them are ``length - 1``.
    link : int, optional
        Link of the domain over which a rank that stands for a whole line sends to itself.
    """

    lines: IntArray
    length: int
    rounds: int
    link: int | None = None


def staged(call: CollectiveCall, parts: Sequence[Part], slices: int) -> Messages:
    """Write an all-reduce, all-gather or reduce-scatter in stages.

    ``slices``: slices of each part; a slice is the priority of its messages, so that early ones go
    ahead.
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
        return no_messages(chunks, ranks)
    table = Table.empty()
    channels = StageChannels(ranks)
    for number, part in enumerate(parts):
        down, up = _stages(part, ranks, number * slices * ranks)
        add_stages(table, channels, [*down] * reduces + [*up] * gathers, ranks, slices)
    return table.messages(channels.table(), chunks, ranks)


def staged_by_few(
    call: CollectiveCall, ranks: int, parts: Sequence[tuple[Sequence[Leg], int]], slices: int
) -> Messages:
    """Write the stages of many ranks, all of which do the same, as messages of a few of them.

    ``call``: call of all ranks; blocks that differ by a byte all get the larger size. ``ranks``:
    number of ranks that are run. ``parts``: parts of the payload, as :class:`Part` with legs in
    place of lines. ``slices``: slices of each part.
    """
    pieces = share(call.size_bytes, np.repeat([weight for _, weight in parts], slices))
    table, channels = Table.empty(), StageChannels(ranks)
    blocks: list[IntArray] = []
    for (legs, _), piece in zip(parts, pieces.reshape(-1, slices), strict=True):
        down, left = [], piece
        for leg in legs:
            left = -(-left // leg.length)
            low, base = np.zeros(len(leg.lines), np.int64), len(blocks) * slices * ranks
            down.append(Stage(leg.lines, low, 1, True, leg.rounds, base, leg.link))
            blocks.append(left)
        up = [replace(stage, reduces=False) for stage in down[::-1]]
        add_stages(table, channels, down * call.reduces + up * call.gathers, ranks, slices)
    chunks = Chunks.table(np.repeat(np.concatenate(blocks), ranks), EVERY, EVERY)
    return table.messages(channels.table(), replace(chunks, is_tracked=False), ranks)


def staged_count(call: CollectiveCall, parts: Sequence[Sequence[int]], slices: int) -> int:
    """Count the rows of :func:`staged` without building them.

    ``parts``: for each part, the ranks in a line of each stage. ``slices``: slices of each part.
    """
    rows = 0
    for lengths in parts:
        stages = [length for length in lengths if length > 1]
        if stages:
            joins = call.ways * len(stages) - 1
            rows += call.ways * (sum(stages) - len(stages)) + joins
    return rows * slices * call.ranks


def staged_rounds(call: CollectiveCall, parts: Sequence[Sequence[int]]) -> int:
    """Count the rounds of :func:`staged` that follow one another; see :func:`staged_count`."""
    return call.ways * max(sum(lengths) - len(lengths) for lengths in parts)


def lengths_of(parts: Sequence[Part]) -> list[list[int]]:
    """Return the ranks in a line of each stage, for each part."""
    return [[lines.shape[1] for lines in part.lines] for part in parts]


def ring_stage(lines: IntArray, chunks: Chunks, *, reduces: bool) -> Messages:
    """Write a single stage: a reduce-scatter or all-gather in every ring at once.

    ``lines`` (ways, lines, ranks of a line): rings, as ranks in order; the rings of each way hold
    every rank once. ``chunks``: a chunk for each way, line and place in the line. ``reduces``:
    whether the stage is a reduce-scatter; otherwise it is an all-gather.
    """
    ways, count, size = lines.shape
    ranks = count * size
    if size == 1:
        return no_messages(chunks, ranks)
    rows = np.ascontiguousarray(lines).reshape(ways * count, size)
    stage = Stage(rows, np.arange(ways * count) * size, 1, reduces, size - 1)
    table, channels = Table.empty(), StageChannels(ranks)
    add_stage(
        table,
        channels.of(rows),
        stage,
        ranks=ranks,
        slices=1,
        step=0,
        following=None,
        onward=False,
    )
    return table.messages(channels.table(), chunks, ranks)


def _places(part: Part, ranks: int) -> IntArray:
    """Number each rank by its places in the stages, the first the most significant digit.

    After a reduce-scatter the rank owns the shard of this number.
    """
    number = np.zeros(ranks, np.int64)
    for lines in part.lines:
        place = np.empty(ranks, np.int64)
        place[lines] = np.arange(lines.shape[1])
        number = number * lines.shape[1] + place
    return number


def _stages(part: Part, ranks: int, base: int) -> tuple[list[Stage], list[Stage]]:
    """Return the stages of the reduce-scatter, and of the all-gather, in the order of running.

    A stage divides the interval of chunks that its line works on into a block for each rank; the
    next stage works on one of these blocks.
    """
    down, up, width = [], [], ranks
    number = _places(part, ranks)
    for lines in part.lines:
        low = number[lines[:, 0]] // width * width
        width //= lines.shape[1]
        rounds = lines.shape[1] - 1
        if rounds:
            down.append(Stage(lines, low, width, True, rounds, base))
            up.append(Stage(lines, low, width, False, rounds, base))
    return down, up[::-1]
