"""The chunk level: an iteration with every collective written out as the chunks that it sends.

The ops of ranks that communicate become joins, and between the two joins of each call stands the
schedule of its collective, on links and CC-Cores that all collectives share. So contention between
collectives is simulated; without contention, times are those of the collective level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group, compose
from cluster_sim.collectives.duration.nccl import covers, knows
from cluster_sim.engine.times import Times
from cluster_sim.hardware.fabric import WAYS
from cluster_sim.schedule.build import (
    OpColumns,
    one_behind_another,
    schedule,
    unite_resources,
)
from cluster_sim.schedule.repeats import Routines, flows_of_copies
from cluster_sim.schedule.table import (
    FIXED,
    FLOW,
    JOIN,
    LARGEST_FLOW_BYTES,
    NO_RESOURCE,
    PS_PER_S,
    Edges,
    Flows,
    Resources,
    Schedule,
)
from cluster_sim.trace.trace import Trace, run
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import IntArray, distinct_rows
from topologies.support.errors import InputError
from topologies.support.memory_limit import check_memory
from workloads.training.execution.turns import (
    Turns,
    in_turns,
    on_queues,
    ops_of,
    shortest_turns,
    turn_bytes,
)
from workloads.training.layers.steps import LayerOp
from workloads.training.program.groups import group_of
from workloads.training.program.program import OWN, Exchange, Program

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
    started: IntArray | None = None  # ops whose start is that of an op behind ``collectives``

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
    whole: bool = False,
) -> Expanded:
    """Write out the collectives of an iteration; they take turns but for ``whole`` messages."""
    # Messages alone take less than a library does, and flows as long.
    check_messages(cluster, covers if as_flows else knows)
    by_exchange = list(_collectives(program, cluster, down, as_flows=as_flows))
    called = [call for calls in by_exchange for call in calls]
    if not (as_flows or whole):
        called = _taking_turns(by_exchange, shortest_turns(cluster.numbers), MOST_OPS_OUT)
    del by_exchange  # what is not cut or ended takes as much memory again
    called = _ended(called)
    standing = len(collectives) + sum(len(call.pattern) for call in called)
    run = len(collectives) + sum((len(call.pattern) - 1) * len(call.join) for call in called)
    level = "flow" if as_flows else "chunk"
    most = MOST_OPS_RUN if in_place else MOST_OPS_OUT
    if run > most:
        more = "" if in_place else ", --engine fast without faults that begin later or stop a part"
        raise InputError(
            f"--level {level} makes {run:,} ops of this iteration; at most {most:,} are run. "
            f"Use fewer chips, layers or microbatches{more}, or --level collective."
        )
    check_memory(
        f"a schedule of {standing:,} ops, which --level {level} makes of the groups of this plan,",
        standing * BYTES_AN_OP,
        "Use fewer chips, layers or microbatches, or --level collective.",
    )
    chips = [program.chip[exchange.members] for exchange in program.exchanges]
    several: list[IntArray] = [np.flatnonzero((each != each[:, :1]).any(axis=1)) for each in chips]
    op, end = ends(program, several)
    return Expanded(*with_routines(collectives, called, op), collectives, op, end)


def check_messages(cluster: Cluster, timed: Callable[[Cluster], bool] = covers) -> None:
    """Refuse a cluster whose collectives are known by their times alone."""
    if timed(cluster):
        raise InputError(
            f"collectives of {cluster.name} are known by the times that its library takes, not by "
            "their chunks. Use --level collective."
        )


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
    ops = len(expanded.collectives)
    ready_ps, start_ps = times.ready_ps[:ops].copy(), times.start_ps[:ops].copy()
    end_ps, status = times.end_ps[:ops].copy(), times.status[:ops].copy()
    end_ps[expanded.op] = times.end_ps[expanded.end]
    status[expanded.op] = times.status[expanded.end]
    if expanded.started is not None:
        first = slice(ops, ops + len(expanded.started))
        ready_ps[expanded.started] = times.ready_ps[first]
        start_ps[expanded.started] = times.start_ps[first]
    outside = replace(times, ready_ps=ready_ps, start_ps=start_ps, end_ps=end_ps, status=status)
    return Trace(expanded.collectives, outside)


def _collectives(
    program: Program, cluster: Cluster, down: tuple[str, ...], *, as_flows: bool
) -> Iterator[list[Called]]:
    """Yield for each exchange the collectives of its groups, apart from those within one chip."""
    schedules: dict[tuple[bytes, str, int, int], Schedule] = {}
    for number, exchange in enumerate(program.exchanges, start=1):
        called, first_calls = list[Called](), list[int]()
        for members, kind in zip(exchange.members, exchange.kind.tolist(), strict=True):
            chips = program.chip[members]
            if (chips == chips[0]).all():
                continue
            for step, calls in _calls(program, exchange, as_flows=as_flows):
                alone_ps = int(exchange.duration_ps[kind, calls[0]]) if as_flows else 0
                key = (chips.tobytes(), step.collective, step.size_bytes, alone_ps)
                if key not in schedules:
                    group = group_of(cluster, chips)
                    chunks = call_schedule(group, step.collective, step.size_bytes, down)
                    if as_flows:
                        beside = groups_of_chip(program, exchange, group)
                        chunks = as_flow(link_time(chunks), alone_ps, beside)
                    schedules[key] = replace(chunks, labels={})  # nobody reads them
                joins = program.offset[members[0], number] + 2 * calls
                called.append(Called(schedules[key], joins))
                first_calls.append(int(calls[0]))
        yield _holding_adapters(called, first_calls) if as_flows else called


def _holding_adapters(called: list[Called], first_calls: list[int]) -> list[Called]:
    """Return collectives of an exchange as flows whose adapters are held while uplinks are full."""
    # ``first_calls``: first call of each, which those of other groups at the same time share.
    patterns = [call.pattern for call in called]
    widths = [np.diff(pattern.flows.ptr) for pattern in patterns]
    rows = [int(width.sum()) for width in widths]
    if not sum(rows):
        return called
    table, numbers = unite_resources([pattern.resources for pattern in patterns])
    begins = [np.cumsum(each.duration_ps + each.size_bytes) for each in patterns]
    begin_ps = [
        np.repeat((begin - each.size_bytes)[each.flows.op], width)
        for begin, each, width in zip(begins, patterns, widths, strict=True)
    ]
    flow = np.repeat(np.arange(sum(map(len, widths))), np.concatenate(widths))
    parts = held_adapters(
        table,
        np.concatenate(
            [each[pattern.flows.resource] for each, pattern in zip(numbers, patterns, strict=True)]
        ),
        np.stack([np.repeat(first_calls, rows), np.concatenate(begin_ps)], axis=1),
        flow,
        np.concatenate([each.flows.weight for each in patterns]),
    )
    weights = np.split(parts.astype(np.int32), np.cumsum(rows)[:-1])
    return [
        replace(call, pattern=replace(each, flows=replace(each.flows, weight=weight)))
        for call, each, weight in zip(called, patterns, weights, strict=True)
    ]


def _taking_turns(by_exchange: list[list[Called]], least: Turns, most: int) -> list[Called]:
    """Cut the collectives of each exchange into parts that take turns on the links they share.

    Parts at adapters get longer, up to ``least.links``, where they make more than ``most`` ops.
    """
    patterns = [{id(call.pattern): call.pattern for call in calls} for calls in by_exchange]
    part_bytes = turn_bytes((each.values() for each in patterns), least)
    calls = [(call.pattern, len(call.join)) for calls in by_exchange for call in calls]
    while part_bytes.adapters < least.links and ops_of(calls, part_bytes) > most:
        part_bytes = part_bytes._replace(adapters=min(least.links, 2 * part_bytes.adapters))
    cut = {key: in_turns(one, part_bytes) for each in patterns for key, one in each.items()}
    return [replace(call, pattern=cut[id(call.pattern)]) for calls in by_exchange for call in calls]


def _calls(
    program: Program, exchange: Exchange, *, as_flows: bool
) -> Iterator[tuple[LayerOp, IntArray]]:
    """Return the different collectives of an exchange, and the calls of each."""
    # Steps of one stream follow one another on every rank, so those of one collective and size are
    # calls of one routine. As flows they may differ in their times.
    step = program.steps_of(exchange)
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
        return compose(CollectiveCall(collective, group, size_bytes), down=down).schedule
    return _one_way(compose(CollectiveCall("permute", group, size_bytes), down=down).schedule)


def _one_way(both: Schedule) -> Schedule:
    """Half of a schedule in which two ranks send to each other: the messages of the first."""
    rank = np.asarray(both.labels["rank"])
    last = np.diff(both.edges.ptr) == 0
    kept = np.flatnonzero(np.where(last, rank == RECEIVER, rank == SENDER))
    place = np.full(len(both), -1)
    place[kept] = np.arange(len(kept))
    src, edges = both.edges.sources(), both.edges
    within = (place[src] >= 0) & (place[edges.dst] >= 0)
    starts = None if edges.from_start is None else edges.from_start[within]
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
        flows=flows_of_copies(both, kept),
    )


def ends(program: Program, groups: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return the op of each rank in each call of some groups, and the join that ends the call."""
    # ``groups`` (exchanges,): groups of each exchange.
    ops, joins = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, (exchange, some) in enumerate(zip(program.exchanges, groups, strict=True), start=1):
        members = exchange.members[some]
        end = program.offset[members[:, :1], number][:, :, None] + 2 * np.arange(exchange.calls) + 1
        for _, of_role, places in program.roles(exchange):
            op = program.offset[members[:, places], OWN][:, :, None] + of_role
            ops.append(op.reshape(-1))
            joins.append(np.broadcast_to(end, op.shape).reshape(-1))
    return np.concatenate(ops), np.concatenate(joins)


