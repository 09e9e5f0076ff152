"""Lowering: a program repeated for all its ranks as a Schedule, by array arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
from workloads.training.program.program import OWN, Program
from workloads.training.program.stage import Stream


def _tiled(program: Program, of_stage: Sequence[IntArray], column: IntArray) -> IntArray:
    """Write values that all ranks of a stage share into a column of ops and joins; return it."""
    # ``of_stage`` (ops of the stage,): values for each stage. Joins keep what the column has.
    # Consecutive rows of one stage are written at once, as indices of all ops would take longer to
    # compute, and more memory, than the column itself.
    bounds = np.flatnonzero(np.diff(program.stage, prepend=-1, append=-1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        values = of_stage[program.stage[low]]
        begin = int(program.offset[low, OWN])
        part = column[begin : begin + (high - low) * len(values)].reshape(high - low, len(values))
        part[:] = values
    return column


def _by_step(
    program: Program, values: Sequence[int] | IntArray, dtype: npt.DTypeLike, join: int = 0
) -> IntArray:
    """Return a column of ops and joins, from values of the program's steps."""
    of_steps, column = np.asarray(values, dtype), np.full(program.total, join, dtype)
    return _tiled(program, [of_steps[stream.ops.step] for stream in program.streams], column)


def lower(program: Program, *, memory: bool = False) -> Schedule:
    """Return the schedule of all rows of a program."""
    # Its labels are ``rank``, ``stage``, ``what``, ``name``, ``layer``, ``microbatch``, and
    # ``count``, the number of equal ranks that an op stands for. A join has the labels of its
    # group's first member.
    memory = memory and bool(program.memory_bytes_per_s.any())
    ops = int(program.length.sum())
    kind = np.full(program.total, JOIN, np.uint8)
    kind[:ops] = FIXED
    resource = _by_step(program, program.stream_of, np.int32, NO_RESOURCE)
    first = len(stream_kinds(program.steps)) * np.arange(len(program), dtype=np.int32)
    resource[:ops] += np.repeat(first, program.length)
    duration = _durations(program)
    size_bytes = _by_step(program, [step.size_bytes for step in program.steps], np.int64)
    flows = _flows(program, kind, duration, size_bytes) if memory else Flows.none()
    return schedule(
        OpColumns(kind=kind, resource=resource, duration_ps=duration, size_bytes=size_bytes),
        edges=lowered_edges(program),
        resources=_resources(program, memory=memory),
        flows=flows,
        labels=_labels(program),
        facts=dict(program.facts),
    )


def _flows(program: Program, kind: IntArray, duration: IntArray, size: IntArray) -> Flows:
    """Flows of the ops that contend for memory, which are marked as such in the other columns."""
    parts = zip(*_draws(program), strict=True)
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


def _draws(program: Program) -> Iterator[tuple[IntArray, ...]]:
    """Yield the kernels, then the communications that contend for memory."""
    # Each item has arrays of one shape: ops, their rows, their bytes, and their rates [B/s].
    for stage, stream in enumerate(program.streams):
        row = np.flatnonzero(program.stage == stage)[:, None]
        kernels = np.flatnonzero(stream.contends & (program.calls[stage][0] < 0))
        step = stream.ops.step[kernels]
        drawn, rate = program.draws.size_bytes[step], program.draws.rate_bytes_per_s[step]
        yield np.broadcast_arrays(program.offset[row, OWN] + kernels, row, drawn, rate)
    for exchange in program.exchanges:
        for stage, ops, places in program.roles(exchange):
            calls = np.flatnonzero(program.streams[stage].contends[ops])
            member = exchange.members[:, places, None]
            drawn, rate = (column[exchange.kind][:, None, calls] for column in exchange.draws)
            yield np.broadcast_arrays(program.offset[member, OWN] + ops[calls], member, drawn, rate)


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
    ordered = whole.picked(by_row)
    if not memory:
        return ordered
    most = program.memory_bytes_per_s[program.stage]
    parts = Resources.table("hbm", program.chip, lane=program.core, slots=0, capacity=most)
    return Resources.concat([ordered, parts])


def _durations(program: Program) -> IntArray:
    """Duration of every op, and 0 for joins [ps]."""
    duration = _by_step(program, program.step_ps, np.int64)
    for exchange in program.exchanges:
        for role in program.roles(exchange):
            base = program.offset[exchange.members[:, role.places], OWN]
            duration[base[:, :, None] + role.ops] = exchange.duration_ps[exchange.kind][:, None]
    return duration


