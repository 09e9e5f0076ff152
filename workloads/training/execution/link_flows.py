"""Schedule of a folded program, of a job or of several, with flows on the links that may be full.

A call of a class of groups is one flow, on one link of each class of links. Its times are those of
a run of all ranks in which every call is a flow (:mod:`workloads.training.execution.chunk_level`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.engine.times import Times
from cluster_sim.schedule.repeats import Routines
from cluster_sim.schedule.table import FLOW, Flows, Resources, Schedule
from cluster_sim.trace.trace import run
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.memory_limit import check_memory
from workloads.training.execution.chunk_level import PACE, Expanded, check_messages, ends
from workloads.training.execution.link_classes import FoldedUse, folded
from workloads.training.execution.link_use import Patterns, link_use
from workloads.training.execution.lower import OWN, Layout, joins_of_group, lay_out, lower
from workloads.training.program.program import Program

BYTES_OF_OP = 300
"""Peak memory for each op of a schedule, with its share of flows [B]."""


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Schedule of a folded program, of a job or of several.

    ``program``: folded program. ``usual``: its schedule at the collective level.
    ``schedule``: the same ops; of each call that uses links the op of one member is a flow, for
        which the others wait.
    ``exchange, op, alone_ps`` (flows,): exchange and op of each flow, and its time alone [ps].
    """

    program: Program
    usual: Schedule
    schedule: Schedule
    layout: Layout
    exchange: IntArray
    op: IntArray
    alone_ps: IntArray

    def run(self, engine: str) -> Times:
        """Return the times of all ops."""
        return run(self.schedule, engine=engine).times

    def ends_ps(self, times: Times, stage: int, steps: int) -> IntArray:
        """Return when each step of the ranks of a stage ends, int64 (steps,) [ps]."""
        ends = np.zeros(steps, np.int64)
        ops = len(self.program.streams[stage].ops)
        for row in np.flatnonzero(self.program.stage == stage).tolist():
            begin = int(self.layout.offset[row, OWN])
            of_row = times.end_ps[begin : begin + ops].reshape(steps, -1)
            np.maximum(ends, of_row.max(axis=1), out=ends)
        return ends


def folded_flows(program: Program, cluster: Cluster) -> tuple[Program, Expanded]:
    """Return the folded program of a job, and its iteration with a flow for each call.

    Raises InputError for collectives that are known by their times alone, and for a schedule that
    this process has no room for.
    """
    check_messages(cluster)
    use = link_use(program, [cluster] * len(program.streams), Patterns()).where_full(program)
    few, of_classes = folded(program, use)
    flows = side_by_side(few, of_classes, use.links)
    meeting: list[IntArray] = [
        np.arange(len(each.members) if joins_of_group(each) else 0) for each in few.exchanges
    ]
    none = np.empty(0, np.int64)
    no_calls = Routines(np.array([len(flows.schedule)]), none, none)
    op, end = ends(few, flows.layout, meeting)
    return few, Expanded(flows.schedule, no_calls, flows.usual, op, end)


def side_by_side(program: Program, use: FoldedUse, links: Resources) -> SideBySide:
    """Return the schedule of a folded program whose groups use links.

    Raises InputError for a schedule that this process has no room for.
    """
    layout = lay_out(program)
    check_memory(
        f"a schedule of {layout.total:,} ops, with a rank of each class that shares links alike,",
        layout.total * BYTES_OF_OP,
        "Use a smaller global_batch or fewer steps, or train --level collective.",
    )
    usual = lower(program)
    used, place = np.unique(use.link, return_inverse=True)
    key = np.stack([use.exchange, use.member, use.step], axis=1)
    order = np.lexsort((place, *key.T[::-1]))
    key, place, parts = key[order], place[order], use.parts[order]
    bounds = np.flatnonzero(np.diff(key, axis=0, prepend=-1, append=-1).any(axis=1))
    ops, exchanges, widths = (list[IntArray]() for _ in range(3))
    shares: list[IntArray] = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        number, member, step = key[low].tolist()
        ours = _ops(program, layout, number, member, step)
        ops.append(ours)
        exchanges.append(np.full(len(ours), number))
        widths.append(np.full(len(ours), high - low))
        shares.append(np.tile(np.arange(low, high), len(ours)))
    op, exchange, width, row = (_joined(part) for part in (ops, exchanges, widths, shares))
    by_op = np.argsort(op)
    row = row[_rows(width, by_op)]
    op, exchange, width = op[by_op], exchange[by_op], width[by_op]
    kind, duration, size = (
        column.copy() for column in (usual.kind, usual.duration_ps, usual.size_bytes)
    )
    alone_ps = duration[op]
    kind[op], duration[op], size[op] = FLOW, 0, alone_ps  # a byte of work lasts a picosecond
    flows = Flows(
        op.astype(np.int32),
        np.full(len(op), PACE),
        np.concatenate([[0], np.cumsum(width)]).astype(np.int64),
        (len(usual.resources) + place[row]).astype(np.int32),
        parts[row].astype(np.int32),
    )
    whole = replace(
        usual,
        kind=kind,
        duration_ps=duration,
        size_bytes=size,
        resources=Resources.concat([usual.resources, links.picked(used)]),
        flows=flows,
    )
    return SideBySide(program, usual, whole, layout, exchange, op, alone_ps)


def _ops(program: Program, layout: Layout, number: int, member: int, step: int) -> IntArray:
    """Ops of the first member of a group that make the calls of a step."""
    exchange = program.exchanges[number]
    group = int(np.argmax((exchange.members == member).any(axis=1)))
    first = int(exchange.members[group, 0])
    stage, role = int(program.stage[first]), int(exchange.role[0])
    # The step is that of the first role: a receiver's op of the same call is another step.
    calls = exchange.ops[role]
    makes = program.streams[stage].ops.step[calls] == step
    return np.asarray(layout.offset[first, OWN] + calls[makes])


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _rows(width: IntArray, order: IntArray) -> IntArray:
    """Places of the shares of flows that are taken in another order."""
    begin = np.cumsum(width) - width
    long = width[order]
    return np.repeat(begin[order] - (np.cumsum(long) - long), long) + np.arange(int(long.sum()))
