"""The compiled loop that writes all columns of the ops of messages, hop by hop, in one pass.

It takes the time in which memory can be written. With an array expression for each column, most
of the time for a collective of a million messages would go into intermediate arrays.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster_sim.engine.compiler.jit import inlined, lean
from cluster_sim.schedule.table import FIXED, JOIN, NO_RESOURCE
from topologies.arrays import BoolArray, IntArray

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
    speed: IntArray  # (resources,): row of duration_ps that holds for each link
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
    """Write the ops of all messages; returns how many edges count from the start of their op.

    A message of h hops is one op that issues it, if issuing takes time, then h ops. A node that
    forwards a message while it receives it begins when the hop before has begun, after a lag of at
    least one picosecond. The lag is longer where the next link is faster, so that the last byte is
    never sent on before it has arrived.
    """
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
        duration_ps = _wire_ps(routes, resource, size, alike)
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
            duration_ps = _wire_ps(routes, resource, size, alike)
            if lasts and resource >= 0 and routes.forwards[here]:
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
def _wire_ps(routes: Routes, resource: int, size: int, alike: int) -> int:
    """Return the time of a message on one hop [ps], 0 for an empty message or without a link."""
    if size == 0 or resource < 0:
        return 0
    return int(routes.duration_ps[routes.speed[resource], alike])
