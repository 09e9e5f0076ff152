"""Multi-dimensional collectives: ring stages along one dimension after the other.

Each part of the payload has its own order of dimensions, so that all are busy at once, and is cut
into slices. A rank begins a stage when a join says that it has finished the one before. Halving and
doubling has stages of pairs, one for each dimension of a hypercube; in KangaRing pairs exchange
halves, then rings run in which one rank of every pair takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import (
    Algorithm,
    has_pairs,
    levels,
    pairs_share,
    waits_for_receivers,
)
from cluster_sim.collectives.algorithms.cycles import all_rings
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.few_ranks import (
    FEW,
    schedule_of_few,
    spans_many_domains,
    with_one_latency,
)
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.messages import (
    EVERY,
    Channels,
    Chunks,
    Messages,
    Table,
    no_messages,
    one_chunk_messages,
    shards,
    share,
)
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.hardware.fabric import uplinks
from cluster_sim.schedule.table import Edges
from cluster_sim.trace.trace import run
from topologies.support.arrays import IntArray, pointers


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the payload, its weight, and the stages along which it is reduced, in order."""

    # (lines, ranks of a line): for each stage the rings, as ranks in order. The rings of a stage
    # hold every rank once, and the ranks of a ring have the same places in those of earlier stages
    lines: tuple[IntArray, ...]
    weight: int = 1
    doubles: int = 0  # last stages that go by doubled distances; all others are rings


