"""Lowering of messages to ops: a CC-Core issues each message, which then crosses links hop by hop.

Each hop is one op. On plain shapes a chip on the way stores a message before it forwards it;
switches, and real chips, forward while they receive (a start-edge, rule 2). The last hop is a flow
where the message uses a shared resource (:mod:`cluster_sim.collectives.lowering.contention`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives.lowering.contention import Shares, shares
from cluster_sim.collectives.lowering.op_loop import (
    COPY,
    DONE,
    JOINED,
    REDUCE,
    WHAT,
    MessageColumns,
    OpsAndEdges,
    Routes,
    write_ops,
)
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.hardware.detours import around
from cluster_sim.hardware.fabric import Fabric, Paths
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.picoseconds import transfer_ps
from cluster_sim.schedule.table import FLOW, JOIN, NO_RESOURCE, Codes, Edges, Flows, Label, Schedule
from topologies.arrays import IntArray, distinct

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
    """Turn messages between ranks on chips into a schedule on a fabric.

    Returns the ops in the order of the messages, then a join ``done`` for each rank. Labels are
    ``rank`` and ``peer`` (from, to), ``chunk`` and ``chunks`` (first and number), ``step``,
    ``what``.
    """
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
    """Numbers of the ops of each message, which follow one another.

    ``first`` (messages + 1,): first op of each message; the last value is the number of ops.
    ``width`` (messages,): number of ops of each message; None where every message is one op.
    """

    first: IntArray
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
        first = np.zeros(len(messages) + 1, np.int64)
        np.cumsum(width, out=first[1:])
        return cls(first, width)

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
    core = fabric.cc(chip_of_rank[channels.src]) if issue_ps else np.empty(0, np.int64)
    return Routes(
        ptr=np.ascontiguousarray(paths.ptr, np.int64),
        resource=np.ascontiguousarray(paths.resource, np.int64),
        latency_ps=np.ascontiguousarray(paths.latency_ps, np.int64),
        join=np.ascontiguousarray(channels.joins),
        receiver=(ops + channels.dst).astype(np.int32),
        core=core,
        issue_ps=issue_ps,
        speed=np.minimum(np.searchsorted(rates, fabric.rate), len(rates) - 1),
        duration_ps=np.ascontiguousarray(transfer_ps(sizes, rates[:, None])),
        forwards=np.ascontiguousarray(fabric.forwards),
    )


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
    """Return the time from the end of each message's issue until it is on the wire [ps].

    Messages that wait for no other also take the launch of the collective and, between chips, the
    handshake, which may be that of every message. The array is empty where messages are not issued.
    """
    if not costs.issue_ps:
        return np.empty(0, np.int64)
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
