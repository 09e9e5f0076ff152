"""Lowering: a program tiled over its ranks to a Schedule, by array arithmetic.

Ops are numbered rank by rank, then the joins: two for each call of each group, one when all who
must be ready are, one when all are done. What a rank's op leads to is the same for all ranks of a
stage but for three kinds of offset (its own first op, and the first join of each of its groups),
so the edges of all ranks are one outer sum.
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
from topologies.arrays import IntArray
from workloads.training.layers.steps import stream_kinds
from workloads.training.program.program import Program
from workloads.training.program.streams import Stream

OWN = 0
"""Column of ``Layout.offset`` that holds a rank's first op; exchange e has column e + 1."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Places of the ops of each row of ranks and of the joins of each group.

    Attributes
    ----------
    ops : int
        Ops of all ranks; joins follow.
    total : int
        Ops and joins.
    offset : int64 array (rows, 1 + exchanges)
        First op of a rank, and first join of its group in each exchange.
    """

    ops: int
    total: int
    offset: IntArray

    def joins(self, program: Program, number: int, column: IntArray) -> IntArray:
        """The part of a column that is of the joins of an exchange, (groups, joins)."""
        exchange = program.exchanges[number]
        shape = len(exchange.members), 2 * exchange.calls
        first = int(self.offset[exchange.members[0, 0], number + 1])
        return column[first : first + shape[0] * shape[1]].reshape(shape)


@dataclass(frozen=True, eq=False)
class Template:
    """Edges of a rank of one stage, in a form that holds for all of them.

    Attributes
    ----------
    exchange : int64 array (ops,)
        Exchange that an op takes part in, -1 for none.
    call : int64 array (ops,)
        Which of its calls.
    src, column, value : int64 array (edges,)
        From op ``src`` to op or join ``offset[row, column] + value``; in order of ``src``. The
        edges that a communication's end leads to count from the op itself.
    """

    exchange: IntArray
    call: IntArray
    src: IntArray
    column: IntArray
    value: IntArray

    @cached_property
    def leaving(self) -> dict[int, IntArray]:
        """Edges that leave the ops of each exchange, and under -1 those that leave no call."""
        left = self.exchange[self.src].astype(np.int32)
        order = np.argsort(left, kind="stable")
        first = np.flatnonzero(np.diff(left[order], prepend=-2))
        numbers, ends = left[order[first]].tolist(), [*first.tolist(), len(order)]
        return {
            number: order[low:high]
            for number, (low, high) in zip(numbers, pairwise(ends), strict=True)
        }


def lower(program: Program, *, memory: bool = False) -> Schedule:
    """Return the schedule of all rows of a program.

    Parameters
    ----------
    program : Program
    memory : bool
        Whether what contends for its rank's memory is a flow on it, resource ``hbm``.
        Where memory suffices for all the times are the same either way.

    Labels: ``rank``, ``stage``, ``what``, ``name``, ``layer``, ``microbatch``, and ``count``, the
    equal ranks that an op stands for; a join has those of its group's first member.
    """
    layout = lay_out(program)
    templates = [
        Template(*calls, *_leads_to(stream, *calls))
        for stream, calls in zip(program.streams, calls_of_stages(program), strict=True)
    ]
    edges = _edges(program, layout, templates)
    kind = np.full(layout.total, JOIN, np.uint8)
    kind[: layout.ops] = FIXED
    resource, duration, size = _columns(program, layout)
    memory = memory and program.memory_bytes_per_s > 0
    flows = _flows(program, layout, kind, duration, size) if memory else Flows.none()
    return schedule(
        OpColumns(kind=kind, resource=resource, duration_ps=duration, size_bytes=size),
        edges=edges,
        resources=_resources(program, memory=memory),
        flows=flows,
        labels=_labels(program, layout),
        facts=dict(program.facts),
    )


def lay_out(program: Program) -> Layout:
    """Lay out the ops of all rows and the joins of all groups."""
    length = np.array([len(stream.ops) for stream in program.streams])[program.stage]
    base = np.cumsum(length) - length
    offset = np.full((len(program), 1 + len(program.exchanges)), -1, np.int64)
    offset[:, OWN] = base
    ops = at = int(length.sum())
    for number, exchange in enumerate(program.exchanges, start=1):
        groups = len(exchange.members)
        joins = at + 2 * exchange.calls * np.arange(groups)
        offset[exchange.members, number] = joins[:, None]
        at += 2 * exchange.calls * groups
    return Layout(ops, at, offset)


def calls_of_stages(program: Program) -> list[tuple[IntArray, IntArray]]:
    """Exchange and call of each op of each stage; -1 for an op that is no communication."""
    lengths = [len(stream.ops) for stream in program.streams]
    calls: list[tuple[IntArray, IntArray]] = [
        (np.full(ops, -1, np.int64), np.zeros(ops, np.int64)) for ops in lengths
    ]
    for number, shared in enumerate(program.exchanges):
        for role in program.roles(shared):
            exchange, call = calls[role.stage]
            exchange[role.ops] = number
            call[role.ops] = np.arange(shared.calls)
    return calls


def _leads_to(
    stream: Stream, exchange: IntArray, call: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Edges of a stream by source, each to the rank's own op or to the join before a call."""
    meets = exchange[stream.dst] >= 0
    column = np.where(meets, exchange[stream.dst] + 1, OWN)
    value = np.where(meets, 2 * call[stream.dst], stream.dst)
    by_src = np.argsort(stream.src, kind="stable")
    return stream.src[by_src], column[by_src], value[by_src]


