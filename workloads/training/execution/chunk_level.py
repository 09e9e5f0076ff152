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
from cluster_sim.engine.times import Times
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.merge import common
from cluster_sim.schedule.routines import Routines
from cluster_sim.schedule.table import JOIN, NO_RESOURCE, Edges, Flows, Resources, Schedule
from cluster_sim.trace.trace import Trace
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.training.execution.flow_level import as_flow
from workloads.training.execution.lower import OWN, Layout, lay_out
from workloads.training.layers.steps import LayerOp
from workloads.training.program.exchanges import Exchange
from workloads.training.program.group_times import group_of
from workloads.training.program.program import Program

MOST_OPS = 10_000_000
"""Ops that stand in a schedule; more would not fit in a few gigabytes."""
MOST_OPS_RUN = 2 * 10**9
"""Ops that a run goes through: some minutes."""
SENDER, RECEIVER = 0, 1


@dataclass(frozen=True, eq=False)
class Expanded:
    """An iteration in chunks.

    Attributes
    ----------
    schedule : Schedule
        The ops of ``collectives`` first, then each collective of each group, once.
    routines : Routines
        Where these stand, and which joins call them.
    collectives : Schedule
        The same iteration at the collective level, whose ops the results show.
    op, end : int64 array (communications,)
        Ops of ranks that communicate, and the joins that end their calls.
    """

    schedule: Schedule
    routines: Routines
    collectives: Schedule
    op: IntArray
    end: IntArray

    @property
    def ops(self) -> int:
        """Ops that a run goes through, without the joins that only end a call."""
        return self.routines.ops - len(self.routines.caller)


@dataclass(frozen=True, eq=False)
class _Called:
    """One collective of one group, and who calls it.

    Attributes
    ----------
    pattern : Schedule
    join : int64 array (calls,)
        First of the two joins of each call.
    """

    pattern: Schedule
    join: IntArray

    def __len__(self) -> int:
        return len(self.pattern) + 1


