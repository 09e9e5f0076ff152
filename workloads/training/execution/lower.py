"""Lowering: a program repeated for all its ranks as a Schedule, by array arithmetic.

``layout`` says where the ops of ranks and the joins of groups stand, and ``lowered_edges`` what
each of them waits for. This module adds the other columns, the resources and the labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
from workloads.training.execution.layout import (
    OWN,
    Layout,
    by_step,
    joins_of_group,
    lay_out,
    tile,
)
from workloads.training.execution.lowered_edges import lowered_edges
from workloads.training.layers.steps import stream_kinds
from workloads.training.program.by_value import ByValue
from workloads.training.program.program import Program

NUMBERS_OF_AN_OP = 8
"""Numbers of a skeleton for each op: its columns and labels of half the width, and two edges."""


@dataclass(frozen=True, eq=False)
class Skeleton:
    """Parts of a schedule that depend neither on times and sizes of ops nor on chips of ranks."""

    layout: Layout
    edges: Edges
    kind: IntArray  # (ops,): kind of each op before some become flows
    resource: IntArray  # (ops,)
    labels: Mapping[str, IntArray | Codes]  # all labels but those of ranks


def lower(program: Program, *, memory: bool = False, structures: ByValue | None = None) -> Schedule:
    """Return the schedule of all rows of a program.

    Its labels are ``rank``, ``stage``, ``what``, ``name``, ``layer``, ``microbatch``, and
    ``count``, the number of equal ranks that an op stands for. A join has the labels of its group's
    first member.
    """
    memory = memory and program.memory_bytes_per_s > 0
    if structures is None:
        skeleton = _skeleton(program)
    else:
        size = NUMBERS_OF_AN_OP * sum(
            len(program.streams[stage].ops) for stage in program.stage.tolist()
        )
        skeleton = structures.once(lambda: _skeleton(program), size, "skeleton", *_alike(program))
    layout, kind = skeleton.layout, skeleton.kind
    duration, size_bytes = _columns(program, layout)
    rank, count = _rank_labels(program)
    flows = Flows.none()
    if memory:
        kind = kind.copy()
        flows = _flows(program, layout, kind, duration, size_bytes)
    return schedule(
        OpColumns(
            kind=kind, resource=skeleton.resource, duration_ps=duration, size_bytes=size_bytes
        ),
        edges=skeleton.edges,
        resources=_resources(program, memory=memory),
        flows=flows,
        labels={"rank": rank, **skeleton.labels, "count": count},
        facts=dict(program.facts),
    )


def _skeleton(program: Program) -> Skeleton:
    """Parts of the schedule of a program that follow from the order of its ops."""
    layout = lay_out(program)
    kind = np.full(layout.total, JOIN, np.uint8)
    kind[: layout.ops] = FIXED
    resource = np.full(layout.total, NO_RESOURCE, np.int32)
    stream_of = np.array([step.stream for step in program.steps])
    first = len(stream_kinds(program.steps)) * np.arange(len(program))
    tile(program, layout, resource, by_step(program, stream_of), first)
    return Skeleton(
        layout=layout,
        edges=lowered_edges(program, layout),
        kind=kind,
        resource=resource,
        labels=_labels(program, layout),
    )


def _alike(program: Program) -> tuple[object, ...]:
    """Contents that the skeletons of programs follow from."""
    return (
        repr([(step.stream, step.what, step.name) for step in program.steps]),
        tuple(stream.origin for stream in program.streams),
        program.stage,
        tuple((each.members, each.role, *each.ops) for each in program.exchanges),
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
    """Yield the kernels, then the communications that contend for memory.

    Each item has arrays of one shape: ops, their rows, their bytes, and their rates [B/s].
    """
    communicates = [np.zeros(len(stream.ops), np.bool_) for stream in program.streams]
    for exchange in program.exchanges:
        for role in program.roles(exchange):
            communicates[role.stage][role.ops] = True
    for stage, stream in enumerate(program.streams):
        row = np.flatnonzero(program.stage == stage)[:, None]
        kernels = np.flatnonzero(stream.contends & ~communicates[stage])
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
    """Resources of every row: its engine, its streams of collectives, its sends and receives.

    With ``memory`` they are followed by each row's share of its chip's memory.
    """
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
    most = program.memory_bytes_per_s
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


def _rank_labels(program: Program) -> tuple[IntArray, IntArray]:
    """Labels of every op and join that say which ranks it stands for: the first, and how many."""
    rows, times = _row_lengths(program)
    rank, count = (column.astype(np.int32)[rows] for column in (program.rank, program.count))
    return np.repeat(rank, times), np.repeat(count, times)


def _labels(program: Program, layout: Layout) -> dict[str, IntArray | Codes]:
    """Labels of every op and join that do not depend on its rank."""
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
    rows, times = _row_lengths(program)
    return {
        "stage": np.repeat(program.stage.astype(np.int16)[rows], times),
        "what": Codes(what, whats),
        "name": Codes(name, names),
        "layer": layer,
        "microbatch": microbatch,
    }


def _row_lengths(program: Program) -> tuple[IntArray, IntArray]:
    """Row whose labels each stretch of ops, then of joins has, and the length of the stretch."""
    length = np.array([len(stream.ops) for stream in program.streams])[program.stage]
    first = [exchange.members[:, 0] for exchange in program.exchanges]
    joins = [
        np.full(len(exchange.members), joins_of_group(exchange)) for exchange in program.exchanges
    ]
    return np.concatenate([np.arange(len(program)), *first]), np.concatenate([length, *joins])