def _edges(program: Program, layout: Layout, templates: list[Template]) -> Edges:
    """Edges of the ops of all rows, then of the joins of all groups, written where they belong."""
    of_stage = [_rank_edges(template) for template in templates]
    of_exchange = [
        _join_edges(program, templates, number) for number in range(len(program.exchanges))
    ]
    ptr = np.zeros(layout.total + 1, np.int64)
    _tile(program, layout, ptr[1:], [leads.leaving for leads in of_stage])
    for number, leads in enumerate(of_exchange):
        layout.joins(program, number, ptr[1:])[:] = leads.leaving
    np.cumsum(ptr, out=ptr)
    targets = np.empty(int(ptr[-1]), np.int32)
    offset = layout.offset.astype(np.int32)
    at = 0
    for row, stage in enumerate(program.stage.tolist()):
        at = of_stage[stage].write(offset[row], targets, at)
    for exchange, leads in zip(program.exchanges, of_exchange, strict=True):
        for members in exchange.members:
            at = leads.write(offset[members].reshape(-1), targets, at)
    return Edges(ptr, targets, np.zeros(len(targets), np.int64))


@dataclass(frozen=True, eq=False)
class Leads:
    """Edges that are the same for all rows of a stage, or all groups of an exchange.

    Attributes
    ----------
    leaving : int64 array
        Edges that leave each op, or join.
    place, value : int32 array (edges,)
        Each leads to ``offset[place] + value``.
    """

    leaving: IntArray
    place: IntArray
    value: IntArray

    def write(self, offset: IntArray, targets: IntArray, at: int) -> int:
        """Write where the edges lead from ``at`` on; returns where the next ones belong."""
        part = targets[at : at + len(self.value)]
        np.take(offset, self.place, out=part, mode="clip")
        part += self.value
        return at + len(self.value)


def _rank_edges(template: Template) -> Leads:
    """Edges of a rank of a stage: a communication leads to its join only."""
    meets = template.exchange >= 0
    within = ~meets[template.src]
    talks = np.flatnonzero(meets)
    src = np.concatenate([template.src[within], talks])
    column = np.concatenate([template.column[within], template.exchange[talks] + 1])
    value = np.concatenate([template.value[within], 2 * template.call[talks] + 1])
    order = np.argsort(src, kind="stable")
    return Leads(
        np.bincount(src, minlength=len(meets)), column[order], value[order].astype(np.int32)
    )