def staged(call: CollectiveCall, parts: Sequence[Part], slices: int) -> Messages:
    """Write an all-reduce, all-gather or reduce-scatter in stages; early slices go ahead."""
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
    call: CollectiveCall, ranks: int, parts: Sequence[tuple[Sequence[Stage], int]], slices: int
) -> Messages:
    """Write the stages of many like ranks as messages of ``ranks`` of them."""
    pieces = share(call.size_bytes, np.repeat([weight for _, weight in parts], slices))
    table, channels = Table.empty(), StageChannels(ranks)
    blocks: list[IntArray] = []
    for (stages, _), piece in zip(parts, pieces.reshape(-1, slices), strict=True):
        down, left = [], piece
        for stage in stages:
            # Blocks that differ by a byte all get the larger size.
            left = -(-left // stage.length)
            down.append(replace(stage, base=len(blocks) * slices * ranks))
            blocks.append(left)
        up = [replace(stage, reduces=False) for stage in down[::-1]]
        add_stages(table, channels, down * call.reduces + up * call.gathers, ranks, slices)
    chunks = Chunks.table(np.repeat(np.concatenate(blocks), ranks), EVERY, EVERY)
    return table.messages(channels.table(), replace(chunks, is_tracked=False), ranks)


def staged_count(call: CollectiveCall, parts: Sequence[Sequence[int]], slices: int) -> int:
    """Count the rows of :func:`staged` from the ranks in a line of each stage of each part."""
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


def _places(part: Part, ranks: int) -> IntArray:
    """Number each rank by its places in the stages: that of the shard which it owns after them."""
    number = np.zeros(ranks, np.int64)
    for lines in part.lines:
        place = np.empty(ranks, np.int64)
        place[lines] = np.arange(lines.shape[1])
        number = number * lines.shape[1] + place
    return number


def _stages(part: Part, ranks: int, base: int) -> tuple[list[Stage], list[Stage]]:
    """Return the stages of the reduce-scatter, and of the all-gather, in the order of running."""
    down, up, width = [], [], ranks
    number = _places(part, ranks)
    for left, lines in zip(range(len(part.lines), 0, -1), part.lines, strict=True):
        low = number[lines[:, 0]] // width * width
        # A stage divides its line's interval into blocks, on one of which the next stage works.
        width //= lines.shape[1]
        if lines.shape[1] > 1:
            ends = lines, lines.shape[1], lines.shape[1] - 1, None, left <= part.doubles
            down.append(Stage(*ends, low=low, width=width, base=base))
            up.append(replace(down[-1], reduces=False))
    return down, up[::-1]


NO_LINK = -1  # link of a channel whose route the fabric chooses


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage of one part of the payload, in all slices; a few ranks may stand for many."""

    lines: IntArray  # (lines, ranks of a line): rings, as ranks in order; each rank is in one
    length: int  # ranks of a line, or of those that its few ranks stand for
    rounds: int  # messages of a rank that are run, one after the other in a ring
    link: int | None = None  # that all messages cross; by default the fabric chooses their routes
    doubles: bool = False  # whether messages go by doubled distances, not round a ring
    reduces: bool = True  # of a reduce-scatter; otherwise of an all-gather
    # (lines,) or (1,): first chunk of each line's interval, counted within the part
    low: IntArray = field(default_factory=lambda: np.zeros(1, np.int64))
    width: int = 1  # chunks of a block; a line's interval has one block for each of its ranks
    base: int = 0  # first chunk of the part

    @property
    def offset(self) -> IntArray:
        """Return how far each message's block still is from its owner, or has come (rounds,)."""
        up = np.arange(1, self.rounds + 1, dtype=np.int32)
        return up[::-1] if self.reduces else up

    @property
    def distance(self) -> IntArray:
        """Return how far each message goes: the highest power of two in its offset, or 1."""
        power = np.frexp(self.offset)[1] - 1
        return np.where(self.doubles, 1 << power, 1).astype(np.int32)

    @property
    def step(self) -> IntArray:
        """Return the round of each message."""
        order = np.frexp(self.offset)[1].astype(np.int32) if self.doubles else self.offset
        return np.asarray(np.abs(order - order[0]))

    @property
    def hop(self) -> IntArray:
        """Return places from each sender to its receiver; few ranks send to their neighbours."""
        return self.distance if self.lines.shape[1] > self.rounds else np.ones_like(self.offset)


class StageChannels:
    """Channels of stages, numbered in the order in which stages first use them."""

    def __init__(self, ranks: int) -> None:
        # A rank's channel to itself carries its joins.
        self._src: list[IntArray] = [np.arange(ranks, dtype=np.int32)]
        self._dst: list[IntArray] = [np.arange(ranks, dtype=np.int32)]
        self._link: list[IntArray] = [np.full(ranks, NO_LINK)]
        # By identity of the array: the reduce-scatter and the all-gather of a stage share lines.
        self._first: dict[tuple[int, int], int] = {}
        self._count = ranks

    def of(self, stage: Stage) -> IntArray:
        """Return the channels of each message of a stage, (rounds or 1, 1, lines, ranks)."""
        lines = stage.lines
        ends = dict(zip(stage.distance.tolist(), stage.hop.tolist(), strict=True))
        for distance, hop in ends.items():
            if (id(lines), distance) not in self._first:
                self._first[id(lines), distance] = self._count
                self._src.append(lines.ravel())
                self._dst.append(np.roll(lines, -hop, axis=1).ravel())
                self._link.append(
                    np.full(lines.size, NO_LINK if stage.link is None else stage.link)
                )
                self._count += lines.size
        distances = stage.distance.tolist() if stage.doubles else [1]
        first = np.array([self._first[id(lines), each] for each in distances], np.int32)
        return first[:, None, None, None] + np.arange(lines.size, dtype=np.int32).reshape(
            lines.shape
        )

    def table(self) -> Channels:
        """Return the table of all channels."""
        src, dst, link = (np.concatenate(columns) for columns in (self._src, self._dst, self._link))
        has_link = link != NO_LINK
        if not has_link.any():
            return Channels.table(src, dst)
        ptr = pointers(has_link)
        return Channels.table(src, dst, ptr=ptr, link=link[has_link].astype(np.int32))


def add_stages(
    table: Table, channels: StageChannels, stages: Sequence[Stage], ranks: int, slices: int
) -> None:
    """Add messages and joins of a part's stages, by round, slice, line and place."""
    step = 0
    for number, stage in enumerate(stages):
        count, size = stage.lines.shape
        shape = (stage.rounds, slices, count, size)
        row = (slice(None), None, None, None)
        ahead = stage.offset if stage.reduces else stage.distance - stage.offset
        slice_ = np.arange(slices, dtype=np.int32)[None, :, None, None]
        place = np.arange(size, dtype=np.int32)
        block = (place + ahead[row]) % np.int32(size)
        first = stage.base + slice_ * np.int32(ranks) + stage.low.astype(np.int32)[:, None]
        later = stages[number + 1 :]
        start = table.count
        exits = start + int(np.prod(shape)) if later else None
        table.add(
            _stage_edges(stage, slices, ranks, start, exits),
            channel=np.broadcast_to(channels.of(stage), shape),
            first=np.broadcast_to(first + block * np.int32(stage.width), shape),
            count=np.broadcast_to(np.int32(stage.width), shape),
            reduce=np.broadcast_to(np.int32(stage.reduces), shape),
            step=np.broadcast_to(stage.step[row] + np.int32(step), shape),
            priority=np.broadcast_to(slice_, shape),
        )
        if later:
            onward = len(later) > 1
            _add_joins(table, stage, later[0], ranks=ranks, slices=slices, step=step, onward=onward)
        step += int(stage.step[-1]) + 1


def _stage_edges(
    stage: Stage, slices: int, ranks: int, start: int, exits: int | None
) -> list[IntArray]:
    """Return the rows that wait for each message of a stage, whose first row is ``start``."""
    place = np.arange(slices * stage.lines.size, dtype=np.int32).reshape(slices, *stage.lines.shape)
    slice_ = np.arange(slices, dtype=np.int32)[:, None, None]
    offset, before = stage.offset, stage.offset - stage.distance
    rows: list[IntArray] = []
    # A gathered block goes on to all farther places; a reduced one is sent once all have arrived. A
    # rank has one distance at a time: its own block waits for the distance before.
    for number, hop in enumerate(stage.hop.tolist()):
        if stage.reduces:
            sent_on = offset == (before[number] or offset[number] - 1)
        else:
            sent_on = before == offset[number]
            sent_on |= (before == 0) & (offset == offset[number] + 1)
        next_place = np.roll(place, -hop, axis=2)
        targets = [start + row * place.size + next_place for row in np.flatnonzero(sent_on)]
        # A join, from row ``exits`` on, waits for what arrives to stay: gathered or finished.
        if exits is not None and not (stage.reduces and before[number]):
            targets.append(exits + slice_ * ranks + np.roll(stage.lines, -hop, axis=1))
        rows.append(np.array(targets, np.int32).reshape(-1, place.size).T)
    return rows


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
    """Add a join for each slice and rank, which waits until the rank has finished a stage."""
    shape = (slices, ranks)
    size = stage.lines.shape[1]
    # A join's chunks: the rank's block after a reduce-scatter, its line's blocks after an
    # all-gather.
    first_chunk = np.empty(ranks, np.int32)
    block = np.arange(size) if stage.reduces else np.zeros(size, np.int64)
    first_chunk[stage.lines] = stage.low[:, None] + block * stage.width
    width = stage.width if stage.reduces else stage.width * size
    start = table.count + slices * ranks
    rows, columns = following.lines.shape
    next_place = np.empty(ranks, np.int32)  # of each rank among the lines of the next stage
    next_place[following.lines] = np.arange(ranks, dtype=np.int32).reshape(rows, columns)
    slice_ = np.arange(slices, dtype=np.int32)[:, None]
    # All messages of a reduce-scatter need them, of an all-gather those of the rank's own block.
    of_owner = following.offset == following.distance
    needing = np.flatnonzero(of_owner | following.reduces).astype(np.int32)
    per_round = np.int32(slices * ranks)
    first_round = (start + slice_ * np.int32(ranks) + next_place)[:, :, None]
    targets = first_round + needing * per_round
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
        step=np.full(shape, step + stage.step[-1], np.int32),
        priority=np.broadcast_to(slice_, shape),
    )


