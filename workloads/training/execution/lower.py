"""Lowering: a program repeated for all its ranks as a Schedule, by array arithmetic.

``layout`` says where the ops of ranks and the joins of groups stand, and ``lowered_edges`` what
each of them waits for. This module adds the other columns, the resources and the labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import (
    FIXED,
    FLOW,
    JOIN,
    NO_RESOURCE,
    Codes,
    Edges,
    Flows,
    Resources,
    Schedule,
)
from topologies.support.arrays import IntArray
from workloads.training.layers.steps import stream_kinds
from workloads.training.program.program import Exchange, Program
from workloads.training.program.stage import Stream

# Layout of a schedule: where the ops of each rank and the joins of each group stand.
# Ops are numbered rank by rank. Behind them stand the joins, two for each call of each group: the
# first when all members are ready for the call, the second when it is done. A group of one row,
# whose ranks are all equal after folding, waits for nobody and has none.

OWN = 0  # column of ``Layout.offset`` that holds a rank's first op; exchange e has column e + 1


@dataclass(frozen=True, eq=False)
class Layout:
    """Places of the ops of each row of a program, and of the joins of each group."""

    ops: int  # ops of all ranks
    total: int  # ops and joins
    # (rows, 1 + exchanges): first op of a rank, and first join of its group in each exchange
    offset: IntArray

    def joins(self, program: Program, number: int, column: IntArray) -> IntArray:
        """Return the part of a column that belongs to the joins of an exchange, (groups, joins)."""
        exchange = program.exchanges[number]
        shape = len(exchange.members), joins_of_group(exchange)
        first = int(self.offset[exchange.members[0, 0], number + 1])
        return column[first : first + shape[0] * shape[1]].reshape(shape)


def lay_out(program: Program) -> Layout:
    """Return the places of the ops of all rows and of the joins of all groups."""
    length = np.array([len(stream.ops) for stream in program.streams])[program.stage]
    base = np.cumsum(length) - length
    offset = np.full((len(program), 1 + len(program.exchanges)), -1, np.int64)
    offset[:, OWN] = base
    ops = at = int(length.sum())
    for number, exchange in enumerate(program.exchanges, start=1):
        groups, joins = len(exchange.members), joins_of_group(exchange)
        offset[exchange.members, number] = at + joins * np.arange(groups)[:, None]
        at += joins * groups
    return Layout(ops, at, offset)


def joins_of_group(exchange: Exchange) -> int:
    """Return the number of joins of each group of an exchange."""
    alone = exchange.members.shape[1] == 1
    return 0 if alone else 2 * exchange.calls


def calls_of_stages(program: Program) -> list[tuple[IntArray, IntArray]]:
    """Return the exchange and call of each op of each stage; -1 for an op that meets no other."""
    # An op of a group of one row meets no other.
    lengths = [len(stream.ops) for stream in program.streams]
    calls: list[tuple[IntArray, IntArray]] = [
        (np.full(ops, -1, np.int64), np.zeros(ops, np.int64)) for ops in lengths
    ]
    for number, shared in enumerate(program.exchanges):
        if not joins_of_group(shared):
            continue
        for role in program.roles(shared):
            exchange, call = calls[role.stage]
            exchange[role.ops] = number
            call[role.ops] = np.arange(shared.calls)
    return calls


def by_step(program: Program, column: IntArray) -> list[IntArray]:
    """Return a column of the program's steps for the ops of each stage."""
    return [column[stream.ops.step] for stream in program.streams]


