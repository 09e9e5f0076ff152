"""From sends to ops: each send is issued by a CC-Core and crosses the links of its channel.

One op a hop. On plain shapes a chip on the way stores a message before it forwards it; switches,
and real chips, forward while they receive (a start-edge, rule 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cluster_sim.build import schedule
from cluster_sim.collectives.sends import Sends
from cluster_sim.fabric import Fabric, Paths
from cluster_sim.instants import transfer_ps
from cluster_sim.schedule import (
    FIXED,
    JOIN,
    NO_RESOURCE,
    BoolArray,
    Codes,
    Edges,
    IntArray,
    Label,
    Schedule,
)

WHAT = ("issue", "pass", "copy", "reduce", "join", "done")
"""Label of an op: a CC-Core's step; a hop to a chip on the way; the last hop, whose message
replaces what the receiver holds, or is added to it; a rank that has what its next sends need; one
that has received all."""
ISSUE, PASS, COPY, REDUCE, JOINED, DONE = range(6)

NARROW = 1024
"""Span of sizes [B] up to which times are looked up instead of divided."""

Facts = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, eq=False)
class _Ops:
    """Which op is which hop of which send; ``send`` and ``hop`` are None for one op a send.

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


def lower(sends: Sends, chip_of_rank: IntArray, fabric: Fabric, facts: Facts) -> Schedule:
    """Turn sends into a schedule on a fabric.

    Parameters
    ----------
    sends : Sends
    chip_of_rank : int array (ranks,)
        Global chips.
    fabric : Fabric
    facts : mapping
        Of the schedule.

    Returns
    -------
    Schedule
        Ops in the order of the sends, then one join a rank, ``done``. Labels: ``rank`` and ``peer``
        (from, to), ``chunk`` and ``chunks`` (the range sent), ``step``, ``what``.
    """
    paths = _paths(sends, chip_of_rank, fabric)
    ops = _lay_out(np.diff(paths.ptr), sends, issued=fabric.wire.issue_ps > 0)
    hop = _hops(sends, paths, ops)
    resource = paths.resource.astype(np.int32)[hop]
    lag = paths.latency_ps[hop]
    if fabric.wire.issue_ps > 0 and ops.hop is not None:
        issue = ops.hop < 0
        source = chip_of_rank[sends.channels.src][sends.channel]
        resource[issue] = fabric.cc(ops.spread(source)[issue])
        lag[issue] = 0
    size = ops.spread(sends.size_bytes)
    duration = _durations(size, resource, ops, fabric)
    edges = _edges(sends, ops, _cut_through(ops, resource, duration, lag, fabric), lag)
    if duration.min(initial=1) == 0:
        resource[duration == 0] = NO_RESOURCE
    extra = sends.ranks
    return schedule(
        kind=np.append(np.where(duration > 0, FIXED, JOIN), np.full(extra, JOIN)),
        resource=np.append(resource, np.full(extra, NO_RESOURCE)),
        duration_ps=np.append(duration, np.zeros(extra, np.int64)),
        size_bytes=np.append(size, np.zeros(extra, np.int64)),
        priority=np.append(ops.spread(sends.priority), np.zeros(extra, np.int32)),
        edges=edges,
        resources=fabric.resources,
        labels=_labels(sends, ops),
        facts=facts,
    )


def _paths(sends: Sends, chip_of_rank: IntArray, fabric: Fabric) -> Paths:
    """What each channel crosses; between the cores of one chip a hop over nothing."""
    channels = sends.channels
    src, dst = chip_of_rank[channels.src], chip_of_rank[channels.dst]
    if channels.ptr is not None and channels.link is not None:
        return fabric.along(src, channels.ptr, channels.link)
    return fabric.route(src, dst).never_empty()


def _lay_out(hops: IntArray, sends: Sends, *, issued: bool) -> _Ops:
    if not issued and hops.max(initial=1) == 1:
        each = np.arange(len(sends), dtype=np.int32)
        return _Ops(len(sends), each, each, None, None)
    joins = (sends.channels.src == sends.channels.dst)[sends.channel]
    width = hops[sends.channel] + (issued & ~joins)
    end = np.cumsum(width)
    count = int(end[-1]) if len(end) else 0
    send = np.repeat(np.arange(len(sends), dtype=np.int32), width)
    first = (end - width).astype(np.int32)
    hop = np.arange(count, dtype=np.int32) - (first + (issued & ~joins))[send]
    return _Ops(count, first, (end - 1).astype(np.int32), send, hop)