def cube_parts(group: Group) -> list[Part]:
    """Return parts with a stage of pairs for each dimension, first those inside chips."""
    rank_at = cube(group)
    dimensions = group.ranks.bit_length() - 1
    inside = (group.ranks_per_chip & -group.ranks_per_chip).bit_length() - 1  # factors of 2
    pairs = [_pairs(rank_at, bit) for bit in range(dimensions)]
    outer, inner = pairs[inside:], pairs[:inside]
    # A ring of four is a 2-cube, so on a 4x4 torus every exchange is between neighbours. Each part
    # begins with another dimension.
    return [Part((*inner, *outer[turn:], *outer[:turn])) for turn in range(max(1, len(outer)))]


def is_cube(group: Group) -> bool:
    """Return whether the number of ranks is a power of two."""
    return group.ranks & (group.ranks - 1) == 0 and group.ranks > 1


def cube(group: Group) -> IntArray:
    """Return the rank at each corner of the hypercube, neighbours side by side by the Gray code."""
    filled = group.filled_box
    powers = filled is not None and all(size & (size - 1) == 0 for size in filled.sizes)
    if filled is None or not powers:
        chip_at: IntArray = np.arange(len(group.chips))
    else:
        grid: IntArray = filled.chip_at.reshape(filled.sizes)
        for axis, size in enumerate(filled.sizes):
            corner = np.arange(size)
            place = np.empty(size, np.int64)
            place[corner ^ (corner >> 1)] = corner
            grid = np.take(grid, place, axis=axis)
        chip_at = grid.ravel()
    ranks_per_chip = group.ranks_per_chip
    return np.ravel(chip_at[:, None] * ranks_per_chip + np.arange(ranks_per_chip))