def tile(
    program: Program,
    layout: Layout,
    column: IntArray,
    of_stage: list[IntArray],
    more: IntArray | None = None,
) -> None:
    """Write into a column, for every row, the values that all ranks of its stage share."""
    # ``column`` (ops and joins,): column that is written. ``of_stage`` (ops of the stage,): values
    # for each stage. ``more`` (rows,): number that is added to the values of each row.
    # Consecutive rows of one stage are written at once, as indices of all ops would take longer to
    # compute, and more memory, than the column itself.
    bounds = np.flatnonzero(np.diff(program.stage, prepend=-1, append=-1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        values = of_stage[program.stage[low]]
        begin = int(layout.offset[low, OWN])
        part = column[begin : begin + (high - low) * len(values)].reshape(high - low, len(values))
        part[:] = values
        if more is not None:
            part += more[low:high, None].astype(column.dtype)


def lower(program: Program, *, memory: bool = False) -> Schedule:
    """Return the schedule of all rows of a program."""
    # Its labels are ``rank``, ``stage``, ``what``, ``name``, ``layer``, ``microbatch``, and
    # ``count``, the number of equal ranks that an op stands for. A join has the labels of its
    # group's first member.
    memory = memory and bool(program.memory_bytes_per_s.any())
    layout = lay_out(program)
    kind = np.full(layout.total, JOIN, np.uint8)
    kind[: layout.ops] = FIXED
    resource = np.full(layout.total, NO_RESOURCE, np.int32)
    first = len(stream_kinds(program.steps)) * np.arange(len(program))
    tile(program, layout, resource, by_step(program, program.stream_of), first)
    duration, size_bytes = _columns(program, layout)
    flows = _flows(program, layout, kind, duration, size_bytes) if memory else Flows.none()
    return schedule(
        OpColumns(kind=kind, resource=resource, duration_ps=duration, size_bytes=size_bytes),
        edges=lowered_edges(program, layout),
        resources=_resources(program, memory=memory),
        flows=flows,
        labels=_labels(program, layout),
        facts=dict(program.facts),
    )


def _flows(
    program: Program, layout: Layout, kind: IntArray, duration: IntArray, size: IntArray
) -> Flows:
    """Flows of the ops that contend for memory, which are marked as such in the other columns."""
    parts = zip(*_draws(program, layout), strict=True)
    op, row, drawn, rate = (
        np.concatenate([column.reshape(-1) for column in part]) for part in parts
    )
    size[op[drawn > 0]] = drawn[drawn > 0]
    flows = np.flatnonzero(rate > 0)
    # Equal ranks of one group are one row after folding, whose op the group has several times.
    flows = flows[np.unique(op[flows], return_index=True)[1]]
    streams = len(program) * len(stream_kinds(program.steps))
    op, hbm = op[flows].astype(np.int32), streams + row[flows]
    kind[op], duration[op] = FLOW, 0
    weight = np.ones(len(op), np.int32)
    return Flows(op, rate[flows], np.arange(len(op) + 1), hbm.astype(np.int32), weight)


def _draws(program: Program, layout: Layout) -> Iterator[tuple[IntArray, ...]]:
    """Yield the kernels, then the communications that contend for memory."""
    # Each item has arrays of one shape: ops, their rows, their bytes, and their rates [B/s].
    for stage, stream in enumerate(program.streams):
        row = np.flatnonzero(program.stage == stage)[:, None]
        kernels = np.flatnonzero(stream.contends & ~program.communicates[stage])
        step = stream.ops.step[kernels]
        drawn, rate = program.draws.size_bytes[step], program.draws.rate_bytes_per_s[step]
        yield np.broadcast_arrays(layout.offset[row, OWN] + kernels, row, drawn, rate)
    for exchange in program.exchanges:
        for stage, ops, places in program.roles(exchange):
            calls = np.flatnonzero(program.streams[stage].contends[ops])
            member = exchange.members[:, places, None]
            drawn, rate = (column[exchange.kind][:, None, calls] for column in exchange.draws)
            yield np.broadcast_arrays(layout.offset[member, OWN] + ops[calls], member, drawn, rate)


def _resources(program: Program, *, memory: bool) -> Resources:
    """Resources of every row: its engine, its streams of collectives, its sends and receives."""
    # With ``memory`` they are followed by each row's share of its chip's memory.
    kinds = stream_kinds(program.steps)
    rows, streams = len(program), len(kinds)
    lanes = {kind: sum(kind == other for other, _ in kinds) for kind, _ in kinds}
    tables = [
        Resources.table(kind, program.chip, lane=program.core * lanes[kind] + lane)
        for kind, lane in kinds
    ]
    whole = Resources.concat(tables)
    by_row = np.arange(streams * rows).reshape(streams, rows).T.reshape(-1)
    columns = ("kind", "owner", "peer", "lane", "slots", "capacity")
    ordered = Resources(whole.kinds, *(getattr(whole, name)[by_row] for name in columns))
    if not memory:
        return ordered
    most = program.memory_bytes_per_s[program.stage]
    parts = Resources.table("hbm", program.chip, lane=program.core, slots=0, capacity=most)
    return Resources.concat([ordered, parts])


def _columns(program: Program, layout: Layout) -> tuple[IntArray, IntArray]:
    """Duration [ps] and bytes of every op and join."""
    size_of = np.array([step.size_bytes for step in program.steps], np.int64)
    duration = np.zeros(layout.total, np.int64)
    size = np.zeros(layout.total, np.int64)
    tile(program, layout, duration, by_step(program, program.step_ps))
    tile(program, layout, size, by_step(program, size_of))
    for exchange in program.exchanges:
        for role in program.roles(exchange):
            base = layout.offset[exchange.members[:, role.places], OWN]
            duration[base[:, :, None] + role.ops] = exchange.duration_ps[exchange.kind][:, None]
    return duration, size


def _labels(program: Program, layout: Layout) -> dict[str, IntArray | Codes]:
    """Labels of every op and join: which ranks it stands for, the first and how many, and what."""
    names = (*dict.fromkeys(step.name for step in program.steps), "meet")
    whats = (*dict.fromkeys(step.what for step in program.steps), "join")
    name_of = np.array([names.index(step.name) for step in program.steps], np.int16)
    what_of = np.array([whats.index(step.what) for step in program.steps], np.int8)
    name = np.full(layout.total, len(names) - 1, np.int16)
    what = np.full(layout.total, len(whats) - 1, np.int8)
    layer = np.full(layout.total, -1, np.int16)
    microbatch = np.full(layout.total, -1, np.int32)
    tile(program, layout, name, by_step(program, name_of))
    tile(program, layout, what, by_step(program, what_of))
    tile(program, layout, layer, [stream.ops.layer for stream in program.streams])
    tile(program, layout, microbatch, [stream.ops.microbatch for stream in program.streams])
    # Row whose labels each stretch of ops, then of joins has, and the length of the stretch.
    length = np.array([len(stream.ops) for stream in program.streams])[program.stage]
    first = [exchange.members[:, 0] for exchange in program.exchanges]
    joins = [np.full(len(each.members), joins_of_group(each)) for each in program.exchanges]
    rows = np.concatenate([np.arange(len(program)), *first])
    times = np.concatenate([length, *joins])
    rank, count = (
        np.repeat(column.astype(np.int32)[rows], times) for column in (program.rank, program.count)
    )
    return {
        "rank": rank,
        "stage": np.repeat(program.stage.astype(np.int16)[rows], times),
        "what": Codes(what, whats),
        "name": Codes(name, names),
        "layer": layer,
        "microbatch": microbatch,
        "count": count,
    }


# Edges of a lowered program, written for all ranks and groups at once.
# The ops that a rank's op leads to are the same for all ranks of a stage but for three kinds of
# offset: the rank's first op, and the first join of each of its groups. So the edges of all ranks
# are one outer sum of these offsets and of a table that the stage has in common.


@dataclass(frozen=True, eq=False)
class Template:
    """Edges of a rank of one stage, in a form that is the same for all ranks of the stage."""

    exchange: IntArray  # (ops,): exchange that an op takes part in, -1 for none
    call: IntArray  # (ops,): number of the op's call among those of the exchange
    # src, column, value: (edges,): each edge leads from op ``src`` to the op or join ``offset[row,
    # column] + value``. Edges are sorted by ``src``. Those that leave a communication have its op
    # as their source here, although in the schedule they leave the join that ends its call.
    src: IntArray
    column: IntArray
    value: IntArray

    @cached_property
    def leaving(self) -> dict[int, IntArray]:
        """Edges that leave the ops of each exchange, and under -1 those that leave kernels."""
        left = self.exchange[self.src].astype(np.int32)
        order = np.argsort(left, kind="stable")
        first = np.flatnonzero(np.diff(left[order], prepend=-2))
        numbers, ends = left[order[first]].tolist(), [*first.tolist(), len(order)]
        return {
            number: order[low:high]
            for number, (low, high) in zip(numbers, pairwise(ends), strict=True)
        }


def _leads_to(
    stream: Stream, exchange: IntArray, call: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Edges of a stream, each to an op of the rank itself or to the join before a call."""
    meets = exchange[stream.dst] >= 0
    column = np.where(meets, exchange[stream.dst] + 1, OWN)
    value = np.where(meets, 2 * call[stream.dst], stream.dst)
    by_src = np.argsort(stream.src, kind="stable")
    return stream.src[by_src], column[by_src], value[by_src]


def lowered_edges(program: Program, layout: Layout) -> Edges:
    """Return the edges of the ops of all rows and of the joins of all groups."""
    templates = [
        Template(*calls, *_leads_to(stream, *calls))
        for stream, calls in zip(program.streams, calls_of_stages(program), strict=True)
    ]
    of_stage = [_rank_edges(template) for template in templates]
    meeting = [number for number, each in enumerate(program.exchanges) if joins_of_group(each)]
    of_exchange = [_join_edges(program, templates, number) for number in meeting]
    # First the number of edges that leave each op and join, whose sums say where they begin; then
    # the targets, written in that order.
    ptr = np.zeros(layout.total + 1, np.int64)
    tile(program, layout, ptr[1:], [leads.leaving for leads in of_stage])
    for number, leads in zip(meeting, of_exchange, strict=True):
        layout.joins(program, number, ptr[1:])[:] = leads.leaving
    np.cumsum(ptr, out=ptr)
    targets = np.empty(int(ptr[-1]), np.int32)
    offset = layout.offset.astype(np.int32)
    at = 0
    for row, stage in enumerate(program.stage.tolist()):
        at = of_stage[stage].write(offset[row], targets, at)
    for number, leads in zip(meeting, of_exchange, strict=True):
        for members in program.exchanges[number].members:
            at = leads.write(offset[members].ravel(), targets, at)
    return Edges(ptr, targets, np.zeros(len(targets), np.int64))


@dataclass(frozen=True, eq=False)
class Leads:
    """Edges that are the same for all rows of a stage, or for all groups of an exchange."""

    # (ops,), (joins,): number of edges that leave each op of the row, or each join of the group
    leaving: IntArray
    # place, value: (edges,): each edge leads to ``offset[place] + value``
    place: IntArray
    value: IntArray

    def write(self, offset: IntArray, targets: IntArray, at: int) -> int:
        """Write the targets of the edges from place ``at`` on, and return the place after them."""
        part = targets[at : at + len(self.value)]
        np.take(offset, self.place, out=part, mode="clip")
        part += self.value
        return at + len(self.value)


def _rank_edges(template: Template) -> Leads:
    """Edges of a rank of a stage; an op that communicates leads only to the join of its call."""
    communicates = template.exchange >= 0
    within = ~communicates[template.src]
    ops = np.flatnonzero(communicates)
    src = np.concatenate([template.src[within], ops])
    column = np.concatenate([template.column[within], template.exchange[ops] + 1])
    value = np.concatenate([template.value[within], 2 * template.call[ops] + 1])
    order = np.argsort(src, kind="stable")
    leaving = np.bincount(src, minlength=len(communicates))
    return Leads(leaving, column[order], value[order].astype(np.int32))


def _join_edges(program: Program, templates: list[Template], number: int) -> Leads:
    """Edges of the joins of a group of an exchange."""
    # The first join of a call leads to its ops, the second to the ops that wait for these. A stage
    # has at most one role in an exchange.
    exchange = program.exchanges[number]
    join, member, value = (list[IntArray]() for _ in range(3))
    for stage, op, places in program.roles(exchange):
        template = templates[stage]
        after = template.leaving.get(number, op[:0])
        joins = [2 * np.arange(exchange.calls), 2 * template.call[template.src[after]] + 1]
        leads = [np.full(len(op), OWN), template.column[after]], [op, template.value[after]]
        role_join, role_column, role_value = (np.concatenate(part) for part in (joins, *leads))
        for place in places.tolist():
            # Row of the member among the group's rows of offsets, which ``Leads.write`` flattens.
            member.append(role_column + place * (1 + len(program.exchanges)))
            join.append(role_join)
            value.append(role_value)
    joins_of = np.concatenate(join)
    order = np.argsort(joins_of, kind="stable")
    return Leads(
        np.bincount(joins_of, minlength=2 * exchange.calls),
        np.concatenate(member)[order],
        np.concatenate(value)[order].astype(np.int32),
    )