def _hops(sends: Sends, paths: Paths, ops: _Ops) -> IntArray:
    """Row of the paths that each op stands for; of an issue the first."""
    first = paths.ptr[:-1].astype(np.int32)[sends.channel]
    return first if ops.hop is None else ops.spread(first) + np.maximum(0, ops.hop)


def _durations(size: IntArray, resource: IntArray, ops: _Ops, fabric: Fabric) -> IntArray:
    """Time of each op [ps]: on the wire by size and rate, of an issue as it is; 0 for a join."""
    rates = np.unique(fabric.rate)
    rates = rates[rates > 0]
    least, most = int(size.min(initial=0)), int(size.max(initial=0))
    if most - least <= NARROW and len(rates):
        code = np.searchsorted(rates, fabric.rate).astype(np.int32)[resource]
        table = transfer_ps(np.arange(least, most + 1), rates[:, None])
        duration = table.ravel()[code * np.int32(most - least + 1) + (size - least)]
    else:
        rate = np.where(fabric.rate > 0, fabric.rate, rates.max(initial=1))
        duration = transfer_ps(size, rate[resource])
    if least == 0:
        duration[size == 0] = 0
    if resource.min(initial=0) < 0:
        duration[resource < 0] = 0
    if ops.hop is not None and fabric.wire.issue_ps > 0:
        duration[ops.hop < 0] = fabric.wire.issue_ps
    return np.asarray(duration)


def _edges(sends: Sends, ops: _Ops, from_start: BoolArray | None, lag: IntArray) -> Edges:
    """Hop after hop of each send, its arrival to the sends that wait for it or to ``done``."""
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
    """Edge pointers of the ops, then of the joins, which lead nowhere."""
    return np.append(ptr, np.full(joins, edges, np.int64)).astype(np.int64, copy=False)


def _cut_through(
    ops: _Ops, resource: IntArray, duration: IntArray, lag: IntArray, fabric: Fabric
) -> BoolArray | None:
    """Ops that are forwarded from their start on; their lags are set so that nothing overtakes."""
    if ops.hop is None or ops.send is None or not ops.count:
        return None
    passes = np.append(ops.send[1:] == ops.send[:-1], False) & (ops.hop >= 0)
    passes &= np.append(fabric.forwards, False)[resource] & (duration > 0)
    if not passes.any():
        return None
    at = np.flatnonzero(passes)
    lag[at] = np.maximum(1, lag[at] + np.maximum(0, duration[at] - duration[at + 1]))
    return passes


def _labels(sends: Sends, ops: _Ops) -> dict[str, Label]:
    channels = sends.channels
    done = np.arange(sends.ranks)

    def label(column: IntArray, joins: IntArray | int, limit: int) -> IntArray:
        narrow = np.int16 if limit < 2**15 else np.int32
        tail = np.broadcast_to(np.asarray(joins, narrow), done.shape)
        return np.append(ops.spread(column.astype(narrow)), tail)

    arrives = np.where(sends.reduce, REDUCE, COPY).astype(np.uint8)
    arrives[(channels.src == channels.dst)[sends.channel]] = JOINED
    what = ops.spread(arrives)
    if ops.hop is not None:
        what = np.full(ops.count, PASS, np.uint8)
        what[ops.last] = arrives
        what[ops.hop < 0] = ISSUE
    return {
        "rank": label(channels.src[sends.channel], done, sends.ranks),
        "peer": label(channels.dst[sends.channel], done, sends.ranks),
        "chunk": label(sends.first, 0, len(sends.chunks)),
        "chunks": label(sends.count, 0, len(sends.chunks)),
        "step": label(sends.step, 0, int(sends.step.max(initial=0))),
        "what": Codes(np.append(what, np.full(len(done), DONE, np.uint8)), WHAT),
    }
