"""Nodes that all ranks of a stage have in common: runs of kernels, and calls in which ranks meet.

A run is a chain of kernels of one category with nothing else in between, so only its start and
end matter. A call is one node even where its members are of several stages. Nodes and what they
wait for are the same for all ranks; only the times differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.engine.jit import compiled
from cluster_sim.schedule.table import ScheduleError
from topologies.arrays import BoolArray, IntArray
from workloads.training.program.breakdown import ORDER
from workloads.training.program.program import Program

IDLE = len(ORDER)
"""Code of time with nothing on; smaller ones are the categories of the breakdown."""


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes in an order in which each comes after all that it waits for.

    A node has one part for each role in its call, and one if it is a run. Ops are numbered stage
    after stage.

    Attributes
    ----------
    exchange, call : int64 array (nodes,)
        -1 for a run.
    part_ptr : int64 array (nodes + 1,)
        Parts of a node.
    stage, category, stream, first, value : int64 array (parts,)
        For each part its stage; category and stream; first op, by its number in the stage; and the
        op, numbered through all stages, whose end is the part's end.
    run_ptr, run_op, run_ps : int64 arrays
        Ops of each part, by number in the stage, and their undisturbed times [ps].
    wait_ptr, wait : int64 arrays
        Ops, numbered through all stages, that each part waits for.
    base : int64 array (stages + 1,)
        First op of each stage.
    """

    exchange: IntArray
    call: IntArray
    part_ptr: IntArray
    stage: IntArray
    category: IntArray
    stream: IntArray
    first: IntArray
    value: IntArray
    run_ptr: IntArray
    run_op: IntArray
    run_ps: IntArray
    wait_ptr: IntArray
    wait: IntArray
    base: IntArray

    def __len__(self) -> int:
        return len(self.exchange)


@dataclass(frozen=True, eq=False)
class _Ops:
    """Ops of one rank of each stage: their edges, their calls, their categories."""

    base: IntArray
    stage: IntArray
    src: IntArray
    dst: IntArray
    exchange: IntArray
    call: IntArray
    role: IntArray
    step: IntArray


def nodes(program: Program) -> Nodes:
    """Return the nodes of a program.

    Raises
    ------
    ScheduleError
        When ops wait for each other in a cycle.
    """
    ops = _ops(program)
    category, stream = _of_steps(program)
    category, stream = category[ops.step], stream[ops.step]
    first = np.arange(len(ops.stage))
    for exchange in program.exchanges:
        leader, *others = program.roles(exchange)
        for role in others:
            first[role.ops + ops.base[role.stage]] = leader.ops + ops.base[leader.stage]
    rank = _ranks(first, ops.src, ops.dst)
    if (rank < 0).any():
        stuck = int(np.flatnonzero(rank < 0)[0])
        raise ScheduleError(f"op {stuck} of the program waits for itself through others")
    head = _heads(first, rank, ops.src, ops.dst, ops.exchange >= 0, category)
    return _assembled(program, ops, head, rank, category, stream)


def _ops(program: Program) -> _Ops:
    lengths = [len(stream.ops) for stream in program.streams]
    base = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    stage = np.repeat(np.arange(len(lengths)), lengths)
    src = [stream.src + base[s] for s, stream in enumerate(program.streams)]
    dst = [stream.dst + base[s] for s, stream in enumerate(program.streams)]
    step = [stream.ops.step for stream in program.streams]
    exchange = np.full(len(stage), -1, np.int64)
    call, role = np.zeros((2, len(stage)), np.int64)
    for number, shared in enumerate(program.exchanges):
        for which, its in enumerate(program.roles(shared)):
            at = its.ops + base[its.stage]
            exchange[at], call[at], role[at] = number, np.arange(shared.calls), which
    edges = np.concatenate(src).astype(np.int64), np.concatenate(dst).astype(np.int64)
    return _Ops(base, stage, *edges, exchange, call, role, np.concatenate(step))


def _of_steps(program: Program) -> tuple[IntArray, IntArray]:
    """Category and stream of each step."""
    place = {what: code for code, names in enumerate(ORDER.values()) for what in names}
    category = [place[step.what] for step in program.steps]
    return np.array(category, np.int64), np.array([s.stream for s in program.steps], np.int64)