def expand(
    program: Program,
    collectives: Schedule,
    cluster: Cluster,
    *,
    as_flows: bool = False,
    in_place: bool = True,
) -> Expanded:
    """Write out the collectives of an iteration.

    Parameters
    ----------
    program : Program
        Not folded: collectives of all groups share the fabric.
    collectives : Schedule
        The program at the collective level, without flows on memory.
    cluster : Cluster
    as_flows : bool
        Write each collective as one flow on the links that it uses, instead of its chunks.
    in_place : bool
        Whether an engine will run routines in place; one that needs them written out has room for
        fewer calls.

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
    called = list(_collectives(program, layout, cluster, as_flows=as_flows))
    standing = len(collectives) + sum(map(len, called))
    run = len(collectives) + sum(len(call.pattern) * len(call.join) for call in called)
    level = "flow" if as_flows else "chunk"
    most = MOST_OPS_RUN if in_place else MOST_OPS
    if run > most:
        more = "" if in_place else ", --engine fast without --fault"
        raise InputError(
            f"--level {level} makes {run:,} ops of this iteration; at most {most:,} are run. "
            f"Use fewer chips, layers or microbatches{more}, or --level collective."
        )
    if standing > MOST_OPS:
        raise InputError(
            f"--level {level} makes a schedule of {standing:,} ops of the groups of this plan; at "
            f"most {MOST_OPS:,} fit. Use fewer chips or layers, or --level collective."
        )
    op, end = _ends(program, layout)
    return Expanded(*_joined(collectives, called, op), collectives, op, end)


def with_durations(expanded: Expanded, collectives: Schedule) -> Expanded:
    """Return the same iteration with the kernel times of another schedule of its program."""
    duration = expanded.schedule.duration_ps.copy()
    duration[: len(collectives)] = collectives.duration_ps
    duration[expanded.op] = 0
    return replace(
        expanded, schedule=replace(expanded.schedule, duration_ps=duration), collectives=collectives
    )


def project(times: Times, expanded: Expanded) -> Trace:
    """Carry the times of ops outside of routines over to the ops of the collective level."""
    end_ps, status = times.end_ps.copy(), times.status.copy()
    end_ps[expanded.op] = times.end_ps[expanded.end]
    status[expanded.op] = times.status[expanded.end]
    return Trace(expanded.collectives, replace(times, end_ps=end_ps, status=status))


def _collectives(
    program: Program, layout: Layout, cluster: Cluster, *, as_flows: bool
) -> Iterator[_Called]:
    """Calls of each group, once for each kind of call; not those that stay on one chip."""
    schedules: dict[tuple[bytes, str, int, int], Schedule] = {}
    for number, exchange in enumerate(program.exchanges, start=1):
        for members, kind in zip(exchange.members, exchange.kind.tolist(), strict=True):
            chips = program.chip[members]
            if _on_one_chip(chips):
                continue
            for step, calls in _calls(program, exchange):
                alone_ps = int(exchange.duration_ps[kind, calls[0]]) if as_flows else 0
                key = (chips.tobytes(), step.collective, step.size_bytes, alone_ps)
                if key not in schedules:
                    chunks = _schedule(cluster, chips, step)
                    schedules[key] = as_flow(chunks, alone_ps) if as_flows else chunks
                yield _Called(schedules[key], layout.offset[members[0], number] + 2 * calls)


def _on_one_chip(chips: IntArray) -> bool:
    return bool((chips == chips[0]).all())


def _calls(program: Program, exchange: Exchange) -> Iterator[tuple[LayerOp, IntArray]]:
    """Return the different steps of an exchange, and the calls of each."""
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
    within = (place[src] >= 0) & (place[edges.dst] >= 0)
    starts = None if edges.from_start is None else edges.from_start[within]
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
            len(kept), place[src[within]], place[edges.dst[within]], edges.lag_ps[within], starts
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


def _joined(
    collectives: Schedule, called: list[_Called], talks: IntArray
) -> tuple[Schedule, Routines]:
    """All ops in one schedule: those of ranks, then each collective and the join that ends it."""
    kind, duration, resource = (
        column.copy()
        for column in (collectives.kind, collectives.duration_ps, collectives.resource)
    )
    kind[talks], duration[talks], resource[talks] = JOIN, 0, NO_RESOURCE
    patterns = [call.pattern for call in called]
    first = np.cumsum([len(collectives), *map(len, called)])
    tables, places = _fabric(collectives.resources, patterns)
    held = [
        np.append(place, NO_RESOURCE)[pattern.resource]
        for pattern, place in zip(patterns, places, strict=True)
    ]
    columns = OpColumns(
        kind=_behind(kind, [pattern.kind for pattern in patterns], JOIN),
        resource=_behind(resource, held, NO_RESOURCE),
        duration_ps=_behind(duration, [pattern.duration_ps for pattern in patterns], 0),
        size_bytes=_behind(collectives.size_bytes, [pattern.size_bytes for pattern in patterns], 0),
        priority=_behind(collectives.priority, [pattern.priority for pattern in patterns], 0),
    )
    routines = Routines(
        first,
        np.concatenate([np.empty(0, np.int64), *(call.join for call in called)]),
        np.repeat(np.arange(len(called)), [len(call.join) for call in called]),
    )
    return schedule(
        columns,
        edges=_edges(collectives.edges, patterns, first),
        resources=tables,
        flows=_flows(collectives.flows, patterns, first, places),
    ), routines


def _behind(outside: IntArray, parts: list[IntArray], end: int) -> IntArray:
    """A column of the ops outside of routines, then of each routine and of its last join."""
    last = np.full(1, end, outside.dtype)
    both = (column for part in parts for column in (part.astype(outside.dtype, copy=False), last))
    return np.concatenate([outside, *both])


def _fabric(streams: Resources, patterns: list[Schedule]) -> tuple[Resources, list[IntArray]]:
    """Return streams and then all resources of collectives, each once, and their new numbers."""
    tables = {
        id(pattern.resources): pattern.resources for pattern in patterns
    }  # most share their table
    if not tables:
        return streams, []
    held, numbers = common(list(tables.values()))
    number = dict(zip(tables, numbers, strict=True))
    whole = Resources.concat([streams, held])
    return whole, [len(streams) + number[id(pattern.resources)] for pattern in patterns]


def _edges(outside: Edges, patterns: list[Schedule], first: IntArray) -> Edges:
    """Edges of the ops outside, then of each routine, whose last ops lead to its join."""
    ptr, dst = [outside.ptr], [outside.dst]
    lag_ps, starts = [outside.lag_ps], [outside.start_mask()]
    at = len(outside)
    for pattern, begin in zip(patterns, first.tolist(), strict=False):
        edges, end = pattern.edges, len(pattern)
        leaving = np.diff(edges.ptr)
        last = np.flatnonzero(leaving == 0)
        leaving[last] = 1
        behind = at + np.cumsum(np.append(leaving, 0))
        place = edges.ptr[last]
        ptr.append(behind)
        dst.append((np.insert(edges.dst, place, end) + begin).astype(np.int32))
        lag_ps.append(np.insert(edges.lag_ps, place, 0))
        starts.append(np.insert(edges.start_mask(), place, False))
        at = int(behind[-1])
    from_start = np.concatenate(starts)
    return Edges(
        np.concatenate(ptr),
        np.concatenate(dst),
        np.concatenate(lag_ps),
        from_start if from_start.any() else None,
    )


def _flows(
    outside: Flows, patterns: list[Schedule], first: IntArray, places: list[IntArray]
) -> Flows:
    """Flows of the ops outside, then of each routine."""
    tables = [pattern.flows for pattern in patterns]
    widths = [np.diff(table.ptr) for table in (outside, *tables)]
    ops = [table.op + begin for table, begin in zip(tables, first.tolist(), strict=False)]
    held = [place[table.resource] for table, place in zip(tables, places, strict=True)]
    return Flows(
        np.concatenate([outside.op, *ops]).astype(np.int32),
        np.concatenate([table.cap_bytes_per_s for table in (outside, *tables)]),
        np.concatenate([[0], np.cumsum(np.concatenate(widths))]).astype(np.int64),
        np.concatenate([outside.resource, *held]).astype(np.int32),
        np.concatenate([table.weight for table in (outside, *tables)]),
    )
