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
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.hardware.fabric import Fabric, Paths
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.picoseconds import transfer_ps
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
)
from topologies.arrays import BoolArray, IntArray, distinct

WHAT = ("issue", "pass", "copy", "reduce", "join", "done")
"""Label of an op: a CC-Core's step; a hop to a chip on the way; the last hop, whose message
replaces what the receiver holds, or is added to it; a rank that has what its next sends need; one
that has received all."""
ISSUE, PASS, COPY, REDUCE, JOINED, DONE = range(6)

NO_RATE = 10**12
"""Stands where an op crosses no wire; such an op takes no time [B/s]."""
NARROW = 1024
"""Span of sizes [B] up to which times are looked up instead of divided."""

Facts = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, eq=False)
class _Ops:
    """The op of each hop of each message; ``send`` and ``hop`` are None for one op a message.

    A send of h hops is an issue (hop -1) if issuing costs time, then hops 0 … h - 1.
    """

    count: int
    first: IntArray
    last: IntArray
    send: IntArray | None
    hop: IntArray | None

    def spread(self, column: IntArray) -> IntArray:
        """Repeat a column of sends for their ops."""
        return column if self.send is None else column[self.send]


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
    hops = np.diff(paths.ptr)
    drawn = shares(sends, chip_of_rank, fabric, paths, contended=contended)
    ops = _lay_out(hops, sends, issued=fabric.wire.issue_ps > 0)
    resource, held = _column(ops, sends.ranks, np.int32, NO_RESOURCE)
    lag = _set_resources(held, sends, chip_of_rank, fabric, paths, ops)
    size, sent = _column(ops, sends.ranks, np.int64, 0)
    _set_sizes(sent, sends, ops)
    duration, lasts = _column(ops, sends.ranks, np.int64, 0)
    _set_durations(lasts, sent, held, ops, fabric)
    edges = _edges(sends, ops, _cut_through(ops, held, lasts, lag, fabric), lag)
    flows = _flows(drawn, ops, sends, sent, held, fabric)
    kind = np.full(len(duration), FIXED, np.uint8)
    empty = duration == 0
    kind[empty], resource[empty] = JOIN, NO_RESOURCE
    kind[flows.op], duration[flows.op] = FLOW, 0
    return schedule(
        OpColumns(
            kind=kind,
            resource=resource,
            duration_ps=duration,
            size_bytes=size,
            priority=_with_joins(ops.spread(sends.priority), 0, sends.ranks),
        ),
        edges=edges,
        resources=fabric.resources,
        flows=flows,
        labels=_labels(sends, ops),
        facts=facts,
    )


def _set_resources(
    held: IntArray,
    sends: Messages,
    chip_of_rank: IntArray,
    fabric: Fabric,
    paths: Paths,
    ops: _Ops,
) -> IntArray:
    """Set the resource of each op, a link or an issuing CC-Core; returns the lag behind it [ps]."""
    hop = _hops(sends, paths, ops)
    np.take(paths.resource.astype(np.int32), hop, out=held, mode="clip")
    lag: IntArray = paths.latency_ps[hop]
    if fabric.wire.issue_ps > 0 and ops.hop is not None:
        issue = ops.hop < 0
        source = chip_of_rank[sends.channels.src][sends.channel]
        held[issue] = fabric.cc(ops.spread(source)[issue])
        lag[issue] = ops.spread(_before_wire_ps(sends, chip_of_rank, fabric.wire))[issue]
    return lag


def _set_sizes(size: IntArray, sends: Messages, ops: _Ops) -> None:
    """Set the bytes of each op to those of its message [B]."""
    if ops.send is None:
        sends.size_bytes(out=size)
    else:
        np.take(sends.size_bytes(), ops.send, out=size, mode="clip")


def _before_wire_ps(sends: Messages, chip_of_rank: IntArray, costs: CommunicationCosts) -> IntArray:
    """Time from the end of the issue of each message until it is on the wire [ps].

    The first ones also wait for the start of the collective, and between chips until these know
    of one another.
    """
    waits = np.zeros(len(sends), np.bool_)
    waits[sends.edges.dst] = True
    several = len(chip_of_rank) > 0 and bool((chip_of_rank != chip_of_rank[0]).any())
    start = costs.launch_ps + costs.handshake_ps * several
    return costs.step_ps - costs.issue_ps + np.where(waits, 0, start)


