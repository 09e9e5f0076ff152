"""Lowering of messages to ops: a CC-Core issues each message, which then crosses links hop by hop.

Each hop is one op; chips of plain shapes store a message before they forward it. One compiled loop
writes all columns: array expressions would spend their time on intermediate arrays. The last hop
over a shared resource (memory, DMA engines, uplinks) is a flow, in the schedule only where a share
can limit it, which changes no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives.messages import Messages
from cluster_sim.engine.compiler.jit import inlined, lean
from cluster_sim.hardware.communication_costs import DMA_SHARES, CommunicationCosts
from cluster_sim.hardware.fabric import Fabric, Paths
from cluster_sim.hardware.faults import around
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import (
    FIXED,
    FLOW,
    JOIN,
    NO_RESOURCE,
    Codes,
    Edges,
    Flows,
    Label,
    Schedule,
    transfer_ps,
)
from topologies.support.arrays import BoolArray, IntArray, distinct, pointers, runs

WHAT = ("issue", "pass", "copy", "reduce", "join", "done")
"""Labels of ops. ``issue``: a CC-Core starts a message. ``pass``: a hop to a chip on the way.
``copy``, ``reduce``: the last hop of a message that replaces what the receiver holds, or is added
to it. ``join``: a rank has what its next messages need. ``done``: a rank has received all."""
ISSUE, PASS, COPY, REDUCE, JOINED, DONE = range(6)


class MessageColumns(NamedTuple):
    """Columns of the messages, one element a message."""

    first: IntArray  # (messages + 1,): first op of each message; the last is the number of ops
    channel: IntArray
    priority: IntArray
    size: IntArray  # bytes
    alike: IntArray  # column of Routes.duration_ps with the times of a message of this size
    before_wire_ps: IntArray  # or (0,): from the end of the issue until the message is on the wire
    arrives: IntArray  # label of the last hop
    edge: IntArray  # (messages + 1,): waiting[edge[k]:edge[k + 1]] wait for message k
    waiting: IntArray  # (edges,): numbers of the waiting messages


class Routes(NamedTuple):
    """Hops of the channels, and times on their links."""

    ptr: IntArray  # (channels + 1,): hops of channel c are ptr[c]:ptr[c + 1]
    resource: IntArray  # (hops,): link, NO_RESOURCE for none
    latency_ps: IntArray  # (hops,): from the end of the hop to arrival
    join: BoolArray  # (channels,): whether its messages are joins of a rank with itself
    receiver: IntArray  # (channels,): final join of the rank that each channel leads to
    core: IntArray  # (channels,) or (0,): CC-Core that issues the messages of each channel
    issue_ps: int  # to issue a message; 0 where messages are not issued
    speed: IntArray  # (hops,): row of duration_ps that holds for each hop
    duration_ps: IntArray  # (rates, sizes): time of a message of each size at each rate
    forwards: BoolArray  # (resources,): the node behind a link forwards what it still receives


class OpsAndEdges(NamedTuple):
    """Columns of the ops, and of the edges that lead from them; see :class:`Schedule`."""

    kind: IntArray
    what: IntArray
    resource: IntArray
    priority: IntArray
    duration_ps: IntArray
    size: IntArray
    edge: IntArray  # (ops + 1,)
    dst: IntArray  # (edges,), as the next two
    lag_ps: IntArray
    from_start: BoolArray


@lean
def write_ops(messages: MessageColumns, routes: Routes, ops: OpsAndEdges) -> int:
    """Write the ops of all messages; returns how many edges count from the start of their op."""
    edge, cut_through = 0, 0
    for number in range(len(messages.channel)):
        channel, size = messages.channel[number], messages.size[number]
        alike = messages.alike[number]
        op = messages.first[number]
        if routes.issue_ps > 0 and not routes.join[channel]:
            ops.kind[op], ops.what[op] = FIXED, ISSUE
            ops.resource[op], ops.duration_ps[op] = routes.core[channel], routes.issue_ps
            ops.priority[op], ops.size[op], ops.edge[op] = messages.priority[number], size, edge
            ops.dst[edge], ops.lag_ps[edge] = op + 1, messages.before_wire_ps[number]
            op += 1
            edge += 1
        hop, last = routes.ptr[channel], routes.ptr[channel + 1] - 1
        resource = routes.resource[hop]
        duration_ps = _wire_ps(routes, hop, size, alike)
        while True:
            lasts = duration_ps > 0
            ops.kind[op] = FIXED if lasts else JOIN
            ops.resource[op] = resource if lasts else NO_RESOURCE
            ops.duration_ps[op], ops.size[op] = duration_ps, size
            ops.priority[op], ops.edge[op] = messages.priority[number], edge
            lag_ps = routes.latency_ps[hop]
            if hop == last:
                break
            ops.what[op] = PASS
            here, here_ps = resource, duration_ps
            hop += 1
            resource = routes.resource[hop]
            duration_ps = _wire_ps(routes, hop, size, alike)
            if lasts and resource >= 0 and routes.forwards[here]:
                # A node forwards a message while it receives it, from when the hop before has
                # begun; where the next link is faster, later, as the last byte is never sent on
                # before it has arrived.
                lag_ps = max(1, lag_ps + max(0, here_ps - duration_ps))
                ops.from_start[edge] = True
                cut_through += 1
            op += 1
            ops.dst[edge], ops.lag_ps[edge] = op, lag_ps
            edge += 1
        ops.what[op] = messages.arrives[number]
        begin, end = messages.edge[number], messages.edge[number + 1]
        if begin == end:
            ops.dst[edge], ops.lag_ps[edge] = routes.receiver[channel], lag_ps
            edge += 1
        for row in range(begin, end):
            ops.dst[edge], ops.lag_ps[edge] = messages.first[messages.waiting[row]], lag_ps
            edge += 1
    return cut_through


@inlined
def _wire_ps(routes: Routes, hop: int, size: int, alike: int) -> int:
    """Return the time of a message on one hop [ps], 0 for an empty message or without a link."""
    if size == 0 or routes.resource[hop] < 0:
        return 0
    return int(routes.duration_ps[routes.speed[hop], alike])


Rows = tuple[IntArray, IntArray, IntArray, IntArray]
"""Columns of shares: channel, resource, and the weights for a copy and for a sum."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Shared resources that messages use, grouped by channel."""

    ptr: IntArray  # (channels + 1,): messages of channel c use resource[ptr[c]:ptr[c + 1]]
    resource: IntArray  # (shares,)
    # Rate of the resource that 1 B/s of a message takes [B/s] …
    copy: IntArray  # … that replaces what the receiver holds
    added: IntArray  # … that is added to it

    @classmethod
    def grouped(cls, channels: int, tables: list[Rows]) -> Shares:
        """Group the rows of several tables by channel, keeping the order of tables in each."""
        channel, *columns = (np.concatenate(parts) for parts in zip(*tables, strict=True))
        order = np.argsort(channel, kind="stable")
        ptr = pointers(np.bincount(channel, minlength=channels))
        return cls(ptr, *(column[order].astype(np.int32) for column in columns))

    def flows(self, op: IntArray, channel: IntArray, reduces: BoolArray, cap: IntArray) -> Flows:
        """Return the flows of ops, no faster than ``cap``, with the shares of their channels."""
        count = np.diff(self.ptr)[channel]
        row = runs(self.ptr[:-1][channel], count)
        weight = np.where(np.repeat(reduces, count), self.added[row], self.copy[row])
        ends = op.astype(np.int32), cap, pointers(count)
        return Flows(*ends, self.resource[row], weight.astype(np.int32))