def _labels(program: Program) -> dict[str, IntArray | Codes]:
    """Labels of every op and join: which ranks it stands for, the first and how many, and what."""
    names = (*dict.fromkeys(step.name for step in program.steps), "meet")
    whats = (*dict.fromkeys(step.what for step in program.steps), "join")
    name_of = [names.index(step.name) for step in program.steps]
    what_of = [whats.index(step.what) for step in program.steps]
    layers = [stream.ops.layer for stream in program.streams]
    microbatches = [stream.ops.microbatch for stream in program.streams]
    # Row whose labels each stretch of ops, then of joins has, and the length of the stretch.
    first = [exchange.members[:, 0] for exchange in program.exchanges]
    joins = [np.full(len(each.members), each.joins) for each in program.exchanges]
    rows = np.concatenate([np.arange(len(program)), *first])
    times = np.concatenate([program.length, *joins])
    rank, count = (
        np.repeat(column.astype(np.int32)[rows], times) for column in (program.rank, program.count)
    )
    return {
        "rank": rank,
        "stage": np.repeat(program.stage.astype(np.int16)[rows], times),
        "what": Codes(_by_step(program, what_of, np.int8, len(whats) - 1), whats),
        "name": Codes(_by_step(program, name_of, np.int16, len(names) - 1), names),
        "layer": _tiled(program, layers, np.full(program.total, -1, np.int16)),
        "microbatch": _tiled(program, microbatches, np.full(program.total, -1, np.int32)),
        "count": count,
    }


# Edges of a lowered program, written for all ranks and groups at once.
# The ops that a rank's op leads to are the same for all ranks of a stage but for three kinds of
# offset: the rank's first op, and the first join of each of its groups. So the edges of all ranks
# are one outer sum of these offsets and of a table that the stage has in common.


def lowered_edges(program: Program) -> Edges:
    """Return the edges of the ops of all rows and of the joins of all groups."""
    # Exchanges with joins by their numbers, and -1 for others and, at the end, for kernels.
    meets = np.array([k if each.joins else -1 for k, each in enumerate(program.exchanges)] + [-1])
    of_ranks = [
        _rank_edges(stream, meets[exchange], call)
        for stream, (exchange, call) in zip(program.streams, program.calls, strict=True)
    ]
    of_stage = [
        Leads.sorted(edges[1:, edges[0] == OWN], len(stream.ops))
        for edges, stream in zip(of_ranks, program.streams, strict=True)
    ]
    of_exchange = [
        (exchange, Leads.sorted(_join_edges(program, of_ranks, number), exchange.joins))
        for number, exchange in enumerate(program.exchanges)
        if exchange.joins
    ]
    # First the number of edges that leave each op and join, whose sums say where they begin; then
    # the targets, written in that order.
    ptr = np.zeros(program.total + 1, np.int64)
    _tiled(program, [leads.leaving for leads in of_stage], ptr[1:])
    at = 1 + int(program.length.sum())
    for exchange, leads in of_exchange:
        ends = at + exchange.joins * len(exchange.members)
        ptr[at:ends].reshape(-1, exchange.joins)[:] = leads.leaving
        at = ends
    np.cumsum(ptr, out=ptr)
    targets = np.empty(int(ptr[-1]), np.int32)
    offset = program.offset.astype(np.int32)
    at = 0
    for row, stage in enumerate(program.stage.tolist()):
        at = of_stage[stage].write(offset[row], targets, at)
    for exchange, leads in of_exchange:
        for members in exchange.members:
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

    @classmethod
    def sorted(cls, edges: IntArray, count: int) -> Leads:
        """Return edges by the op or join that they leave, of which there are ``count``."""
        # ``edges`` (3, edges): what each edge leaves, and place and value of what it leads to.
        left, place, value = edges[:, np.argsort(edges[0], kind="stable")]
        return cls(np.bincount(left, minlength=count), place, value.astype(np.int32))

    def write(self, offset: IntArray, targets: IntArray, at: int) -> int:
        """Write the targets of the edges from place ``at`` on, and return the place after them."""
        part = targets[at : at + len(self.value)]
        np.take(offset, self.place, out=part, mode="clip")
        part += self.value
        return at + len(self.value)


def _rank_edges(stream: Stream, exchange: IntArray, call: IntArray) -> IntArray:
    """Edges of a rank and of its groups' joins, from one column and value to others (4, edges)."""
    # An op or join stands at ``offset[row, column] + value``. An op that communicates leads to the
    # join that ends its call, which leads to what waits for it, and the join before leads to it.
    column, number, met = exchange + 1, np.arange(len(exchange)), np.flatnonzero(exchange >= 0)
    begins, ends = (np.where(exchange >= 0, 2 * call + last, number) for last in (0, 1))
    of_ranks = np.full(len(met), OWN)
    return np.stack(
        [
            np.concatenate([column[stream.src], column[met], of_ranks]),
            np.concatenate([ends[stream.src], begins[met], met]),
            np.concatenate([column[stream.dst], of_ranks, column[met]]),
            np.concatenate([begins[stream.dst], met, ends[met]]),
        ]
    )


def _join_edges(program: Program, of_ranks: Sequence[IntArray], number: int) -> IntArray:
    """Edges that leave the joins of a group of an exchange, for ``Leads.sorted``."""
    # Offsets of the group's rows follow one another. A stage has at most one role in an exchange.
    width, edges = 1 + len(program.exchanges), list[IntArray]()
    for stage, _, places in program.roles(program.exchanges[number]):
        left = of_ranks[stage][1:, of_ranks[stage][0] == number + 1]
        edges += [left + np.array([[0], [place * width], [0]]) for place in places.tolist()]
    return np.concatenate(edges, axis=1)