def _column(
    ops: _Ops, joins: int, dtype: npt.DTypeLike, value: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """An array for the ops and the final joins, with the joins set; and the ops' part of it."""
    whole = np.empty(ops.count + joins, dtype)
    whole[ops.count :] = value
    return whole, whole[: ops.count]


def _with_joins(column: IntArray, value: IntArray | int, joins: int) -> IntArray:
    """A column of the ops, followed by the value of the final joins."""
    whole = np.empty(len(column) + joins, column.dtype)
    whole[: len(column)] = column
    whole[len(column) :] = value
    return whole


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


def _lay_out(hops: IntArray, sends: Messages, *, issued: bool) -> _Ops:
    if not issued and hops.max(initial=1) == 1:
        each = np.arange(len(sends), dtype=np.int32)
        return _Ops(len(sends), each, each, None, None)
    joins = sends.channels.joins[sends.channel]
    width = hops[sends.channel] + (issued & ~joins)
    end = np.cumsum(width)
    count = int(end[-1]) if len(end) else 0
    send = np.repeat(np.arange(len(sends), dtype=np.int32), width)
    first = (end - width).astype(np.int32)
    hop = np.arange(count, dtype=np.int32) - (first + (issued & ~joins))[send]
    return _Ops(count, first, (end - 1).astype(np.int32), send, hop)


def _flows(
    drawn: Shares | None,
    ops: _Ops,
    sends: Messages,
    size: IntArray,
    resource: IntArray,
    fabric: Fabric,
) -> Flows:
    """Flows of last hops that use something shared, no faster than the link that they hold."""
    if drawn is None:
        return Flows.none()
    send = np.flatnonzero((np.diff(drawn.ptr) > 0)[sends.channel] & (size[ops.last] > 0))
    op = ops.last[send]
    held = resource[op]
    cap = np.where(held >= 0, fabric.rate[held], fabric.wire.copy_bytes_per_s)
    return drawn.flows(op, sends.channel[send], sends.reduce[send], cap.astype(np.int64))


def _hops(sends: Messages, paths: Paths, ops: _Ops) -> IntArray:
    """Row of the path that each op stands for; an issue stands for the first."""
    first = paths.ptr[:-1].astype(np.int32)[sends.channel]
    if ops.hop is None:
        return first
    row: IntArray = ops.spread(first) + np.maximum(0, ops.hop)
    return np.minimum(row, len(paths.resource) - 1, out=row)


def _set_durations(
    duration: IntArray, size: IntArray, resource: IntArray, ops: _Ops, fabric: Fabric
) -> None:
    """Set the time of each op [ps]: by size and rate on the wire; fixed for an issue."""
    used = np.zeros(len(fabric.rate) + 1, np.bool_)
    used[resource] = True
    rates = distinct(fabric.rate[used[:-1]])
    rates = rates[rates > 0] if rates.any() else np.full(1, NO_RATE, np.int64)
    least, most = (int(size.min()), int(size.max())) if len(size) else (0, 0)
    span = most - least + 1
    if span <= NARROW:
        code = np.minimum(np.searchsorted(rates, fabric.rate), len(rates) - 1)
        table = transfer_ps(np.arange(least, most + 1), rates[:, None])
        rows = np.append(code, 0)
        if span == 1:
            np.take(table[rows, 0], resource, out=duration, mode="wrap")
        else:
            first = (rows * span - least)[resource]
            np.take(table.ravel(), np.add(first, size, out=first), out=duration, mode="clip")
    else:
        rate = np.append(np.where(fabric.rate > 0, fabric.rate, rates.max()), NO_RATE)
        duration[:] = transfer_ps(size, rate[resource])
    if least == 0:
        duration[size == 0] = 0
    if resource.min(initial=0) < 0:
        duration[resource < 0] = 0
    if ops.hop is not None and fabric.wire.issue_ps > 0:
        duration[ops.hop < 0] = fabric.wire.issue_ps


def _edges(sends: Messages, ops: _Ops, from_start: BoolArray | None, lag: IntArray) -> Edges:
    """Edges from hop to hop of each message, and on to waiting messages or to ``done``."""
    waiting = np.diff(sends.edges.ptr)
    receiver = ops.count + sends.channels.dst
    following = ops.first[sends.edges.dst]
    if ops.send is None and not (waiting[:-1] < waiting[1:]).any() and waiting.max(initial=0) <= 1:
        inner = len(following)
        dst = np.append(following, receiver[sends.channel[inner:]]).astype(np.int32)
        return Edges(_pointers(np.arange(ops.count + 1), ops.count, sends.ranks), dst, lag)
    degree = np.ones(ops.count, np.int64)
    degree[ops.last] = np.maximum(1, waiting)
    ptr = np.zeros(ops.count + 1, np.int64)
    np.cumsum(degree, out=ptr[1:])
    dst = np.empty(int(ptr[-1]), np.int32)
    dst[ptr[:-1]] = np.arange(1, ops.count + 1)
    last = waiting == 0
    dst[ptr[ops.last[last]]] = receiver[sends.channel[last]]
    begin = ptr[ops.last] - sends.edges.ptr[:-1]
    dst[np.arange(len(following)) + np.repeat(begin, waiting)] = following
    starts = None if from_start is None else np.repeat(from_start, degree).astype(np.bool_)
    return Edges(_pointers(ptr, len(dst), sends.ranks), dst, np.repeat(lag, degree), starts)


def _pointers(ptr: IntArray, edges: int, joins: int) -> IntArray:
    """Edge pointers of the ops, then of the joins, which have no edges."""
    return np.append(ptr, np.full(joins, edges, np.int64)).astype(np.int64, copy=False)


def _cut_through(
    ops: _Ops, resource: IntArray, duration: IntArray, lag: IntArray, fabric: Fabric
) -> BoolArray | None:
    """Ops that are forwarded from their start on, with lags set so that nothing overtakes."""
    if ops.hop is None or ops.send is None or not ops.count:
        return None
    passes = np.append(ops.send[1:] == ops.send[:-1], False) & (ops.hop >= 0)
    passes &= np.append(fabric.forwards, False)[resource] & (duration > 0)
    passes &= np.append(resource[1:] >= 0, False)
    if not passes.any():
        return None
    at = np.flatnonzero(passes)
    lag[at] = np.maximum(1, lag[at] + np.maximum(0, duration[at] - duration[at + 1]))
    return passes


def _labels(sends: Messages, ops: _Ops) -> dict[str, Label]:
    channels, done = sends.channels, np.arange(sends.ranks)

    def label(column: IntArray, joins: IntArray | int, limit: int) -> IntArray:
        narrow = np.int16 if limit < 2**15 else np.int32
        return _with_joins(ops.spread(column.astype(narrow, copy=False)), joins, sends.ranks)

    def rank(column: IntArray) -> IntArray:
        narrow: IntArray = column.astype(np.int16 if sends.ranks < 2**15 else np.int32)
        return label(narrow[sends.channel], done, sends.ranks)

    return {
        "rank": rank(channels.src),
        "peer": rank(channels.dst),
        "chunk": label(sends.first, 0, int(sends.first.max(initial=0))),
        "chunks": label(sends.count, 0, int(sends.count.max(initial=0))),
        "step": label(sends.step, 0, int(sends.step.max(initial=0))),
        "what": Codes(_with_joins(_what(sends, ops), DONE, sends.ranks), WHAT),
    }


def _what(sends: Messages, ops: _Ops) -> IntArray:
    """Kind of hop of each op, uint8 (ops,)."""
    arrives = np.where(sends.reduce, np.uint8(REDUCE), np.uint8(COPY))
    joins = sends.channels.joins
    if joins.any():
        arrives[joins[sends.channel]] = JOINED
    if ops.hop is None:
        return arrives
    what = np.full(ops.count, PASS, np.uint8)
    what[ops.last] = arrives
    what[ops.hop < 0] = ISSUE
    return what
