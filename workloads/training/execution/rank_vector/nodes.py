"""Nodes that all ranks of a stage have in common: runs of kernels, and calls in which ranks meet.

A run is a chain of kernels of one category without anything in between, so that only its start and
end matter. A call is one node, even where its members are of several stages. Nodes and their waits
are the same for all ranks of a stage; only the times differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.engine.compiler.jit import compiled
from cluster_sim.schedule.table import ScheduleError
from topologies.arrays import BoolArray, IntArray
from workloads.training.program.breakdown import ORDER
from workloads.training.program.program import Program

IDLE = len(ORDER)  # code of idle time; smaller codes are the categories of the breakdown


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes in an order in which each comes after all nodes that it waits for.

    A call has one part for each role of its members, a run has a single part. Ops are numbered
    stage after stage.
    """

    # exchange, call: (nodes,): exchange of a call and its number there; the exchange of a run is -1
    exchange: IntArray
    call: IntArray
    part_ptr: IntArray  # (nodes + 1,): first part of each node, and the number of parts
    # stage, category, stream: (parts,): stage, category and stream of each part
    stage: IntArray
    category: IntArray
    stream: IntArray
    first: IntArray  # (parts,): first op of each part, by its number in the stage
    # (parts,): last op of each part, numbered through all stages; its end is the part's end
    value: IntArray
    # run_ptr, run_op, run_ps: ops of each part, by number in the stage, and their undisturbed times
    # [ps]
    run_ptr: IntArray
    run_op: IntArray
    run_ps: IntArray
    # wait_ptr, wait: ops that each part waits for, numbered through all stages
    wait_ptr: IntArray
    wait: IntArray
    base: IntArray  # (stages + 1,): first op of each stage

    def __len__(self) -> int:
        return len(self.exchange)


@dataclass(frozen=True, eq=False)
class _Ops:
    """Ops of one rank of each stage, with their edges, calls and steps."""

    base: IntArray
    stage: IntArray
    src: IntArray
    dst: IntArray
    exchange: IntArray
    call: IntArray
    role: IntArray
    step: IntArray


def nodes(program: Program) -> Nodes:
    """Return the nodes of a program."""
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
        for which, member in enumerate(program.roles(shared)):
            at = member.ops + base[member.stage]
            exchange[at], call[at], role[at] = number, np.arange(shared.calls), which
    edges = np.concatenate(src).astype(np.int64), np.concatenate(dst).astype(np.int64)
    return _Ops(base, stage, *edges, exchange, call, role, np.concatenate(step))


def _of_steps(program: Program) -> tuple[IntArray, IntArray]:
    """Category and stream of each step of the program."""
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
    """Assemble the nodes: ops in order of node, then of role, then of waiting."""
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
    """Place of each op's node in a topological order, -1 in or behind a cycle."""
    # ``first`` is the op that stands for each op's node: itself, or the first member of its call.
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
    """Number nodes in topological order; ``queue`` begins with the nodes that wait for nothing."""
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
    """First op of each op's node: of its call, or of the run of kernels that the op continues."""
    # A kernel continues the run before it if it waits for that op alone, and alone waits for it.
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
    """Give each op the head of the op before it, in order along each run."""
    for op in ops:
        head[op] = head[before[op]]
