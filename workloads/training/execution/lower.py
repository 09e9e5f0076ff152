"""Lowering: a program repeated for all its ranks as a Schedule, by array arithmetic.

``layout`` says where the ops of ranks and the joins of groups stand, and ``lowered_edges`` what
each of them waits for. This module adds the other columns, the resources and the labels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import (
    FIXED,
    FLOW,
    JOIN,
    NO_RESOURCE,
    Codes,
    Flows,
    Resources,
    Schedule,
)
from topologies.arrays import IntArray
from workloads.training.execution.layout import (
    OWN,
    Layout,
    by_step,
    calls_of_stages,
    lay_out,
    tile,
)
from workloads.training.execution.lowered_edges import lowered_edges
from workloads.training.layers.steps import stream_kinds
from workloads.training.program.program import Program


def lower(program: Program, *, memory: bool = False) -> Schedule:
    """Return the schedule of all rows of a program.

    Its labels are ``rank``, ``stage``, ``what``, ``name``, ``layer``, ``microbatch``, and
    ``count``, the number of equal ranks that an op stands for. A join has the labels of its group's
    first member.

    Parameters
    ----------
    program : Program
    memory : bool
        Whether ops that contend for their rank's memory are flows on it, as resource ``hbm``.
        Without contention the times are the same either way.
    """
    layout = lay_out(program)
    edges = lowered_edges(program, layout)
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
    flows = flows[np.argsort(op[flows])]
    streams = len(program) * len(stream_kinds(program.steps))
    op, hbm = op[flows].astype(np.int32), streams + row[flows]
    kind[op], duration[op] = FLOW, 0
    weight = np.ones(len(op), np.int32)
    return Flows(op, rate[flows], np.arange(len(op) + 1), hbm.astype(np.int32), weight)


def _draws(program: Program, layout: Layout) -> Iterator[tuple[IntArray, ...]]:
    """Yield the kernels, then the communications that contend for memory.

    Each item has arrays of one shape: ops, their rows, their bytes, and their rates [B/s].
    """
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


def _columns(program: Program, layout: Layout) -> tuple[IntArray, IntArray, IntArray]:
    """Resource, duration [ps] and bytes of every op and join."""
    stream_of = np.array([step.stream for step in program.steps])
    size_of = np.array([step.size_bytes for step in program.steps], np.int64)
    resource = np.full(layout.total, NO_RESOURCE, np.int32)
    duration = np.zeros(layout.total, np.int64)
    size = np.zeros(layout.total, np.int64)
    first = len(stream_kinds(program.steps)) * np.arange(len(program))
    tile(program, layout, resource, by_step(program, stream_of), first)
    tile(program, layout, duration, by_step(program, program.step_ps))
    tile(program, layout, size, by_step(program, size_of))
    for exchange in program.exchanges:
        for role in program.roles(exchange):
            base = layout.offset[exchange.members[:, role.places], OWN]
            duration[base[:, :, None] + role.ops] = exchange.duration_ps[exchange.kind][:, None]
    return resource, duration, size


def _labels(program: Program, layout: Layout) -> dict[str, IntArray | Codes]:
    """Labels of every op and join."""
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
        "rank": np.repeat(program.rank.astype(np.int32)[rows], times),
        "stage": np.repeat(program.stage.astype(np.int16)[rows], times),
        "what": Codes(what, whats),
        "name": Codes(name, names),
        "layer": layer,
        "microbatch": microbatch,
        "count": np.repeat(program.count.astype(np.int32)[rows], times),
    }


def _row_lengths(program: Program) -> tuple[IntArray, IntArray]:
    """Row whose labels each stretch of ops, then of joins has, and the length of the stretch."""
    length = np.array([len(stream.ops) for stream in program.streams])[program.stage]
    first = [exchange.members[:, 0] for exchange in program.exchanges]
    joins = [np.full(len(exchange.members), 2 * exchange.calls) for exchange in program.exchanges]
    return np.concatenate([np.arange(len(program)), *first]), np.concatenate([length, *joins])
