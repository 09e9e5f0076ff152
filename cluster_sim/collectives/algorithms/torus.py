"""Stages along the axes of a torus or the tiers of a switched domain.

``torus`` divides the payload among the orders of the axes by a linear programme, as in the order X,
Y, Z the first axis, of k chips, carries (k - 1)/k of it and the next the same part of the rest.
``per-axis`` runs one axis after the other with barriers, a ring for each line of chips. In an
exchange a rank sends to every other of its line all data whose destination has that rank's
coordinate on this axis, whatever its origin.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import (
    Algorithm,
    each_byte_arrives_once,
    hop_counts,
    stage_slices,
)
from cluster_sim.collectives.algorithms.ring import last_end_ps
from cluster_sim.collectives.algorithms.stages import Part, staged, staged_count, staged_rounds
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.few_ranks import schedule_of_few
from cluster_sim.collectives.group import Box
from cluster_sim.collectives.messages import (
    COLUMNS,
    Channels,
    Chunks,
    Messages,
    Table,
    cut,
    one_chunk_messages,
)
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.schedule.table import FIXED, JOIN, Edges, transfer_ps
from cluster_sim.trace.trace import run
from topologies.shapes.basic import Torus
from topologies.shapes.links import coordinates
from topologies.support.arrays import IntArray, distinct_rows
from topologies.support.files import kept_files


def has_axes(call: CollectiveCall) -> bool:
    """Return whether the group has one rank a chip and fills a box of several axes."""
    filled = call.group.filled_box if call.group.ranks_per_chip == 1 else None
    return filled is not None and len(filled.sizes) > 1


def rounds_along_axes(call: CollectiveCall, costs: CommunicationCosts) -> int:
    """Count the rounds of a collective along all axes; an all-to-all takes one for each axis."""
    sizes = call.group.box.sizes
    return len(sizes) if call.kind == "all-to-all" else staged_rounds(call, [sizes])


def accesses_along_axes(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    """Count accesses for each byte; an all-to-all stores what it forwards at every axis."""
    if call.kind != "all-to-all":
        return each_byte_arrives_once(call, costs)
    sizes = call.group.box.sizes
    moved = sum((Fraction(size - 1, size) for size in sizes), Fraction(0))
    return call.ranks * moved * costs.copy_accesses


WHOLE = 1000  # sum of the integer weights of the orders, but for rounding
MOST_PERMUTED = 4  # axes up to which all orders are considered; with more, only the cyclic ones


def parts(box: Box) -> list[Part]:
    """Return a part for each order of axes with a share, and one the other way where axes wrap."""
    wraps = tuple(box.wraps)
    lines = [axis_lines(box, axis) for axis in range(len(box.sizes))]
    shapes = []
    for order, weight in shares(box.sizes, _capacities(box)):
        shapes.append(Part(tuple(lines[axis] for axis in order), weight))
        if any(wraps):
            turned = tuple(lines[axis][:, ::-1] if wraps[axis] else lines[axis] for axis in order)
            shapes.append(Part(turned, weight))
    return shapes


def axis_lines(box: Box, axis: int) -> IntArray:
    """Return the ranks of each line along an axis, int32 (lines, size)."""
    grid = box.chip_at.reshape(box.sizes)
    return np.moveaxis(grid, axis, -1).reshape(-1, box.sizes[axis]).astype(np.int32)


def _capacities(box: Box) -> tuple[int, ...]:
    """Return the rate at which rings along each axis can send, both ways round together [B/s]."""
    return tuple(rate * (2 if wrap else 1) for rate, wrap in zip(box.rates, box.wraps, strict=True))


@functools.lru_cache(maxsize=256)
def shares(
    sizes: tuple[int, ...], capacities: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return orders of the axes with integer weights that minimise the load of the busiest axis.

    They are kept on disk for later runs, since scipy takes longer to load than a command to run.

    ``sizes``: chips along each axis. ``capacities``: rates of the axes, in any unit.

    >>> shares((4, 4), (1, 1))
    (((0, 1), 500), ((1, 0), 500))
    """
    if len(sizes) == 1:
        return (((0,), WHOLE),)
    source = Path(__file__).read_bytes()
    digest = kept_files.digest(repr((sizes, capacities)), source, _solver())
    return kept_files.made_once("shares", digest, lambda: _evenest(sizes, capacities), _stated)