def _join_edges(program: Program, templates: list[Template], number: int) -> Leads:
    """Return the edges of the joins of a group of an exchange.

    The first join of a call leads to its ops, the second to all that waits for them. A stage has
    one role at most.
    """
    exchange = program.exchanges[number]
    join, member, value = (list[IntArray]() for _ in range(3))
    for stage, op, places in program.roles(exchange):
        template = templates[stage]
        after = template.leaving.get(number, op[:0])
        joins = [2 * np.arange(exchange.calls), 2 * template.call[template.src[after]] + 1]
        leads = [np.full(len(op), OWN), template.column[after]], [op, template.value[after]]
        alike = [np.concatenate(some) for some in (joins, *leads)]
        for place in places.tolist():
            member.append(alike[1] + place * (1 + len(program.exchanges)))
            join.append(alike[0])
            value.append(alike[2])
    joins_of = np.concatenate(join)
    order = np.argsort(joins_of, kind="stable")
    return Leads(
        np.bincount(joins_of, minlength=2 * exchange.calls),
        np.concatenate(member)[order],
        np.concatenate(value)[order].astype(np.int32),
    )


def _flows(
    program: Program, layout: Layout, kind: IntArray, duration: IntArray, size: IntArray
) -> Flows:
    """Make flows of the ops that contend for memory, in these columns."""
    parts = zip(*_draws(program, layout), strict=True)
    op, row, drawn, rate = (
        np.concatenate([column.reshape(-1) for column in part]) for part in parts
    )
    size[op[drawn > 0]] = drawn[drawn > 0]
    flows = np.flatnonzero(rate > 0)
    flows = flows[np.argsort(op[flows])]
    streams = len(program) * len(stream_kinds(program.steps))
    op, hbm = op[flows].astype(np.int32), streams + row[flows]
    kind[op], duration[op] = FLOW, 0
    once = np.ones(len(op), np.int32)
    return Flows(op, rate[flows], np.arange(len(op) + 1), hbm.astype(np.int32), once)


def _draws(program: Program, layout: Layout) -> Iterator[tuple[IntArray, ...]]:
    """Ops that contend for memory, their rows, bytes and rates: of kernels, and of exchanges."""
    calls_of = calls_of_stages(program)
    for stage, stream in enumerate(program.streams):
        row = np.flatnonzero(program.stage == stage)[:, None]
        kernels = np.flatnonzero(stream.contends & (calls_of[stage][0] < 0))
        step = stream.ops.step[kernels]
        drawn, rate = program.draws.size_bytes[step], program.draws.rate_bytes_per_s[step]
        yield np.broadcast_arrays(layout.offset[row, OWN] + kernels, row, drawn, rate)
    for exchange in program.exchanges:
        for stage, ops, places in program.roles(exchange):
            calls = np.flatnonzero(program.streams[stage].contends[ops])
            whose = exchange.members[:, places, None]
            drawn, rate = (column[exchange.kind][:, None, calls] for column in exchange.draws)
            yield np.broadcast_arrays(layout.offset[whose, OWN] + ops[calls], whose, drawn, rate)


def _resources(program: Program, *, memory: bool) -> Resources:
    """Streams of every row of ranks: its engine, its collective streams, its ways in and out.

    With ``memory`` each row's part of the chip's memory follows.
    """
    kinds = stream_kinds(program.steps)
    rows, streams = len(program), len(kinds)
    alike = {kind: sum(kind == other for other, _ in kinds) for kind, _ in kinds}
    tables = [
        Resources.table(kind, program.chip, lane=program.core * alike[kind] + lane)
        for kind, lane in kinds
    ]
    whole = Resources.concat(tables)
    by_row = np.arange(streams * rows).reshape(streams, rows).T.reshape(-1)
    columns = ("kind", "owner", "peer", "lane", "slots", "capacity")
    ordered = Resources(whole.kinds, *(getattr(whole, name)[by_row] for name in columns))
    if not memory:
        return ordered
    most = program.memory_bytes_per_s
    parts = Resources.table("hbm", program.chip, lane=program.core, slots=0, capacity=most)
    return Resources.concat([ordered, parts])


