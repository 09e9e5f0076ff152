"""The chunk level: an iteration with every collective written out as the chunks that it sends.

The ops of ranks that communicate become joins, and between the two joins of each call stands the
schedule of its collective, on links and CC-Cores that all collectives share. So contention between
collectives is simulated; without contention, times are those of the collective level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group, build
from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.engine.times import Times
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.routines import Routines
from cluster_sim.schedule.table import Edges, Flows, Schedule
from cluster_sim.trace.trace import Trace
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from topologies.memory_limit import check_memory
from workloads.training.execution.flow_level import as_flow
from workloads.training.execution.layout import OWN, Layout, lay_out
from workloads.training.execution.routine_schedule import Called, with_routines
from workloads.training.layers.steps import LayerOp
from workloads.training.program.exchanges import Exchange
from workloads.training.program.group_times import group_of
from workloads.training.program.program import Program

BYTES_AN_OP = 165
"""Peak memory of building and running a schedule for each op that stands in it [B]: measured as
161 B for 5.7 and 8.2 M ops of Llama-3.1-8B on 1,024 chips of Trn2."""
MOST_OPS_OUT = 10_000_000  # largest number of ops of a run where every call is written out
MOST_OPS_RUN = 2 * 10**9
"""Largest number of ops of a run, with repeated calls; they take some minutes."""
SENDER, RECEIVER = 0, 1  # ranks of a send within its group


@dataclass(frozen=True, eq=False)
class Expanded:
    """An iteration whose collectives are written out."""

    # The ops of ``collectives``, followed by each collective of each group, once
    schedule: Schedule
    routines: Routines  # places of these collectives in the schedule, and the joins that call them
    # The same iteration at the collective level; results are reported for its ops
    collectives: Schedule
    # op, end: (communications,): op of each rank in each communication that is written out, and the
    # join that ends the call
    op: IntArray
    end: IntArray

    @property
    def ops(self) -> int:
        """Ops of a run with repeated calls, without the joins that only end a call."""
        return self.routines.ops - len(self.routines.caller)


def expand(
    program: Program,
    collectives: Schedule,
    cluster: Cluster,
    *,
    as_flows: bool = False,
    in_place: bool = True,
    down: tuple[str, ...] = (),
) -> Expanded:
    """Write out the collectives of an iteration."""
    if covers(cluster):
        raise InputError(
            f"collectives of {cluster.name} are known by the times that NCCL takes, not by their "
            "chunks. Use --level collective."
        )
    layout = lay_out(program)
    called = list(_collectives(program, layout, cluster, down, as_flows=as_flows))
    standing = len(collectives) + sum(map(len, called))
    run = len(collectives) + sum(len(call.pattern) * len(call.join) for call in called)
    level = "flow" if as_flows else "chunk"
    most = MOST_OPS_RUN if in_place else MOST_OPS_OUT
    if run > most:
        more = "" if in_place else ", --engine fast without --fault"
        raise InputError(
            f"--level {level} makes {run:,} ops of this iteration; at most {most:,} are run. "
            f"Use fewer chips, layers or microbatches{more}, or --level collective."
        )
    check_memory(
        f"a schedule of {standing:,} ops, which --level {level} makes of the groups of this plan,",
        standing * BYTES_AN_OP,
        "Use fewer chips, layers or microbatches, or --level collective.",
    )
    op, end = _ends(program, layout)
    return Expanded(*with_routines(collectives, called, op), collectives, op, end)


def with_durations(expanded: Expanded, collectives: Schedule) -> Expanded:
    """Return the same iteration with the kernel times of another schedule of its program."""
    duration = expanded.schedule.duration_ps.copy()
    duration[: len(collectives)] = collectives.duration_ps
    duration[expanded.op] = 0
    return replace(
        expanded, schedule=replace(expanded.schedule, duration_ps=duration), collectives=collectives
    )


def project(times: Times, expanded: Expanded) -> Trace:
    """Return the trace of the collective level, with times from a run of the expanded schedule."""
    end_ps, status = times.end_ps.copy(), times.status.copy()
    end_ps[expanded.op] = times.end_ps[expanded.end]
    status[expanded.op] = times.status[expanded.end]
    return Trace(expanded.collectives, replace(times, end_ps=end_ps, status=status))


def _collectives(
    program: Program, layout: Layout, cluster: Cluster, down: tuple[str, ...], *, as_flows: bool
) -> Iterator[Called]:
    """Yield each collective of each group with its calls, apart from those within one chip."""
    schedules: dict[tuple[bytes, str, int, int], Schedule] = {}
    for number, exchange in enumerate(program.exchanges, start=1):
        for members, kind in zip(exchange.members, exchange.kind.tolist(), strict=True):
            chips = program.chip[members]
            if _on_one_chip(chips):
                continue
            for step, calls in _calls(program, exchange, as_flows=as_flows):
                alone_ps = int(exchange.duration_ps[kind, calls[0]]) if as_flows else 0
                key = (chips.tobytes(), step.collective, step.size_bytes, alone_ps)
                if key not in schedules:
                    group = group_of(cluster, chips)
                    chunks = call_schedule(group, step.collective, step.size_bytes, down)
                    flow_or_chunks = as_flow(chunks, alone_ps) if as_flows else chunks
                    schedules[key] = replace(flow_or_chunks, labels={})  # nobody reads them
                yield Called(schedules[key], layout.offset[members[0], number] + 2 * calls)


def _on_one_chip(chips: IntArray) -> bool:
    return bool((chips == chips[0]).all())


def _calls(
    program: Program, exchange: Exchange, *, as_flows: bool
) -> Iterator[tuple[LayerOp, IntArray]]:
    """Return the different collectives of an exchange, and the calls of each.

    Steps of one stream follow one another on every rank, so those of one collective and size are
    calls of one routine. As flows they may differ in their times.
    """
    stage = program.stage[exchange.members[0, 0]]
    step = program.streams[stage].ops.step[exchange.ops[exchange.role[0]]]
    alike: dict[object, list[int]] = {}
    for number in np.unique(step).tolist():
        each = program.steps[number]
        key = number if as_flows else (each.collective, each.size_bytes, each.stream)
        alike.setdefault(key, []).append(number)
    for numbers in alike.values():
        yield program.steps[numbers[0]], np.flatnonzero(np.isin(step, numbers))


def call_schedule(
    group: Group, collective: str, size_bytes: int, down: tuple[str, ...] = ()
) -> Schedule:
    """Return the schedule of a collective or a send of a group, around links that are down."""
    if collective != "send":
        return build(CollectiveCall(collective, group, size_bytes), down=down)
    return _one_way(build(CollectiveCall("permute", group, size_bytes), down=down))


def _one_way(both: Schedule) -> Schedule:
    """Half of a schedule in which two ranks send to each other: the messages of the first."""
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
    """Op of each rank in each communication that is written out, and the join that ends it."""
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
