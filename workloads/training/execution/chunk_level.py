"""The chunk level: an iteration with every collective written out as the chunks that it sends.

The ops of a rank that take part in a communication become joins, and between the two joins of each
call stands the schedule of its collective, on links and CC-Cores that all collectives share. What
contends there is thereby seen; where nothing does, times are those of the collective level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.collectives import CollectiveCall, build
from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import JOIN, NO_RESOURCE, Edges, Flows, Resources, Schedule
from cluster_sim.trace.trace import Trace
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.training.execution.flow_level import as_flow
from workloads.training.execution.lower import OWN, Layout, lay_out
from workloads.training.layers.steps import LayerOp
from workloads.training.program.group_times import group_of
from workloads.training.program.program import Exchange, Program

MOST_OPS = 10_000_000
"""Ops of a run; more would not fit in a few gigabytes."""
SENDER, RECEIVER = 0, 1


@dataclass(frozen=True, eq=False)
class Expanded:
    """An iteration in chunks.

    Attributes
    ----------
    schedule : Schedule
        The ops of ``told`` first, then those of all collectives.
    told : Schedule
        The same iteration at the collective level, on which times are told.
    op, end : int64 array (communications,)
        Ops of ranks that communicate, and the joins that end their calls.
    """

    schedule: Schedule
    told: Schedule
    op: IntArray
    end: IntArray


@dataclass(frozen=True, eq=False)
class _Copies:
    """One collective, as often as a group calls it.

    Attributes
    ----------
    pattern : Schedule
    join : int64 array (calls,)
        First of the two joins of each call.
    """

    pattern: Schedule
    join: IntArray

    def __len__(self) -> int:
        return len(self.pattern) * len(self.join)


def expand(
    program: Program, told: Schedule, cluster: Cluster, *, as_flows: bool = False
) -> Expanded:
    """Write out the collectives of an iteration.

    Parameters
    ----------
    program : Program
        Not folded: collectives of all groups share the fabric.
    told : Schedule
        The program at the collective level, without flows on memory.
    cluster : Cluster
    as_flows : bool
        Write each collective as one flow on the links that it uses, instead of its chunks.

    Raises
    ------
    InputError
        On machines whose collectives are known by measured times alone, and for an iteration of
        too many ops.
    """
    if covers(cluster):
        raise InputError(
            f"collectives of {cluster.name} are known by the times that NCCL takes, not by their "
            "chunks. Use --level collective."
        )
    layout = lay_out(program)
    copies = list(_collectives(program, layout, cluster, as_flows=as_flows))
    ops = len(told) + sum(map(len, copies))
    if ops > MOST_OPS:
        level = "flow" if as_flows else "chunk"
        raise InputError(
            f"--level {level} makes {ops:,} ops of this iteration; at most {MOST_OPS:,} are run. "
            "Use fewer chips, layers or microbatches, or --level collective."
        )
    op, end = _ends(program, layout)
    return Expanded(_joined(told, copies, op), told, op, end)


def project(trace: Trace, expanded: Expanded) -> Trace:
    """Tell the times of a chunk-level run on the ops of the collective level."""
    kept, times = slice(0, len(expanded.told)), trace.times
    end_ps = times.end_ps[kept].copy()
    end_ps[expanded.op] = times.end_ps[expanded.end]
    status = times.status[kept].copy()
    status[expanded.op] = times.status[expanded.end]
    ready_ps, start_ps = (column[kept] for column in (times.ready_ps, times.start_ps))
    told = replace(times, ready_ps=ready_ps, start_ps=start_ps, end_ps=end_ps, status=status)
    return Trace(expanded.told, told)


def _collectives(
    program: Program, layout: Layout, cluster: Cluster, *, as_flows: bool
) -> Iterator[_Copies]:
    """Calls of each group, once for each kind of call; not those that stay on one chip."""
    known: dict[tuple[bytes, str, int, int], Schedule] = {}
    for number, exchange in enumerate(program.exchanges, start=1):
        for members, kind in zip(exchange.members, exchange.kind.tolist(), strict=True):
            chips = program.chip[members]
            if _on_one_chip(chips):
                continue
            for step, calls in _calls(program, exchange):
                alone_ps = int(exchange.duration_ps[kind, calls[0]]) if as_flows else 0
                key = (chips.tobytes(), step.collective, step.size_bytes, alone_ps)
                if key not in known:
                    chunks = _schedule(cluster, chips, step)
                    known[key] = as_flow(chunks, alone_ps) if as_flows else chunks
                yield _Copies(known[key], layout.offset[members[0], number] + 2 * calls)


def _on_one_chip(chips: IntArray) -> bool:
    return bool((chips == chips[0]).all())


def _calls(program: Program, exchange: Exchange) -> Iterator[tuple[LayerOp, IntArray]]:
    """The different steps of an exchange, and which of its calls are of each."""
    stage = program.stage[exchange.members[0, 0]]
    step = program.streams[stage].ops.step[exchange.ops[exchange.role[0]]]
    for number in np.unique(step).tolist():
        yield program.steps[number], np.flatnonzero(step == number)


def _schedule(cluster: Cluster, chips: IntArray, step: LayerOp) -> Schedule:
    group = group_of(cluster, chips)
    if step.collective != "send":
        return build(CollectiveCall(step.collective, group, step.size_bytes))
    return _one_way(build(CollectiveCall("permute", group, step.size_bytes)))


def _one_way(both: Schedule) -> Schedule:
    """Messages of the first of two ranks that send to each other."""
    rank = np.asarray(both.labels["rank"])
    last = np.diff(both.edges.ptr) == 0
    kept = np.flatnonzero(np.where(last, rank == RECEIVER, rank == SENDER))
    place = np.full(len(both), -1)
    place[kept] = np.arange(len(kept))
    src, edges, flows = both.edges.sources(), both.edges, both.flows
    own = (place[src] >= 0) & (place[edges.dst] >= 0)
    starts = None if edges.from_start is None else edges.from_start[own]
    among = np.flatnonzero(place[flows.op] >= 0)
    shares = np.repeat(place[flows.op] >= 0, np.diff(flows.ptr))
    widths = np.diff(flows.ptr)[among]
    return schedule(
        OpColumns(
            kind=both.kind[kept],
            resource=both.resource[kept],
            duration_ps=both.duration_ps[kept],
            size_bytes=both.size_bytes[kept],
            priority=both.priority[kept],
        ),
        edges=Edges.from_pairs(
            len(kept), place[src[own]], place[edges.dst[own]], edges.lag_ps[own], starts
        ),
        resources=both.resources,
        flows=Flows(
            place[flows.op[among]].astype(np.int32),
            flows.cap_bytes_per_s[among],
            np.concatenate([[0], np.cumsum(widths)]),
            flows.resource[shares],
            flows.weight[shares],
        ),
    )


def _ends(program: Program, layout: Layout) -> tuple[IntArray, IntArray]:
    """Ops of ranks in communications that are written out, and the joins that end these."""
    ops, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, exchange in enumerate(program.exchanges, start=1):
        for members in exchange.members:
            first = layout.offset[members[0], number]
            if _on_one_chip(program.chip[members]):
                continue
            for place, role in enumerate(exchange.role.tolist()):
                ops.append(layout.offset[members[place], OWN] + exchange.ops[role])
                ends.append(first + 2 * np.arange(exchange.calls) + 1)
    return np.concatenate(ops), np.concatenate(ends)


def _joined(told: Schedule, copies: list[_Copies], talks: IntArray) -> Schedule:
    """All ops in one schedule: those of ranks, then the copies of each collective."""
    kind, duration, resource = (
        column.copy() for column in (told.kind, told.duration_ps, told.resource)
    )
    kind[talks], duration[talks], resource[talks] = JOIN, 0, NO_RESOURCE
    first = np.cumsum([len(told), *map(len, copies)])
    tables, places = _fabric(told.resources, copies)
    columns = [np.stack([kind, resource, duration, told.size_bytes, told.priority])]
    pairs = [_pairs(told.edges, np.zeros(1, np.int64))]
    flows = [told.flows]
    for one, at, place in zip(copies, first.tolist(), places, strict=False):
        pattern, at_calls = one.pattern, at + len(one.pattern) * np.arange(len(one.join))
        held = np.append(place, NO_RESOURCE)[pattern.resource]
        each = np.stack(
            [pattern.kind, held, pattern.duration_ps, pattern.size_bytes, pattern.priority]
        )
        columns.append(np.tile(each, len(one.join)))
        pairs += [_pairs(pattern.edges, at_calls), *_framed(one, at_calls)]
        flows.append(_tiled(pattern.flows, at_calls, place))
    whole = np.concatenate(columns, axis=1)
    src, dst, lag, starts = np.concatenate(pairs, axis=1)
    edges = Edges.from_pairs(int(first[-1]), src, dst, lag, starts > 0)
    return schedule(
        OpColumns(
            kind=whole[0],
            resource=whole[1],
            duration_ps=whole[2],
            size_bytes=whole[3],
            priority=whole[4],
        ),
        edges=edges,
        resources=tables,
        flows=_flows(flows),
    )


def _fabric(streams: Resources, copies: list[_Copies]) -> tuple[Resources, list[IntArray]]:
    """Streams, then what collectives hold, each once; and the number there of what each knows."""
    number: dict[str, int] = {}
    tables, places = [streams], list[IntArray]()
    for one in copies:
        theirs = one.pattern.resources
        names = theirs.names()
        new = np.array([k for k, name in enumerate(names) if name not in number], np.int64)
        for k in new.tolist():
            number[names[k]] = len(streams) + len(number)
        columns = ("kind", "owner", "peer", "lane", "slots", "capacity")
        picked = {column: getattr(theirs, column)[new] for column in columns}
        tables.append(replace(theirs, **picked))
        places.append(np.array([number[name] for name in names], np.int64))
    return Resources.concat(tables), places


def _pairs(edges: Edges, at: IntArray) -> IntArray:
    """Edges of copies that begin at these ops: source, target, lag, whether it is from a start."""
    starts = np.zeros(len(edges), np.int64) if edges.from_start is None else edges.from_start
    src, dst = (np.add.outer(at, ends).ravel() for ends in (edges.sources(), edges.dst))
    return np.stack([src, dst, np.tile(edges.lag_ps, len(at)), np.tile(starts, len(at))])


def _framed(one: _Copies, at: IntArray) -> Iterator[IntArray]:
    """Edges from the first join of a call to its first ops, and from its last ones to the other."""
    edges = one.pattern.edges
    waits = np.zeros(len(one.pattern), np.bool_)
    waits[edges.dst] = True
    begin, end = np.flatnonzero(~waits), np.flatnonzero(np.diff(edges.ptr) == 0)
    heads, tails = np.add.outer(at, begin), np.add.outer(at, end)
    for src, dst in ((one.join[:, None], heads), (tails, one.join[:, None] + 1)):
        both = np.stack(np.broadcast_arrays(src, dst)).reshape(2, -1)
        yield np.concatenate([both, np.zeros_like(both)])


def _tiled(flows: Flows, at: IntArray, place: IntArray) -> Flows:
    """Flows of copies that begin at these ops."""
    copies = len(at)
    widths = np.tile(np.diff(flows.ptr), copies)
    return Flows(
        np.add.outer(at, flows.op).ravel().astype(np.int32),
        np.tile(flows.cap_bytes_per_s, copies),
        np.concatenate([[0], np.cumsum(widths)]),
        np.tile(place[flows.resource], copies).astype(np.int32),
        np.tile(flows.weight, copies),
    )


def _flows(tables: list[Flows]) -> Flows:
    widths = np.concatenate([np.diff(one.ptr) for one in tables])
    return Flows(
        np.concatenate([one.op for one in tables]),
        np.concatenate([one.cap_bytes_per_s for one in tables]),
        np.concatenate([[0], np.cumsum(widths)]),
        np.concatenate([one.resource for one in tables]),
        np.concatenate([one.weight for one in tables]),
    )