def _assembled(
    program: Program,
    ops: _Ops,
    head: IntArray,
    rank: IntArray,
    category: IntArray,
    stream: IntArray,
) -> Nodes:
    """Parts in order of node, then role; their ops in order."""
    calls = ops.exchange >= 0
    order = np.lexsort((np.where(calls, 0, rank), ops.role, rank[head], head))
    order = order[np.argsort(rank[head[order]], kind="stable")]
    heads, roles = head[order], ops.role[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (heads[1:] != heads[:-1]) | (roles[1:] != roles[:-1])
    begin = np.flatnonzero(begins)
    run_ptr = np.append(begin, len(order))
    lead, last = order[begin], order[run_ptr[1:] - 1]
    new_node = np.ones(len(begin), np.bool_)
    new_node[1:] = head[lead[1:]] != head[lead[:-1]]
    part_ptr = np.append(np.flatnonzero(new_node), len(begin))
    part_of = np.empty(len(order), np.int64)
    part_of[order] = np.cumsum(begins) - 1
    outside = part_of[ops.src] != part_of[ops.dst]
    src, to = ops.src[outside], part_of[ops.dst[outside]]
    by_part = np.argsort(to, kind="stable")
    wait_ptr = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=len(begin)))])
    where = ops.stage[order]
    return Nodes(
        exchange=ops.exchange[lead[new_node]],
        call=ops.call[lead[new_node]],
        part_ptr=part_ptr,
        stage=ops.stage[lead],
        category=category[lead],
        stream=stream[lead],
        first=lead - ops.base[ops.stage[lead]],
        value=last,
        run_ptr=run_ptr,
        run_op=order - ops.base[where],
        run_ps=program.step_ps[ops.step[order]],
        wait_ptr=wait_ptr.astype(np.int64),
        wait=src[by_part],
        base=ops.base,
    )


def _ranks(first: IntArray, src: IntArray, dst: IntArray) -> IntArray:
    """Place of each op's node in an order of waiting, -1 in or behind a cycle."""
    count = len(first)
    leaves, enters = first[src], first[dst]
    ptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(leaves, minlength=count), out=ptr[1:])
    leads = enters[np.argsort(leaves, kind="stable")]
    waits = np.bincount(enters, minlength=count)
    queue = np.flatnonzero((first == np.arange(count)) & (waits == 0))
    rank = np.full(count, -1, np.int64)
    _number_in_order(
        ptr, leads, waits, np.append(queue, np.zeros(count, np.int64)), len(queue), rank
    )
    return rank[first]


@compiled
def _number_in_order(
    ptr: IntArray, leads: IntArray, waits: IntArray, queue: IntArray, ends: int, rank: IntArray
) -> None:
    """Number nodes as the last of those that they wait for is numbered; ``queue`` has the first."""
    taken = 0
    while taken < ends:
        node = queue[taken]
        rank[node] = taken
        taken += 1
        for k in range(ptr[node], ptr[node + 1]):
            waits[leads[k]] -= 1
            if waits[leads[k]] == 0:
                queue[ends] = leads[k]
                ends += 1


def _heads(
    first: IntArray,
    rank: IntArray,
    src: IntArray,
    dst: IntArray,
    meets: BoolArray,
    category: IntArray,
) -> IntArray:
    """First op of each op's node: of its call, or of the run of kernels that it continues."""
    count = len(first)
    before = np.full(count, -1, np.int64)
    before[dst] = src  # the last edge into an op; only ops with one are looked at
    alone = (np.bincount(dst, minlength=count) == 1) & (before >= 0) & ~meets
    op = np.flatnonzero(alone)
    b = before[op]
    continues = (np.bincount(src, minlength=count)[b] == 1) & ~meets[b]
    op = op[continues & (category[op] == category[b])]
    head = first.copy()
    _follow_runs(op[np.argsort(rank[op], kind="stable")], before, head)
    return head


@compiled
def _follow_runs(ops: IntArray, before: IntArray, head: IntArray) -> None:
    """Give each op the head of the one before it, in order."""
    for op in ops:
        head[op] = head[before[op]]