def _pairs(rank_at: IntArray, bit: int) -> IntArray:
    """Return the pairs of ranks at corners that differ in one dimension, int32 (ranks / 2, 2)."""
    corner = np.arange(len(rank_at))
    low = corner[corner >> bit & 1 == 0]
    return np.stack([rank_at[low], rank_at[low | 1 << bit]], axis=1).astype(np.int32)


def tree_broadcast(group: Group, size_bytes: int) -> Messages:
    """Write a broadcast from rank 0 by doubling: over the domains, then inside each at once."""
    corner, rank_at = _tree(group)
    level = np.frexp(corner[1:])[1] - 1
    source = np.searchsorted(corner, corner[1:] ^ 1 << level)
    # The rank in place p of all receives by message p - 1, and sends on afterwards.
    from_arrival = np.flatnonzero(source > 0)
    return one_chunk_messages(
        channel=np.arange(len(source)),
        first=np.zeros(len(source), np.int32),
        step=level,
        edges=Edges.from_pairs(len(source), source[from_arrival] - 1, from_arrival),
        channels=Channels.table(rank_at[source], rank_at[1:]),
        chunks=Chunks.table([size_bytes], 0, EVERY),
        ranks=group.ranks,
    )


def _tree(group: Group) -> tuple[IntArray, IntArray]:
    """Return the corners of a hypercube that ranks are at, ascending, and these ranks, (ranks,)."""
    # Low dimensions lead between domains, then come those between chips, so that each domain and
    # each chip receives the buffer once. A corner without its highest bit is never missing.
    domains, domain = np.unique(group.domain, return_inverse=True)
    number = (domain - domain[0]) % len(domains)
    corner, dimensions = number.copy(), levels(len(domains))
    for chip in np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1]):
        chip_at = chip[cube(Group(group.cluster, group.chips[chip]))]
        # Numbered from rank 0 by exclusive or, which leaves neighbours neighbours.
        place = np.arange(len(chip)) ^ int(np.argmax(chip_at == 0))
        corner[chip_at] += place << dimensions
    cores = np.arange(group.ranks_per_chip) << int(corner.max()).bit_length()
    corners = np.add.outer(corner, cores).ravel()
    rank_at = np.argsort(corners)
    return corners[rank_at], rank_at


