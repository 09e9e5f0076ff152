"""The loop that writes the ops of messages: every column of every op, hop by hop, in one pass.

A collective of a million messages is written in the time in which its columns can be filled; with
an array expression a column, most of the time would go into arrays in between.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster_sim.engine.jit import inlined, lean
from cluster_sim.schedule.table import FIXED, JOIN, NO_RESOURCE
from topologies.arrays import BoolArray, IntArray

WHAT = ("issue", "pass", "copy", "reduce", "join", "done")
"""Label of an op: a CC-Core's step; a hop to a chip on the way; the last hop, whose message
replaces what the receiver holds, or is added to it; a rank that has what its next sends need; one
that has received all."""
ISSUE, PASS, COPY, REDUCE, JOINED, DONE = range(6)


class Sends(NamedTuple):
    """Columns of the messages, one element a message.

    Attributes
    ----------
    first : int64 array (messages + 1,)
        First op of each message; the last value is the number of ops.
    channel, priority : int32 array (messages,)
    size : int64 array (messages,)
        Bytes [B].
    alike : int32 array (messages,)
        Column of ``Routes.duration_ps`` that has the times of such a size.
    before_wire_ps : int64 array (messages,), or (0,) where nothing is issued
        From the end of the issue until the message is on the wire [ps].
    arrives : uint8 array (messages,)
        Label of the last hop.
    edge : int64 array (messages + 1,)
        Messages that wait for message k are ``waiting[edge[k]:edge[k + 1]]``.
    waiting : int32 array (edges,)
    """

    first: IntArray
    channel: IntArray
    priority: IntArray
    size: IntArray
    alike: IntArray
    before_wire_ps: IntArray
    arrives: IntArray
    edge: IntArray
    waiting: IntArray


class Routes(NamedTuple):
    """Hops of the channels, and times on their links.

    Attributes
    ----------
    ptr : int64 array (channels + 1,)
        Hops of channel c are ``ptr[c]:ptr[c + 1]``.
    resource, latency_ps : int64 array (hops,)
        ``NO_RESOURCE`` for a hop that crosses no link; from the end of the hop to its arrival [ps].
    join : bool array (channels,)
        Channels of a rank to itself.
    receiver : int32 array (channels,)
        Last op of the rank that each leads to.
    core : int64 array (channels,), or (0,) where nothing is issued
        Resource that issues the messages of each channel.
    issue_ps : int
        Time that it takes [ps].
    speed : int64 array (resources,)
        Row of ``duration_ps`` of each resource.
    duration_ps : int64 array (rates, sizes)
        Time of a message on a link [ps].
    forwards : bool array (resources,)
        Whether what a link leads to passes a message on while receiving it.
    """

    ptr: IntArray
    resource: IntArray
    latency_ps: IntArray
    join: BoolArray
    receiver: IntArray
    core: IntArray
    issue_ps: int
    speed: IntArray
    duration_ps: IntArray
    forwards: BoolArray


class Written(NamedTuple):
    """Columns of the ops, and of the edges that leave them; see :class:`Schedule`.

    Attributes
    ----------
    kind, what : uint8 array (ops,)
    resource, priority : int32 array (ops,)
    duration_ps, size : int64 array (ops,)
    edge : int64 array (ops + 1,)
    dst : int32 array (edges,)
    lag_ps : int64 array (edges,)
    from_start : bool array (edges,), False throughout
    """

    kind: IntArray
    what: IntArray
    resource: IntArray
    priority: IntArray
    duration_ps: IntArray
    size: IntArray
    edge: IntArray
    dst: IntArray
    lag_ps: IntArray
    from_start: BoolArray


@lean
def write_ops(sends: Sends, routes: Routes, ops: Written) -> int:
    """Write the ops of all messages; returns how many edges count from the start of their op.

    A message of h hops is an issue, if issuing takes time, then h ops. What forwards a message
    while it receives it does so from the start of the hop on, with a lag such that it never
    overtakes itself: never less than one picosecond, and longer where the next link is faster.
    """
    edge, cut_through = 0, 0
    for send in range(len(sends.channel)):
        channel, size, alike = sends.channel[send], sends.size[send], sends.alike[send]
        op = sends.first[send]
        if routes.issue_ps > 0 and not routes.join[channel]:
            ops.kind[op], ops.what[op] = FIXED, ISSUE
            ops.resource[op], ops.duration_ps[op] = routes.core[channel], routes.issue_ps
            ops.priority[op], ops.size[op], ops.edge[op] = sends.priority[send], size, edge
            ops.dst[edge], ops.lag_ps[edge] = op + 1, sends.before_wire_ps[send]
            op += 1
            edge += 1
        hop, last = routes.ptr[channel], routes.ptr[channel + 1] - 1
        resource = routes.resource[hop]
        duration_ps = _wire_ps(routes, resource, size, alike)
        while True:
            lasts = duration_ps > 0
            ops.kind[op] = FIXED if lasts else JOIN
            ops.resource[op] = resource if lasts else NO_RESOURCE
            ops.duration_ps[op], ops.size[op] = duration_ps, size
            ops.priority[op], ops.edge[op] = sends.priority[send], edge
            lag_ps = routes.latency_ps[hop]
            if hop == last:
                break
            ops.what[op] = PASS
            here, here_ps = resource, duration_ps
            hop += 1
            resource = routes.resource[hop]
            duration_ps = _wire_ps(routes, resource, size, alike)
            if lasts and resource >= 0 and routes.forwards[here]:
                lag_ps = max(1, lag_ps + max(0, here_ps - duration_ps))
                ops.from_start[edge] = True
                cut_through += 1
            op += 1
            ops.dst[edge], ops.lag_ps[edge] = op, lag_ps
            edge += 1
        ops.what[op] = sends.arrives[send]
        begin, end = sends.edge[send], sends.edge[send + 1]
        if begin == end:
            ops.dst[edge], ops.lag_ps[edge] = routes.receiver[channel], lag_ps
            edge += 1
        for row in range(begin, end):
            ops.dst[edge], ops.lag_ps[edge] = sends.first[sends.waiting[row]], lag_ps
            edge += 1
    return cut_through


@inlined
def _wire_ps(routes: Routes, resource: int, size: int, alike: int) -> int:
    """Time of a message on one hop [ps]; none where nothing is sent, or over no link."""
    if size == 0 or resource < 0:
        return 0
    return int(routes.duration_ps[routes.speed[resource], alike])