def _stated(document: list[list[Any]]) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Shares of a kept document; a ValueError if it has none."""
    kept = tuple((tuple(order), int(weight)) for order, weight in document)
    if not kept:
        raise ValueError(document)
    return kept


def _solver() -> bytes:
    """Return the file that states the release of scipy, which chooses among equally good shares."""
    package = importlib.util.find_spec("scipy")
    origin = package.origin if package else None
    return Path(origin).with_name("version.py").read_bytes() if origin else b""


def _evenest(
    sizes: tuple[int, ...], capacities: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], int], ...]:
    axes = range(len(sizes))
    orders = list(itertools.permutations(axes))
    if len(sizes) > MOST_PERMUTED:
        orders = [tuple(np.roll(axes, -turn).tolist()) for turn in axes]
    loads = np.array([[_load(order, sizes, axis) for order in orders] for axis in axes])
    loads = loads / (np.array(capacities) / max(capacities))[:, None]
    from scipy.optimize import linprog  # takes half a second to import, and few need it

    # The last variable is the time of the busiest axis; the others are the shares of the orders.
    cost = np.append(np.zeros(len(orders)), 1.0)
    busiest = np.hstack([loads, -np.ones((len(sizes), 1))])
    solution = linprog(
        cost,
        A_ub=busiest,
        b_ub=np.zeros(len(sizes)),
        A_eq=[np.append(np.ones(len(orders)), 0.0)],
        b_eq=[1.0],
    )
    if solution.x is None:
        raise ValueError(
            f"no shares for axes {sizes} of capacities {capacities}: {solution.message}"
        )
    weights = np.rint(solution.x[:-1] * WHOLE).astype(int).tolist()
    return tuple((order, w) for order, w in zip(orders, weights, strict=True) if w)


def _load(order: tuple[int, ...], sizes: tuple[int, ...], axis: int) -> float:
    """Return the share of the payload that a reduce-scatter in this order sends along an axis."""
    upto = order[: order.index(axis) + 1]
    return (sizes[axis] - 1) / math.prod(sizes[a] for a in upto)


LISTED_RANKS = 256
"""Ranks up to which each message lists the chunks in it, one for each pair of ranks, so that the
exchange can be proven; beyond, a message is a single chunk."""


def axis_exchange(call: CollectiveCall, orders: Sequence[list[int]]) -> Messages:
    """Write an all-to-all on a box axis by axis, in some orders of the axes."""
    share = cut(cut(call.size_bytes, call.ranks), len(orders))
    plan = _Plan(call.group.box, call.ranks, listed=call.ranks <= LISTED_RANKS)
    for turn, order in enumerate(orders):
        plan.add_order(order, share[:, turn])
    return plan.finish()


def _cyclic_orders(axes: int) -> list[list[int]]:
    """Return the cyclic orders of axes, the last axis first."""
    return [np.roll(np.arange(axes)[::-1], -turn).tolist() for turn in range(axes)]


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
        self.content: list[IntArray] = []  # pairs of ranks where messages are listed, else bytes
        self.shares: list[IntArray] = []
        self.filled = 0  # entries of content, or chunks, so far
        self.orders = 0

    def add_order(self, order: list[int], share: IntArray) -> None:
        """Add the stages of an order of axes, with ``share`` bytes of each rank for each other."""
        for number in range(len(order)):
            self._add_axis(order, number, share)
            if number + 1 < len(order):
                self._add_joins(order, number + 1)
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
        content = self._content(order[:number], order[number + 1 :], ends, share)
        self._add(number, edges, channel, content)

    def _add_joins(self, order: list[int], number: int) -> None:
        """Add a join for each rank before the messages of axis ``order[number]``."""
        base = self.table.count + self.ranks + np.arange(self.ranks)[:, None]
        # A join leads to its rank's messages of the next axis. Data that does not move along that
        # axis goes on to the rank's join after it, which is the row behind those messages.
        targets = self.sizes[order[number]] - 1 + (number + 1 < len(order))
        onward = base + np.arange(targets) * self.ranks
        rank = np.arange(self.ranks, dtype=np.int32)
        content = self._content(order[:number], order[number:], (self.place, self.place), None)
        self._add(number - 1, onward, rank, content)

    def _add(self, step: int, edges: IntArray, channel: IntArray, content: IntArray) -> None:
        """Add messages with their content, and with the rows that wait for each."""
        self.content.append(content.ravel())
        width = content.shape[1]
        self.table.add(
            edges.astype(np.int32),
            channel=channel,
            first=self.filled + np.arange(len(channel)) * width,
            count=np.full(len(channel), width),
            reduce=np.zeros(len(channel), np.int32),
            step=np.full(len(channel), step),
            priority=np.zeros(len(channel), np.int32),
        )
        self.filled += len(channel) * width

    def _content(
        self,
        before: list[int],
        after: list[int],
        ends: tuple[IntArray, IntArray],
        share: IntArray | None,
    ) -> IntArray:
        """Return each message's chunks, ascending, or its bytes where none are listed."""
        # The origin may be anywhere along the axes travelled before, the destination along those
        # after. A join, which has no share of the bytes, waits and moves nothing.
        src, dst = ends
        if self.listed:
            origins = self._along(src, before)[:, :, None]
            pairs = origins * self.ranks + self._along(dst, after)[:, None, :]
            return np.sort(pairs.reshape(len(src), -1), axis=1) + self.orders * self.ranks**2
        if share is None:
            return np.zeros((len(src), 1), np.int64)
        grid = share[self.rank_at].sum(axis=tuple(after), keepdims=True)
        place = tuple(0 if axis in after else dst[:, axis] for axis in range(len(self.sizes)))
        senders = int(np.prod([self.sizes[axis] for axis in before], dtype=np.int64))
        return np.asarray(np.broadcast_to(grid[place], len(dst))[:, None] * senders)

    def _along(self, place: IntArray, axes: list[int]) -> IntArray:
        """Return the ranks at all coordinates along some axes from each place, (rows, ranks)."""
        index = [
            np.arange(size).reshape(-1, *[1] * (len(self.sizes) - 1 - axis))
            if axis in axes
            else place[:, axis].reshape(-1, *[1] * len(self.sizes))
            for axis, size in enumerate(self.sizes)
        ]
        return self.rank_at[tuple(index)].reshape(len(place), -1)

    def finish(self) -> Messages:
        """Return the messages of all orders, with the chunks that they carry."""
        channels = Channels.table(np.concatenate(self.src), np.concatenate(self.dst))
        if self.listed:
            pair = np.tile(np.arange(self.ranks**2), self.orders)
            sizes = np.concatenate([np.tile(share, self.ranks) for share in self.shares])
            chunks = Chunks.table(sizes, pair // self.ranks, pair % self.ranks)
            chunks = replace(chunks, content=np.concatenate(self.content))
        else:
            chunks = replace(Chunks.table(np.concatenate(self.content), 0, 0), is_tracked=False)
        return self.table.messages(channels, chunks, self.ranks)


def _messages(call: CollectiveCall, costs: CommunicationCosts) -> Messages:
    if call.kind == "all-to-all":
        return axis_exchange(call, _cyclic_orders(len(call.group.box.sizes)))
    return staged(call, parts(call.group.box), stage_slices(call))


def _message_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    filled = call.group.box
    if call.kind == "all-to-all":
        axes = len(filled.sizes)
        return axes * call.ranks * (sum(filled.sizes) - axes + axes - 1)
    ways_round = 2 if any(filled.wraps) else 1
    orders = ways_round * len(shares(filled.sizes, _capacities(filled)))
    return staged_count(call, [filled.sizes] * orders, stage_slices(call))


def _lines_share_nothing(call: CollectiveCall) -> bool:
    """Return whether the lines along an axis are apart; those of an exchange must be alike, too."""
    cluster = call.group.cluster
    torus = cluster.plain and isinstance(cluster.shape, Torus) and all(call.group.box.wraps)
    return torus and (
        call.kind in RING_KINDS or (call.size_bytes % call.ranks == 0 and call.group.ascending)
    )


MOST_PASSES = 32  # passes after which lines whose times still move are left to one schedule of all


def line_by_line_ps(call: CollectiveCall, costs: CommunicationCosts) -> int | None:
    """Return the time of an exchange from its lines [ps]; None where they share more."""
    if call.kind != "all-to-all" or not _lines_share_nothing(call):
        return None
    sizes = call.group.box.sizes
    orders = _cyclic_orders(len(sizes))
    share = cut(call.size_bytes // call.ranks, len(orders)).tolist()
    start = {(turn, order[0]): np.zeros(sizes, np.int64) for turn, order in enumerate(orders)}
    ready = start
    # Lines share no link: all that one owes another is when an order's data reaches its ranks. Run
    # with these times until none moves, they have the ends of all messages.
    for _ in range(MOST_PASSES):
        after, last_ps = dict(start), 0
        for axis in range(len(sizes)):
            turns = [turn for turn in range(len(orders)) if (turn, axis) in ready]
            ends = _run_lines(
                call, costs, axis, [(share[turn], ready[turn, axis]) for turn in turns]
            )
            last_ps = max(last_ps, int(ends.max()))
            for turn, ends_ps in zip(turns, ends, strict=True):
                behind = orders[turn][orders[turn].index(axis) + 1 :]
                after |= {(turn, following): ends_ps for following in behind[:1]}
        if after.keys() == ready.keys() and all((after[at] == ready[at]).all() for at in after):
            return last_ps
        ready = after
    return None


def _run_lines(
    call: CollectiveCall,
    costs: CommunicationCosts,
    axis: int,
    parts: Sequence[tuple[int, IntArray]],
) -> IntArray:
    """Return when all data along an axis has reached each rank, by place in the box [ps]."""
    filled, cluster = call.group.box, call.group.cluster
    chips = call.group.chip_of_rank[axis_lines(filled, axis)]
    # Each part is an order's bytes between two ranks, and when each rank has what it is to send
    # [ps].
    times = [np.moveaxis(ready_ps, axis, -1).reshape(chips.shape) for _, ready_ps in parts]
    # Half-way round a ring, the way depends on whether the coordinates have an even sum.
    at = coordinates(cluster.shape, chips[:, 0] % cluster.chips_per_domain)
    first, which = distinct_rows(np.column_stack([*times, np.sum(at, axis=0) % 2]))
    few, size = chips[first], chips.shape[1]
    ready = np.concatenate([each[first].ravel() for each in times])
    sizes = [share * call.ranks // size for share, _ in parts]
    schedule = schedule_of_few(_lines(few.shape, sizes), cluster, few.ravel(), costs)
    kind, duration = schedule.kind.copy(), schedule.duration_ps.copy()
    kind[: len(ready)], duration[: len(ready)] = np.where(ready > 0, FIXED, JOIN), ready
    times_of_all = run(replace(schedule, kind=kind, duration_ps=duration)).times
    joins = len(schedule) - few.size - len(ready)
    ends = times_of_all.end_ps[joins : joins + len(ready)].reshape(len(parts), *few.shape)
    grid = np.delete(filled.sizes, axis)
    return np.moveaxis(ends[:, which].reshape(len(parts), *grid, size), -1, axis + 1)


def _lines(shape: tuple[int, ...], size_bytes: Sequence[int]) -> Messages:
    """Write messages from each rank to every other of its line, one size for each order."""
    rank, orders = np.arange(math.prod(shape)).reshape(shape), len(size_bytes)
    peer = np.stack([np.roll(rank, -step, axis=1) for step in range(1, shape[1])])
    src, dst = np.broadcast_to(rank, peer.shape).ravel(), peer.ravel()
    joins, turn = orders * rank.size, np.arange(orders)[:, None]
    # A join of each order and rank stands before its messages, and one behind those to the rank.
    begin = np.arange(joins)
    message = joins + np.arange(orders * len(src))
    end = joins + len(message) + begin
    sender = (turn * rank.size + src).ravel()
    receiver = (turn * rank.size + dst).ravel()
    sending = np.tile(rank.size + np.arange(len(src)), orders)
    return one_chunk_messages(
        channel=np.concatenate([begin % rank.size, sending, begin % rank.size]),
        first=np.concatenate([begin * 0, np.repeat(np.arange(orders), len(src)), begin * 0]),
        edges=Edges.from_pairs(
            len(message) + 2 * joins,
            np.concatenate([begin, sender, message]),
            np.concatenate([end, message, end[receiver]]),
        ),
        channels=Channels.table(np.append(rank, src), np.append(rank, dst)),
        chunks=replace(Chunks.table(size_bytes, 0, 0), is_tracked=False),
        ranks=rank.size,
    )


def _exchange_ops(call: CollectiveCall) -> int:
    """Count the ops of an exchange along all axes, by one order of them."""
    filled, cluster = call.group.box, call.group.cluster
    ops = call.ranks * len(filled.sizes)  # joins between axes, and at the end
    for axis, size in enumerate(filled.sizes):
        line = call.group.chip_of_rank[axis_lines(filled, axis)[0]] % cluster.chips_per_domain
        pairs = np.repeat(line, size), np.tile(line, size)
        ops += int(hop_counts(cluster.shape, *pairs).sum()) * call.ranks // size
    return ops


def _torus_ops(call: CollectiveCall, costs: CommunicationCosts) -> int:
    """Count the ops of an exchange of which lines are run by themselves."""
    if call.kind != "all-to-all" or not _lines_share_nothing(call):
        return 0
    return len(call.group.box.sizes) * (_exchange_ops(call) - call.ranks) + call.ranks


TORUS = Algorithm(
    name="torus",
    summary="ring stages, or an exchange, along the axes or tiers, all of them busy at once",
    kinds=(*RING_KINDS, "all-to-all"),
    suits=has_axes,
    messages=_messages,
    message_count=_message_count,
    rounds=rounds_along_axes,
    memory_accesses=accesses_along_axes,
    stands_for=line_by_line_ps,
    streamed_ops=_torus_ops,
)


def per_axis(call: CollectiveCall, costs: CommunicationCosts) -> Messages:
    """Write a collective axis by axis on the box of a group, with barriers."""
    filled, ranks = call.group.box, call.ranks
    axes = range(len(filled.sizes))[::-1]
    if call.kind == "all-to-all":
        messages = axis_exchange(call, [list(axes)])
        stages = [(filled.sizes[axis] - 1) * ranks for axis in axes]
        return with_barriers(messages, stages, held=stages)
    messages = staged(call, [Part(tuple(axis_lines(filled, axis) for axis in axes))], 1)
    one_way = [(filled.sizes[axis] - 1) * ranks for axis in axes]
    stages = one_way * call.reduces + one_way[::-1] * call.gathers
    return with_barriers(messages, stages, held=[ranks] * len(stages))


def with_barriers(messages: Messages, stages: Sequence[int], held: Sequence[int]) -> Messages:
    """Add barriers, so that each stage begins when all ranks have finished the one before."""
    ranks, rows, barriers = messages.ranks, len(messages), len(stages) - 1
    if rows == 0 or barriers < 1:
        return messages
    ends = np.cumsum(np.array(stages) + ranks)[:-1]
    joins = ends[:, None] - ranks + np.arange(ranks)
    barrier = rows + np.arange(barriers)
    # The first ``held`` messages of a stage wait for the barrier; the rest of it waits for these.
    waiting = [end + np.arange(count) for end, count in zip(ends, held[1:], strict=True)]
    edges = messages.edges
    waits = Edges.from_pairs(
        rows + barriers,
        np.concatenate([edges.sources(), joins.ravel(), np.repeat(barrier, held[1:])]),
        np.concatenate([edges.dst, np.repeat(barrier, ranks), *waiting]),
    )

    columns: dict[str, Any] = {name: getattr(messages, name) for name in COLUMNS}
    columns |= {
        name: np.append(values, np.zeros(barriers, values.dtype))
        for name, values in columns.items()
    }
    columns["step"][rows:] = messages.step[ends - 1]
    return replace(messages, **columns, edges=waits)


def _per_axis_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    sizes = call.group.box.sizes
    if call.kind == "all-to-all":
        return call.ranks * (sum(sizes) - 1) + len(sizes) - 1
    return staged_count(call, [sizes], 1) + call.ways * len(sizes) - 1


def _streamed_ops(call: CollectiveCall, costs: CommunicationCosts) -> int:
    """Count the ops of all lines, where they are run one by one."""
    if not _lines_share_nothing(call):
        return 0
    if call.kind in RING_KINDS:
        return _per_axis_count(call, costs) + call.ranks
    return _exchange_ops(call) + len(call.group.box.sizes) - 1


def ring_by_ring_ps(call: CollectiveCall, costs: CommunicationCosts) -> int | None:
    """Return the time from the clocks of every ring's links [ps]; None where more is shared."""
    shape, filled = call.group.cluster.shape, call.group.box
    if not (isinstance(shape, Torus) and _lines_share_nothing(call)):
        return None
    if call.kind == "all-to-all":
        start, whole = np.zeros(filled.sizes, np.int64), call.size_bytes // call.ranks
        axes = range(len(filled.sizes))
        return sum(int(_run_lines(call, costs, axis, [(whole, start)])[0].max()) for axis in axes)
    owner = filled.chip_at.reshape(filled.sizes).T.ravel()  # of shards; the last axis comes first
    held_bytes = cut(call.size_bytes, call.ranks)[owner]
    total_ps, lines = 0, 1
    for place in reversed(range(len(filled.sizes))):
        axis = shape.axes[filled.axes[place]]
        rate = int(costs.scale_up(np.array([axis.bandwidth_bytes_per_s]))[0])
        blocks_bytes = held_bytes.reshape(lines, axis.size, -1).sum(axis=2)
        wire_ps = transfer_ps(blocks_bytes, np.array(rate)) * (blocks_bytes > 0)
        axis_ps = last_end_ps(wire_ps[:, None], axis.latency_ps, axis.size - 1)
        if axis_ps is None:
            return None
        total_ps += axis_ps
        lines *= axis.size
    return call.ways * total_ps


PER_AXIS = replace(
    TORUS,
    name="per-axis",
    summary="a ring, or an exchange, along one axis after the other, all ranks in step",
    messages=per_axis,
    message_count=_per_axis_count,
    stands_for=ring_by_ring_ps,
    streamed_ops=_streamed_ops,
    streams_watched=True,
)