def _messages(call: CollectiveCall, costs: CommunicationCosts) -> Messages:
    if call.kind == "broadcast":
        return tree_broadcast(call.group, call.size_bytes)
    messages = staged(call, cube_parts(call.group), costs.slices)
    if call.group.ranks_per_chip == len(call.group.domains) == 1:
        # Parts take turns on links if no slice runs ahead, as it may where all begin inside chips.
        messages = replace(messages, priority=messages.step)
    return replace(messages, handshakes=waits_for_receivers(call.group, call.size_bytes))


def _message_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    if call.kind == "broadcast":
        return call.ranks - 1
    return staged_count(call, lengths_of(cube_parts(call.group)), costs.slices)


def _rounds(call: CollectiveCall, costs: CommunicationCosts) -> int:
    if call.kind == "broadcast":
        return int(_tree(call.group)[0].max()).bit_length()
    return call.ways * levels(call.ranks)


def _one_rank_a_domain_ps(call: CollectiveCall, costs: CommunicationCosts) -> int | None:
    """Simulate one pair for one rank in each of many domains [ps]; None for others."""
    group = call.group
    if not spans_many_domains(call) or len(group.domains) != group.ranks:
        return None
    if len(uplinks(group.cluster, group.chips, costs.scale_out_bytes_per_s)):
        return None
    dimensions = group.ranks.bit_length() - 1
    level = with_one_latency(group, group.chips, 1)
    pairs = [Stage(np.arange(FEW, dtype=np.int32)[None, :], 2, 1)] * dimensions
    messages = staged_by_few(call, FEW, [(pairs, 1)] * dimensions, costs.slices)
    return run(
        schedule_of_few(messages, level, level.chips_per_domain * np.arange(FEW), costs)
    ).total_ps


RDH = Algorithm(
    name="rdh",
    summary="recursive halving and doubling; 4x4 is a 4-cube, 4x4x4 a 6-cube; broadcast by a tree",
    kinds=(*RING_KINDS, "broadcast"),
    suits=lambda call: is_cube(call.group) or call.kind == "broadcast",
    messages=_messages,
    message_count=_message_count,
    rounds=_rounds,
    stands_for=_one_rank_a_domain_ps,
)


def kangaring(call: CollectiveCall, costs: CommunicationCosts) -> Messages:
    """Write an all-reduce, all-gather or reduce-scatter by pairs whose ranks drive in turn."""
    parts = kangaring_parts(call.group, call.size_bytes)
    return replace(
        fuse_pairs(staged(call, parts, costs.slices)),
        cycles=len(parts),
        handshakes=waits_for_receivers(call.group, call.size_bytes),
    )


def kangaring_parts(group: Group, size_bytes: int) -> list[Part]:
    """Return parts of two stages: the pairs, then a ring of first ranks and one of second."""
    ranks_per_chip = group.ranks_per_chip
    pairs = np.arange(group.ranks, dtype=np.int32).reshape(-1, 2)
    messages = ranks_per_chip * group.ranks // 2  # of a chip, along each cycle
    rings_of_chips = all_rings(Group(group.cluster, group.chips), size_bytes // messages)
    first_of_pairs = np.arange(ranks_per_chip // 2) * 2
    parts = []
    for order in rings_of_chips:
        primaries = np.ravel(order[:, None] * ranks_per_chip + first_of_pairs)
        rings = np.stack([primaries, primaries + 1]).astype(np.int32)
        parts.append(Part((pairs, rings)))
    return parts


def fuse_pairs(messages: Messages) -> Messages:
    """Mark the channels inside pairs, whose ranks share what one of them received from outside."""
    ends = messages.channels
    return replace(messages, channels=replace(ends, fused=ends.src // 2 == ends.dst // 2))


KANGARING = Algorithm(
    name="kangaring",
    summary="pairs exchange halves, then rings in which one of each pair drives",
    kinds=RING_KINDS,
    suits=lambda call: has_pairs(call.group),
    messages=kangaring,
    message_count=lambda call, costs: staged_count(
        call, lengths_of(kangaring_parts(call.group, call.size_bytes)), costs.slices
    ),
    rounds=lambda call, costs: call.ways * call.ranks // 2,
    memory_accesses=pairs_share,
)