def shares(
    messages: Messages, chip_of_rank: IntArray, fabric: Fabric, paths: Paths, *, contended: bool
) -> Shares | None:
    """Return the shared resources of each channel, or None if none can limit a flow."""
    channels = messages.channels
    chips = _Ends(chip_of_rank[channels.src], chip_of_rank[channels.dst], ~channels.joins)
    fused = np.zeros(len(channels), np.bool_) if channels.fused is None else channels.fused
    tables = [
        rows
        for rows in (
            *_memory(chips, fused, fabric, paths, messages, contended=contended),
            *_uplinks(chips, fabric),
        )
        if len(rows[0])
    ]
    return Shares.grouped(len(channels), tables) if tables else None


@dataclass(frozen=True, eq=False)
class _Ends:
    """Chips at both ends of each channel, and whether the channel carries data."""

    src: IntArray
    dst: IntArray
    sends: BoolArray

    @property
    def inside(self) -> BoolArray:
        """Return whether a channel joins two ranks of one chip, bool (channels,)."""
        inside: BoolArray = self.sends & (self.src == self.dst)
        return inside

    @property
    def apart(self) -> bool:
        """Return whether any channel leads from one chip to another."""
        return bool((self.sends & (self.src != self.dst)).any())


def _memory(
    chips: _Ends,
    fused: BoolArray,
    fabric: Fabric,
    paths: Paths,
    messages: Messages,
    *,
    contended: bool,
) -> Iterator[Rows]:
    """Yield the shares of memories and of DMA engines."""
    costs = fabric.costs
    if not costs.hbm_bytes_per_s:
        return
    # Chips of a collective send as much as they receive: the sender's reads are charged to the
    # receiver's memory. DMA engines move and limit messages between two ranks of a chip.
    shares = costs.dma_shares(messages.cycles if chips.apart else 1)
    if costs.copy_accesses:
        can_saturate = np.ones(len(fabric.resources), np.bool_)
        if not contended:
            most = costs.reduce_accesses if messages.reduce.any() else costs.copy_accesses
            arriving = _arriving(chips, fabric, paths, shares)
            can_saturate = arriving * most > costs.hbm_bytes_per_s
        memory = fabric.of_chip("hbm", chips.dst)
        channel = np.flatnonzero(chips.sends & can_saturate[memory])
        yield channel, memory[channel], *_weights(fused[channel], costs)
    channel = np.flatnonzero(chips.inside)
    taken = np.full(len(channel), shares, np.int32)
    yield channel, fabric.of_chip("dma", chips.dst[channel]), taken, taken