# The flow level: a collective as a flow for each phase on all the links and adapters that it uses.
# At the collective level every collective runs as if it were alone; at the chunk level every
# message is an op. The flow level lies between the two: a collective is flows whose work is the
# time that its phases take alone, behind an op for the time in which it has nothing on links. On
# each link a flow uses the share of capacity that equals the share of its time for which the link
# is busy in a chunk-level run. A collective that is alone takes the time of the collective level to
# the picosecond. Collectives that exceed a link's capacity together slow each other by max-min
# fairness, and a fault of a link or adapter affects all collectives that cross it.

PACE = 10**12
"""Rate of an undisturbed flow [B/s], so that a byte of its work is a picosecond of its time."""
PARTS = 1000  # parts into which the capacity of a link is divided; shares are whole numbers of them
LEAST = 10
"""Smallest share that is kept, in such parts. A use of 1 % of a link slows other flows by no more
than that."""


def groups_of_chip(program: Program, exchange: Exchange, group: Group) -> int:
    """Return how many groups of an exchange are on the chips of one, and call as it does."""
    return max(1, (int(program.core[exchange.members].max()) + 1) // group.ranks_per_chip)


class LinkTime(NamedTuple):
    """Time for which a collective that is alone has messages on links, in each of its phases."""

    resources: Resources
    busy_ps: IntArray  # (phases, resources): time for which each is busy at its full rate [ps]
    phase_ps: IntArray  # (phases,): from the first message on a link to the last in all [ps]
    idle_ps: int  # time before its first message is on a link, and after its last [ps]


def as_flow(used: LinkTime, duration_ps: int, groups: int = 1) -> Schedule:
    """Return a collective as an idle op and a flow for each phase on the links of its chunks."""
    # ``duration_ps``: time of the collective alone, from the collective level, in which all
    # ``groups`` of its chips move their bytes [ps].
    if duration_ps > LARGEST_FLOW_BYTES:
        raise InputError(
            f"--level flow follows collectives of up to {LARGEST_FLOW_BYTES / PS_PER_S:.1f} s; one "
            f"here takes {duration_ps / PS_PER_S:.1f} s. Use --level collective."
        )
    busiest_ps = int(used.busy_ps.sum(axis=0).max(initial=1))
    flow_ps = min(duration_ps, max(duration_ps - used.idle_ps, busiest_ps))
    scale = flow_ps / max(1, int(used.phase_ps.sum()))
    size = np.diff(np.rint(np.cumsum(used.phase_ps) * scale).astype(np.int64), prepend=0)
    parts = -(-PARTS * used.busy_ps // np.maximum(1, size)[:, None])
    parts = np.minimum(PARTS // groups, parts * (size > 0)[:, None])
    phases = np.flatnonzero((parts >= LEAST).any(axis=1))
    size, parts = size[phases], parts[phases]
    crossed = np.flatnonzero((parts >= LEAST).any(axis=0))
    phase, link = np.nonzero(parts[:, crossed] >= LEAST)
    idle_ps = duration_ps - int(size.sum())
    kind = [FIXED] * (idle_ps > 0) + [FLOW] * len(size) or [JOIN]
    ops = np.arange(len(kind))
    flows = Flows(
        ops[len(kind) - len(size) :].astype(np.int32),
        np.full(len(size), PACE),
        np.searchsorted(phase, np.arange(len(size) + 1)),
        link.astype(np.int32),
        parts[:, crossed][phase, link].astype(np.int32),
    )
    fixed, lasting = np.equal(kind, FIXED), np.append(idle_ps, size)[-len(kind) :]
    columns = OpColumns(
        kind=kind,
        resource=NO_RESOURCE,
        duration_ps=np.where(fixed, lasting, 0),
        size_bytes=np.where(fixed, 0, lasting),
    )
    return schedule(
        columns,
        edges=Edges.from_pairs(len(kind), ops[:-1], ops[1:]),
        resources=_shared(used.resources, crossed),
        flows=flows if len(size) else None,
    )


def held_adapters(
    table: Resources, link: IntArray, at_once: IntArray, flow: IntArray, parts: IntArray
) -> IntArray:
    """Return shares of links, of adapters larger by as much as uplinks slow their messages."""
    # An adapter sends and receives one message at a time, and is held while a message waits for an
    # uplink. All groups of an exchange call at once, so what they ask of it says how much slower.
    # For each share ``link`` is a row of ``table``, ``at_once`` (shares, keys) what flows at the
    # same time have in common, ``flow`` the number of its flow, ``parts`` in thousandths.
    kind, names = table.kind[link], np.array(table.kinds)
    is_uplink = np.array([name.endswith(WAYS) for name in names], np.bool_)[kind]
    if not is_uplink.any():
        return parts
    which = distinct_rows(np.column_stack([at_once, link])[is_uplink])[1]
    wanted = np.bincount(which, parts[is_uplink])[which]
    slower = np.full(int(flow.max()) + 1, float(PARTS))
    np.maximum.at(slower, flow[is_uplink], wanted)
    held = np.where(np.isin(names, ADAPTERS)[kind], slower[flow] / PARTS, 1.0)
    return np.rint(parts * held).astype(np.int64)


ADAPTERS = ("tx", "rx")
INSTANTS = 1024
"""Parts into which the time of a collective is divided, to find its phases. They are shorter than
messages: an adapter that sends below its switch and then above it loads the uplink at times."""
FEWEST_INSTANTS = 64  # of collectives of more messages over uplinks than MOST_PARTS allows
MOST_PARTS = 2**25  # messages over uplinks times instants: half a second of a processor
PARTS_AT_ONCE = 2**17  # of these, a megabyte of each array
LOADS = 10
"""Phases by the load of the fullest uplink: parts of its capacity, within which a load is one."""


def link_time(chunks: Schedule) -> LinkTime:
    """Return for how long the messages of a schedule are on each of its resources, and on none."""
    # Stages cross uplinks by turns. All groups do so at once, and wait as long for one another as
    # their stages on uplinks alone would, whose mean load is less.
    times, table, flows = run(chunks).times, chunks.resources, chunks.flows
    op = np.flatnonzero(chunks.resource != NO_RESOURCE)
    resource, sent = chunks.resource[op], on_queues(chunks)
    spent_ps = (times.end_ps - times.start_ps)[op]
    if len(flows.op):
        flow = np.repeat(flows.op, np.diff(flows.ptr))
        drawn = chunks.size_bytes[flow].astype(float) * flows.weight
        drawn_ps = np.ceil(drawn / table.capacity[flows.resource] * PS_PER_S).astype(np.int64)
        op, resource = np.append(op, flow), np.append(resource, flows.resource)
        spent_ps = np.append(spent_ps, drawn_ps)
        sent[flows.op] = True
    total_ps = int(times.end_ps.max(initial=0))
    begin = int(times.start_ps[sent].min(initial=total_ps))
    end = max(begin, int(times.end_ps[sent].max(initial=0)))
    names = np.array([name.endswith(WAYS) for name in table.kinds], np.bool_)
    is_uplink = names[table.kind]
    above = np.flatnonzero(is_uplink[resource])
    most = max(FEWEST_INSTANTS, MOST_PARTS // max(1, len(above)))
    count = min(INSTANTS, most) if len(above) else 1
    bounds = begin + (end - begin) * np.arange(count + 1) // count
    lasting = np.diff(bounds)
    start, lasts = times.start_ps[op], np.maximum(1, times.end_ps[op] - times.start_ps[op])
    uplink, which = np.unique(resource[above], return_inverse=True)
    until = np.zeros((count + 1, len(uplink)))
    at_once = max(1, PARTS_AT_ONCE // max(1, len(above)))
    for first in range(0, count + 1, at_once):
        to = bounds[first : first + at_once, None]
        passed_ps = spent_ps[above] * np.clip((to - start[above]) / lasts[above], 0, 1)
        place = np.arange(len(to))[:, None] * len(uplink) + which
        each = np.bincount(place.ravel(), passed_ps.ravel(), len(to) * len(uplink))
        until[first : first + at_once] = each.reshape(len(to), len(uplink))
    fullest = np.diff(until, axis=0).max(axis=1, initial=0)
    # In tenths of a full resource; rounded, as floats make 0.3 * 10 a little more than 3.
    tenths = np.ceil(np.round(LOADS * fullest / np.maximum(1, lasting), 6))
    loads, phase = np.unique(tenths, return_inverse=True)
    phase_ps = np.bincount(phase, lasting).astype(np.int64)
    # What is before the first message, or after the last, is of the phase beside it.
    bounds[0], bounds[-1] = 0, total_ps
    within = np.diff(bounds)
    of_phase = [np.cumsum(np.append(0, within * (phase == each))) for each in range(len(loads))]
    share = [
        (np.interp(start + lasts, bounds, passed) - np.interp(start, bounds, passed)) / lasts
        for passed in of_phase
    ]
    busy = [np.bincount(resource, spent_ps * each, len(table)) for each in share]
    busy_ps = np.rint(busy).astype(np.int64) // np.maximum(1, table.slots)
    # Messages that wait for a link or an adapter leave it to others, so of these the mean counts.
    others = ~is_uplink & ~np.isin(table.kinds, ADAPTERS)[table.kind]
    mean = busy_ps[:, others].sum(axis=0) * (phase_ps / max(1, end - begin))[:, None]
    busy_ps[:, others] = mean if len(loads) > 1 else busy_ps[:, others]
    return LinkTime(table, busy_ps, phase_ps, total_ps - (end - begin))


def _shared(resources: Resources, kept: IntArray | list[int]) -> Resources:
    """Return some of the resources as shared ones, whose capacity is divided among flows."""
    rows = np.asarray(kept, np.int64)
    return replace(
        resources.picked(rows),
        slots=np.zeros(len(rows), np.int32),
        capacity=np.full(len(rows), PARTS * PACE, np.int64),
    )


@dataclass(frozen=True, eq=False)
class Called:
    """One collective of one group, and its calls."""

    pattern: Schedule  # schedule of the collective
    join: IntArray  # (calls,): first of the two joins of each call, at which the collective starts


def with_routines(
    collectives: Schedule, called: list[Called], communications: IntArray
) -> tuple[Schedule, Routines]:
    """Return a schedule of the ops of ranks, then of each collective and the join that ends it."""
    kind, duration, resource = (
        column.copy()
        for column in (collectives.kind, collectives.duration_ps, collectives.resource)
    )
    kind[communications] = JOIN
    duration[communications], resource[communications] = 0, NO_RESOURCE
    outside = replace(collectives, kind=kind, duration_ps=duration, resource=resource)
    patterns = [call.pattern for call in called]
    # Streams of ranks and resources of collectives stay apart even where they have equal names.
    tables, numbers, streams = collectives.resources, list[IntArray](), len(collectives.resources)
    if patterns:
        held, numbers = unite_resources([pattern.resources for pattern in patterns])
        tables = Resources.concat([tables, held])
    places = [np.arange(streams), *(streams + each for each in numbers)]
    routines = Routines(
        np.cumsum([len(collectives), *map(len, patterns)]),
        np.concatenate([np.empty(0, np.int64), *(call.join for call in called)]),
        np.repeat(np.arange(len(called)), [len(call.join) for call in called]),
    )
    return one_behind_another([outside, *patterns], tables, places), routines


def _ended(called: list[Called]) -> list[Called]:
    """Return collectives with a join behind the ops of each, at which all of them have ended."""
    patterns = {id(call.pattern): call.pattern for call in called}
    ended = {key: _with_end(pattern) for key, pattern in patterns.items()}
    return [replace(call, pattern=ended[id(call.pattern)]) for call in called]


def _with_end(pattern: Schedule) -> Schedule:
    """Return a collective with a join behind its ops, at which all of them have ended."""
    edges, end = pattern.edges, len(pattern)
    last = np.flatnonzero(np.diff(edges.ptr) == 0)
    return schedule(
        OpColumns(
            kind=np.append(pattern.kind, JOIN),
            resource=np.append(pattern.resource, NO_RESOURCE),
            duration_ps=np.append(pattern.duration_ps, 0),
            size_bytes=np.append(pattern.size_bytes, 0),
            priority=np.append(pattern.priority, 0),
        ),
        edges=Edges.from_pairs(
            end + 1,
            np.append(edges.sources(), last),
            np.append(edges.dst, np.full(len(last), end)),
            np.append(edges.lag_ps, 0 * last),
            np.append(edges.start_mask(), last < 0),
        ),
        resources=pattern.resources,
        flows=pattern.flows,
    )
