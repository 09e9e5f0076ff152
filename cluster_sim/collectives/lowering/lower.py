"""Lowering of messages to ops: a CC-Core issues each, and it crosses the links of its channel.

One op a hop. On plain shapes a chip on the way stores a message before it forwards it; switches,
and real chips, forward while they receive (a start-edge, rule 2). The last hop is a flow where the
message draws on something shared (:mod:`cluster_sim.collectives.lowering.contention`).
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
    Routes,
    Sends,
    Written,
    write_ops,
)
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.hardware.fabric import Fabric, Paths
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.picoseconds import transfer_ps
from cluster_sim.schedule.table import (
    FLOW,
    JOIN,
    NO_RESOURCE,
    Codes,
    Edges,
    Flows,
    Label,
    Schedule,
)
from topologies.arrays import IntArray, distinct

NO_RATE = 10**12
"""Stands where an op crosses no wire; such an op takes no time [B/s]."""
NARROW = 1024
"""Span of sizes [B] up to which times are looked up by size instead of by stretch of one size."""

Facts = Mapping[str, str | int | float | bool]


def lower(
    sends: Messages,
    chip_of_rank: IntArray,
    fabric: Fabric,
    facts: Facts,
    *,
    contended: bool = False,
) -> Schedule:
    """Turn sends into a schedule on a fabric.

    Parameters
    ----------
    sends : Messages
    chip_of_rank : int array (ranks,)
        Global chips.
    fabric : Fabric
    facts : mapping
        Facts of the schedule.
    contended : bool
        Others may draw on the same memories: what is drawn from them is written out even where
        this collective by itself cannot fill them.

    Returns
    -------
    Schedule
        Ops in the order of the sends, then one join a rank, ``done``. Labels: ``rank`` and ``peer``
        (from, to), ``chunk`` and ``chunks`` (the range sent), ``step``, ``what``.
    """
    paths = _paths(sends, chip_of_rank, fabric)
    drawn = shares(sends, chip_of_rank, fabric, paths, contended=contended)
    layout = _Layout.of(sends, paths, issued=fabric.wire.issue_ps > 0)
    size = sends.size_bytes()
    values, alike = _alike(size)
    written = _room_for(sends, layout.ops)
    cut_through = write_ops(
        _columns(sends, layout, size, alike, _before_wire_ps(sends, chip_of_rank, fabric.wire)),
        _routes(sends, paths, layout.ops, values, chip_of_rank, fabric),
        written,
    )
    flows = _flows(drawn, layout.first[1:] - 1, sends, size, written.resource, fabric)
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
        labels=_labels(sends, layout, written.what),
        facts=facts,
    )


@dataclass(frozen=True, eq=False)
class _Layout:
    """Places of the ops of each message; those of a send of h hops follow one another.

    Attributes
    ----------
    first : int64 array (sends + 1,)
        Op in which each message begins; the last value is the number of ops.
    width : int64 array (sends,) or None
        Ops of each message; None where every message is one op.
    """

    first: IntArray
    width: IntArray | None

    @classmethod
    def of(cls, sends: Messages, paths: Paths, *, issued: bool) -> _Layout:
        """Count the ops of each message: its hops, and one that issues it."""
        ops_of_channel = np.diff(paths.ptr)
        if issued:
            ops_of_channel += ~sends.channels.joins
        if ops_of_channel.max(initial=1) == 1:
            return cls(np.arange(len(sends) + 1), None)
        width = ops_of_channel[sends.channel]
        first = np.zeros(len(sends) + 1, np.int64)
        np.cumsum(width, out=first[1:])
        return cls(first, width)

    @property
    def ops(self) -> int:
        """Number of ops of all messages."""
        return int(self.first[-1])

    def spread(self, column: npt.NDArray[Any], joins: npt.ArrayLike, ranks: int) -> IntArray:
        """Repeat a column of messages for their ops, followed by the values of the final joins."""
        whole = np.empty(len(column) + ranks, column.dtype)
        whole[: len(column)], whole[len(column) :] = column, joins
        if self.width is None:
            return whole
        return np.repeat(whole, np.append(self.width, np.ones(ranks, np.int64)))


def _room_for(sends: Messages, ops: int) -> Written:
    """Columns for the ops of messages and the joins behind them, with the joins set."""
    waiting = np.diff(sends.edges.ptr)
    edges = ops - len(sends) + int(np.maximum(waiting, 1).sum())

    def column(dtype: npt.DTypeLike, of_joins: int) -> npt.NDArray[Any]:
        whole = np.empty(ops + sends.ranks, dtype)
        whole[ops:] = of_joins
        return whole

    ptr = np.empty(ops + sends.ranks + 1, np.int64)
    ptr[ops:] = edges
    return Written(
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
    sends: Messages, layout: _Layout, size: IntArray, alike: IntArray, before_wire_ps: IntArray
) -> Sends:
    """Columns of the messages as the loop takes them."""
    arrives = np.where(sends.reduce, np.uint8(REDUCE), np.uint8(COPY))
    joins = sends.channels.joins
    if joins.any():
        arrives[joins[sends.channel]] = JOINED
    return Sends(
        first=layout.first,
        channel=np.ascontiguousarray(sends.channel, np.int32),
        priority=np.ascontiguousarray(sends.priority, np.int32),
        size=size,
        alike=alike,
        before_wire_ps=before_wire_ps,
        arrives=arrives,
        edge=np.ascontiguousarray(sends.edges.ptr, np.int64),
        waiting=np.ascontiguousarray(sends.edges.dst, np.int32),
    )


def _routes(
    sends: Messages,
    paths: Paths,
    ops: int,
    sizes: IntArray,
    chip_of_rank: IntArray,
    fabric: Fabric,
) -> Routes:
    """Hops of the channels, and the times of messages of each size on each kind of link."""
    channels, issue_ps = sends.channels, fabric.wire.issue_ps
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


def _alike(size: IntArray) -> tuple[IntArray, IntArray]:
    """Sizes of which a time is needed [B], and which of them each message has, int32 (sends,)."""
    least, most = (int(size.min()), int(size.max())) if len(size) else (0, 0)
    if most - least < NARROW:
        return np.arange(least, most + 1), (size - least).astype(np.int32)
    begins = np.ones(len(size), np.bool_)
    np.not_equal(size[1:], size[:-1], out=begins[1:])
    return size[begins], np.cumsum(begins, dtype=np.int32) - np.int32(1)


def _before_wire_ps(sends: Messages, chip_of_rank: IntArray, costs: CommunicationCosts) -> IntArray:
    """Time from the end of the issue of each message until it is on the wire [ps].

    The first ones also wait for the start of the collective, and between chips until these know
    of one another. Nothing where nothing is issued.
    """
    if not costs.issue_ps:
        return np.empty(0, np.int64)
    waits = np.zeros(len(sends), np.bool_)
    waits[sends.edges.dst] = True
    several = len(chip_of_rank) > 0 and bool((chip_of_rank != chip_of_rank[0]).any())
    start = costs.launch_ps + costs.handshake_ps * several
    return costs.step_ps - costs.issue_ps + np.where(waits, 0, start)


def _paths(sends: Messages, chip_of_rank: IntArray, fabric: Fabric) -> Paths:
    """Links that each channel crosses; channels between the cores of one chip cross none."""
    channels = sends.channels
    src, dst = chip_of_rank[channels.src], chip_of_rank[channels.dst]
    if channels.ptr is None or channels.link is None:
        return fabric.route(src, dst).never_empty()
    along = fabric.along(src, channels.ptr, channels.link)
    has_route = np.diff(channels.ptr) > 0
    if has_route.all():
        return along
    return along.or_else(has_route, fabric.route(src[~has_route], dst[~has_route]).never_empty())


def _flows(
    drawn: Shares | None,
    last: IntArray,
    sends: Messages,
    size: IntArray,
    resource: IntArray,
    fabric: Fabric,
) -> Flows:
    """Flows of last hops that use something shared, no faster than the link that they hold."""
    if drawn is None:
        return Flows.none()
    send = np.flatnonzero((np.diff(drawn.ptr) > 0)[sends.channel] & (size > 0))
    op = last[send]
    held = resource[op]
    cap = np.where(held >= 0, fabric.rate[held], fabric.wire.copy_bytes_per_s)
    return drawn.flows(op, sends.channel[send], sends.reduce[send], cap.astype(np.int64))


def _labels(sends: Messages, layout: _Layout, what: IntArray) -> dict[str, Label]:
    channels, done = sends.channels, np.arange(sends.ranks)

    def label(column: IntArray, joins: IntArray | int, limit: int) -> IntArray:
        narrow = np.int16 if limit < 2**15 else np.int32
        return layout.spread(column.astype(narrow, copy=False), joins, sends.ranks)

    def rank(column: IntArray) -> IntArray:
        narrow: IntArray = column.astype(np.int16 if sends.ranks < 2**15 else np.int32)
        return label(narrow[sends.channel], done, sends.ranks)

    return {
        "rank": rank(channels.src),
        "peer": rank(channels.dst),
        "chunk": label(sends.first, 0, int(sends.first.max(initial=0))),
        "chunks": label(sends.count, 0, int(sends.count.max(initial=0))),
        "step": label(sends.step, 0, int(sends.step.max(initial=0))),
        "what": Codes(what, WHAT),
    }