def _arriving(chips: _Ends, fabric: Fabric, paths: Paths, shares: int) -> IntArray:
    """Return the highest rate at which data can arrive at each memory's chip, by resource [B/s]."""
    last = paths.resource[paths.ptr[1:] - 1]
    links = distinct(last[chips.sends & (last >= 0)])
    peer, owner = fabric.resources.peer[links], fabric.resources.owner[links]
    rate = np.zeros(len(fabric.resources), np.int64)
    np.add.at(rate, fabric.of_chip("hbm", np.where(peer >= 0, peer, owner)), fabric.rate[links])
    copied = DMA_SHARES * fabric.costs.dma_bytes_per_s // shares
    rate[fabric.of_chip("hbm", distinct(chips.dst[chips.inside]))] += copied
    return rate


def _weights(fused: BoolArray, costs: CommunicationCosts) -> tuple[IntArray, IntArray]:
    """Return the memory accesses of a message that replaces data, and of one that is added."""
    return (
        np.where(fused, costs.fused_copy_accesses, costs.copy_accesses),
        np.where(fused, costs.fused_reduce_accesses, costs.reduce_accesses),
    )


def _uplinks(chips: _Ends, fabric: Fabric) -> Iterator[Rows]:
    """Yield the shares of up- and downlinks between racks, for messages between domains."""
    per_domain = fabric.cluster.chips_per_domain
    far = np.flatnonzero(chips.sends & (chips.src // per_domain != chips.dst // per_domain))
    if not len(fabric.uplinks) or not len(far):
        return
    channel, resource = fabric.climbing(chips.src[far], chips.dst[far])
    once = np.ones(len(channel), np.int32)
    yield far[channel], resource, once, once


NO_RATE = 10**12  # rate in tables of times where no op crosses a link; it is never looked up [B/s]
NARROW = 1024
"""Span of sizes up to which times are tabulated for every size; for a wider span, for each run of
consecutive messages of the same size [B]."""

Facts = Mapping[str, str | int | float | bool]
"""Description of a schedule, see :class:`cluster_sim.schedule.table.Schedule`."""


def lower(
    messages: Messages,
    chip_of_rank: IntArray,
    fabric: Fabric,
    facts: Facts,
    *,
    contended: bool = False,
) -> Schedule:
    """Turn messages into a schedule: their ops in order, then a join ``done`` for each rank."""
    paths = _paths(messages, chip_of_rank, fabric)
    if fabric.ways:
        paths = around(paths, fabric)
    shared = shares(messages, chip_of_rank, fabric, paths, contended=contended)
    layout = _Layout.of(messages, paths, issued=fabric.costs.issue_ps > 0)
    # First all ops as fixed ops and joins, in one compiled loop.
    size = messages.size_bytes()
    sizes, size_index = _distinct_sizes(size)
    written = _room_for(messages, layout.ops)
    before_wire_ps = _before_wire_ps(messages, chip_of_rank, fabric.costs)
    cut_through = write_ops(
        _columns(messages, layout, size, size_index, before_wire_ps),
        _routes(messages, paths, layout.ops, sizes, chip_of_rank, fabric),
        written,
    )
    # Then the last hops that use shared resources become flows.
    flows = _flows(shared, layout.first[1:] - 1, messages, size, written.resource, fabric)
    written.kind[flows.op], written.duration_ps[flows.op] = FLOW, 0
    starts = written.from_start if cut_through else None
    return schedule(
        OpColumns(
            kind=written.kind,
            resource=written.resource,
            duration_ps=written.duration_ps,
            size_bytes=written.size,
            priority=written.priority,
        ),
        edges=Edges(written.edge, written.dst, written.lag_ps, starts),
        resources=fabric.resources,
        flows=flows,
        labels=_labels(messages, layout, written.what),
        facts=facts,
    )


@dataclass(frozen=True, eq=False)
class _Layout:
    """Numbers of the ops of each message, which follow one another."""

    # (messages + 1,): first op of each message; the last value is the number of ops
    first: IntArray
    # (messages,): number of ops of each message; None where every message is one op
    width: IntArray | None

    @classmethod
    def of(cls, messages: Messages, paths: Paths, *, issued: bool) -> _Layout:
        """Count the ops of each message: its hops, and the op that issues it."""
        ops_of_channel = np.diff(paths.ptr)
        if issued:
            ops_of_channel += ~messages.channels.joins
        if ops_of_channel.max(initial=1) == 1:
            return cls(np.arange(len(messages) + 1), None)
        width = ops_of_channel[messages.channel]
        return cls(pointers(width), width)

    @property
    def ops(self) -> int:
        """Number of ops of all messages."""
        return int(self.first[-1])

    def spread(self, column: npt.NDArray[Any], joins: npt.ArrayLike, ranks: int) -> IntArray:
        """Repeat a column of messages for their ops, and append the values of the final joins."""
        whole = np.empty(len(column) + ranks, column.dtype)
        whole[: len(column)], whole[len(column) :] = column, joins
        if self.width is None:
            return whole
        return np.repeat(whole, np.append(self.width, np.ones(ranks, np.int64)))


def _room_for(messages: Messages, ops: int) -> OpsAndEdges:
    """Allocate columns for the ops of messages and the final joins, and fill in the joins."""
    # Ops of a message lead to the next; its last op to the messages that wait, or to a join.
    waiting = np.diff(messages.edges.ptr)
    edges = ops - len(messages) + int(np.maximum(waiting, 1).sum())

    def column(dtype: npt.DTypeLike, of_joins: int) -> npt.NDArray[Any]:
        whole = np.empty(ops + messages.ranks, dtype)
        whole[ops:] = of_joins
        return whole

    ptr = np.empty(ops + messages.ranks + 1, np.int64)
    ptr[ops:] = edges
    return OpsAndEdges(
        kind=column(np.uint8, JOIN),
        what=column(np.uint8, DONE),
        resource=column(np.int32, NO_RESOURCE),
        priority=column(np.int32, 0),
        duration_ps=column(np.int64, 0),
        size=column(np.int64, 0),
        edge=ptr,
        dst=np.empty(edges, np.int32),
        lag_ps=np.empty(edges, np.int64),
        from_start=np.zeros(edges, np.bool_),
    )


def _columns(
    messages: Messages,
    layout: _Layout,
    size: IntArray,
    size_index: IntArray,
    before_wire_ps: IntArray,
) -> MessageColumns:
    """Return the columns of the messages in the types that the compiled loop takes."""
    arrives = np.where(messages.reduce, np.uint8(REDUCE), np.uint8(COPY))
    joins = messages.channels.joins
    if joins.any():
        arrives[joins[messages.channel]] = JOINED
    return MessageColumns(
        first=layout.first,
        channel=np.ascontiguousarray(messages.channel, np.int32),
        priority=np.ascontiguousarray(messages.priority, np.int32),
        size=size,
        alike=size_index,
        before_wire_ps=before_wire_ps,
        arrives=arrives,
        edge=np.ascontiguousarray(messages.edges.ptr, np.int64),
        waiting=np.ascontiguousarray(messages.edges.dst, np.int32),
    )


def _routes(
    messages: Messages,
    paths: Paths,
    ops: int,
    sizes: IntArray,
    chip_of_rank: IntArray,
    fabric: Fabric,
) -> Routes:
    """Return the hops of the channels, and the times of messages of each size at each rate."""
    channels, issue_ps = messages.channels, fabric.costs.issue_ps
    used = np.zeros(len(fabric.rate) + 1, np.bool_)
    used[paths.resource] = True
    rates = distinct(fabric.rate[used[:-1]])
    rates = rates[rates > 0] if rates.any() else np.full(1, NO_RATE, np.int64)
    core = fabric.of_chip("cc", chip_of_rank[channels.src]) if issue_ps else np.empty(0, np.int64)
    return Routes(
        ptr=np.ascontiguousarray(paths.ptr, np.int64),
        resource=np.ascontiguousarray(paths.resource, np.int64),
        latency_ps=np.ascontiguousarray(paths.latency_ps, np.int64),
        join=np.ascontiguousarray(channels.joins),
        receiver=(ops + channels.dst).astype(np.int32),
        core=core,
        issue_ps=issue_ps,
        speed=np.searchsorted(rates, _paces(paths, fabric)).clip(max=len(rates) - 1),
        duration_ps=np.ascontiguousarray(transfer_ps(sizes, rates[:, None])),
        forwards=np.ascontiguousarray(fabric.forwards),
    )


def _paces(paths: Paths, fabric: Fabric) -> IntArray:
    """Return the rate at which messages cross each hop, int64 (hops,) [B/s]."""
    # A fast link between slower ones carries what a node forwards no faster than they do: else the
    # last byte, which is never sent before it has arrived, would hold up the first on the next one.
    rate, hop = fabric.rate[paths.resource], np.arange(len(paths.resource))
    joined = (paths.resource >= 0)[1:] & (paths.resource >= 0)[:-1]
    joined &= fabric.forwards[paths.resource[:-1]]
    ends = paths.ptr[(paths.ptr > 0) & (paths.ptr < len(hop))]
    joined[ends - 1] = False
    first = np.maximum.accumulate(np.where(np.append(False, joined), 0, hop))
    rises = np.append(False, joined & (rate[1:] > rate[:-1]))
    last_rise = np.maximum.accumulate(np.where(rises, hop, -1))
    if not (joined & (rate[1:] < rate[:-1]) & (last_rise[:-1] > first[:-1])).any():
        return rate
    unbound = np.iinfo(np.int64).max
    slowest_before, slowest_after = np.full((2, len(hop)), unbound)
    for _ in range(int(np.diff(paths.ptr).max()) - 1):
        so_far = np.minimum(slowest_before, rate)[:-1], np.minimum(slowest_after, rate)[1:]
        slowest_before[1:] = np.where(joined, so_far[0], unbound)
        slowest_after[:-1] = np.where(joined, so_far[1], unbound)
    slower = np.maximum(slowest_before, slowest_after)
    return np.asarray(np.minimum(rate, slower))


def _distinct_sizes(size: IntArray) -> tuple[IntArray, IntArray]:
    """Return sizes of which a time is needed [B], and the index of each message's size, int32."""
    least, most = (int(size.min()), int(size.max())) if len(size) else (0, 0)
    if most - least < NARROW:
        return np.arange(least, most + 1), (size - least).astype(np.int32)
    begins = np.ones(len(size), np.bool_)
    np.not_equal(size[1:], size[:-1], out=begins[1:])
    return size[begins], np.cumsum(begins, dtype=np.int32) - np.int32(1)


def _before_wire_ps(
    messages: Messages, chip_of_rank: IntArray, costs: CommunicationCosts
) -> IntArray:
    """Return the time from each message's issue until the wire [ps]; none where none are issued."""
    if not costs.issue_ps:
        return np.empty(0, np.int64)
    # First messages also take the launch and, between chips, a handshake, which may be each one's.
    waits = np.zeros(len(messages), np.bool_)
    waits[messages.edges.dst] = True
    several = len(chip_of_rank) > 0 and bool((chip_of_rank != chip_of_rank[0]).any())
    handshake = costs.handshake_ps * several
    later = handshake * messages.handshakes
    return costs.step_ps - costs.issue_ps + np.where(waits, later, costs.launch_ps + handshake)


def _paths(messages: Messages, chip_of_rank: IntArray, fabric: Fabric) -> Paths:
    """Return the links that each channel crosses, none between the ranks of a chip."""
    channels = messages.channels
    src, dst = chip_of_rank[channels.src], chip_of_rank[channels.dst]
    if channels.ptr is None or channels.link is None:
        return fabric.route(src, dst).never_empty()
    along = fabric.along(src, channels.ptr, channels.link)
    has_route = np.diff(channels.ptr) > 0
    if has_route.all():
        return along
    return along.or_else(has_route, fabric.route(src[~has_route], dst[~has_route]).never_empty())


def _flows(
    shared: Shares | None,
    last: IntArray,
    messages: Messages,
    size: IntArray,
    resource: IntArray,
    fabric: Fabric,
) -> Flows:
    """Return the flows among the last hops, no faster than the links that they hold."""
    if shared is None:
        return Flows.none()
    message = np.flatnonzero((np.diff(shared.ptr) > 0)[messages.channel] & (size > 0))
    op = last[message]
    link = resource[op]
    cap = np.where(link >= 0, fabric.rate[link], fabric.costs.copy_bytes_per_s)
    channel, reduces = messages.channel[message], messages.reduce[message]
    return shared.flows(op, channel, reduces, cap.astype(np.int64))


def _labels(messages: Messages, layout: _Layout, what: IntArray) -> dict[str, Label]:
    """Return the labels of all ops, in types as narrow as their values allow."""
    channels, rank_of_join = messages.channels, np.arange(messages.ranks)

    def label(column: IntArray, joins: IntArray | int, limit: int) -> IntArray:
        narrow = np.int16 if limit < 2**15 else np.int32
        return layout.spread(column.astype(narrow, copy=False), joins, messages.ranks)

    def rank(column: IntArray) -> IntArray:
        narrow: IntArray = column.astype(np.int16 if messages.ranks < 2**15 else np.int32)
        return label(narrow[messages.channel], rank_of_join, messages.ranks)

    return {
        "rank": rank(channels.src),
        "peer": rank(channels.dst),
        "chunk": label(messages.first, 0, int(messages.first.max(initial=0))),
        "chunks": label(messages.count, 0, int(messages.count.max(initial=0))),
        "step": label(messages.step, 0, int(messages.step.max(initial=0))),
        "what": Codes(what, WHAT),
    }