def _columns(program: Program, layout: Layout) -> tuple[IntArray, IntArray, IntArray]:
    """Resource, duration and bytes of every op."""
    stream_of = np.array([step.stream for step in program.steps])
    size_of = np.array([step.size_bytes for step in program.steps], np.int64)
    resource = np.full(layout.total, NO_RESOURCE, np.int32)
    duration = np.zeros(layout.total, np.int64)
    size = np.zeros(layout.total, np.int64)
    first = len(stream_kinds(program.steps)) * np.arange(len(program))
    _tile(program, layout, resource, _by_step(program, stream_of), first)
    _tile(program, layout, duration, _by_step(program, program.step_ps))
    _tile(program, layout, size, _by_step(program, size_of))
    for exchange in program.exchanges:
        for role in program.roles(exchange):
            base = layout.offset[exchange.members[:, role.places], OWN]
            duration[base[:, :, None] + role.ops] = exchange.duration_ps[exchange.kind][:, None]
    return resource, duration, size


def _labels(program: Program, layout: Layout) -> dict[str, IntArray | Codes]:
    names = (*dict.fromkeys(step.name for step in program.steps), "meet")
    whats = (*dict.fromkeys(step.what for step in program.steps), "join")
    name_of = np.array([names.index(step.name) for step in program.steps], np.int16)
    what_of = np.array([whats.index(step.what) for step in program.steps], np.int8)
    name = np.full(layout.total, len(names) - 1, np.int16)
    what = np.full(layout.total, len(whats) - 1, np.int8)
    layer = np.full(layout.total, -1, np.int16)
    microbatch = np.full(layout.total, -1, np.int32)
    _tile(program, layout, name, _by_step(program, name_of))
    _tile(program, layout, what, _by_step(program, what_of))
    _tile(program, layout, layer, [stream.ops.layer for stream in program.streams])
    _tile(program, layout, microbatch, [stream.ops.microbatch for stream in program.streams])
    rows, times = _who(program)
    return {
        "rank": np.repeat(program.rank.astype(np.int32)[rows], times),
        "stage": np.repeat(program.stage.astype(np.int16)[rows], times),
        "what": Codes(what, whats),
        "name": Codes(name, names),
        "layer": layer,
        "microbatch": microbatch,
        "count": np.repeat(program.count.astype(np.int32)[rows], times),
    }


def _who(program: Program) -> tuple[IntArray, IntArray]:
    """The row of each stretch of ops, then of joins, and the length of each stretch."""
    length = np.array([len(stream.ops) for stream in program.streams])[program.stage]
    first = [exchange.members[:, 0] for exchange in program.exchanges]
    joins = [np.full(len(exchange.members), 2 * exchange.calls) for exchange in program.exchanges]
    return np.concatenate([np.arange(len(program)), *first]), np.concatenate([length, *joins])


def _by_step(program: Program, column: IntArray) -> list[IntArray]:
    """A column of steps for the ops of each stage."""
    return [column[stream.ops.step] for stream in program.streams]


def _tile(
    program: Program,
    layout: Layout,
    column: IntArray,
    of_stage: list[IntArray],
    more: IntArray | None = None,
) -> None:
    """Write, for every row, the values that all ranks of its stage share, plus ``more[row]``.

    Straight into the column: indices of all ops would take longer, and more room, than it does.
    """
    bounds = np.flatnonzero(np.diff(program.stage, prepend=-1, append=-1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        values = of_stage[program.stage[low]]
        begin = int(layout.offset[low, OWN])
        part = column[begin : begin + (high - low) * len(values)].reshape(high - low, len(values))
        part[:] = values
        if more is not None:
            part += more[low:high, None].astype(column.dtype)
