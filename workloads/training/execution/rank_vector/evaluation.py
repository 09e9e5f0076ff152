"""Times of all ranks of a program, computed at once, and their breakdown.

Where ops contend for nothing but their stream, and the order on every stream is fixed, an op starts
at the latest end of the ops that it waits for. So each clock is computed once, in an order in which
no op waits for a later one, without a queue of events and without a table of all ranks' ops.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.schedule.table import HORIZON_PS, ScheduleError
from topologies.arrays import IntArray
from workloads.training.execution.jitter import Disturbance
from workloads.training.execution.rank_vector.compare import compare
from workloads.training.execution.rank_vector.cover import IGNORE, RECORD, Usual, usual_of
from workloads.training.execution.rank_vector.machine import Followed, Machine, follow, meet
from workloads.training.execution.rank_vector.nodes import Nodes, nodes
from workloads.training.execution.rank_vector.over_blocks import Progress
from workloads.training.program.breakdown import ORDER, RankTimes
from workloads.training.program.fold import equal_ranks, keep
from workloads.training.program.program import Program


@dataclass(frozen=True, eq=False)
class RankVector:
    """Times of all ranks, summed up by category while they were computed."""

    total_ps: int  # length of the iteration [ps]
    ops: int  # ops of all ranks, joins not counted
    ranks: RankTimes  # time of each rank in each category of the breakdown
    # Communication hidden behind work of a category that takes precedence, mean over all ranks [s]
    overlapped_s: float
    # Length of the iteration without jitter and stragglers, where it was disturbed [ps]
    undisturbed_ps: int | None = None

    @property
    def total_s(self) -> float:
        """Length of the iteration [s]."""
        return self.total_ps / PS_PER_S

    def __len__(self) -> int:
        return self.ops


def evaluate(
    program: Program,
    disturbance: Disturbance | None = None,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
) -> RankVector:
    """Evaluate a program for all its ranks.

    ``disturbance``: jitter and stragglers; none by default. ``threads``: threads that work on
    blocks of ranks at the same time, by default one for each core. The times are the same for any
    number.
    """
    disturbance = disturbance or Disturbance()
    if disturbance and (program.count > 1).any():
        raise ScheduleError("a folded program cannot be disturbed: its ranks stand for others")
    threads = threads or len(os.sched_getaffinity(0))
    graph = nodes(program)
    _check_horizon(graph, disturbance)
    machine = Machine(program, graph, disturbance, threads)
    if not disturbance:
        meet(machine, progress)
        return _summed(machine, follow(machine, IGNORE, _nothing_usual(program), progress))
    # Waiting that jitter and stragglers cause is what exceeds the idle time without them, which one
    # rank of each class of equal ranks shows.
    classes = equal_ranks(program)
    undisturbed = Machine(keep(program, classes), graph, Disturbance(), 1)
    meet(undisturbed)
    idle = np.zeros((int(np.diff(graph.base).max()) + 1, len(undisturbed.program)), np.int64)
    recorded = usual_of(idle, undisturbed.layout.order)
    until = follow(undisturbed, RECORD, recorded).until
    idle[-1, recorded.like] = until.max() - until
    usual = usual_of(idle, classes[machine.layout.order])
    followed = compare(machine, undisturbed.in_order(), usual, progress)
    return replace(_summed(machine, followed, usual), undisturbed_ps=int(until.max()))


def _nothing_usual(program: Program) -> Usual:
    return usual_of(np.zeros((1, 1), np.int64), np.zeros(len(program), np.int64))


def _check_horizon(nodes: Nodes, disturbance: Disturbance) -> None:
    """Raise an error if all kernels one after the other, doubled by jitter, pass the horizon."""
    factor = 2 * max((factor for _, factor in disturbance.stragglers), default=1.0)
    if float(nodes.run_ps.sum()) * factor > HORIZON_PS:
        raise ScheduleError("the kernels of an iteration together last longer than the horizon")


def _summed(machine: Machine, followed: Followed, usual: Usual | None = None) -> RankVector:
    """Sum up the times of all ranks; time after a rank's last op counts as idle time."""
    total = int(followed.until.max())
    tail = total - followed.until
    late = followed.late if usual is None else _late(followed, usual, tail)
    spent = machine.unions.spent(followed.covered, followed.spent)
    active = machine.unions.active(followed.covered, followed.spent)
    order = machine.layout.order
    count = machine.program.count[order]
    parts = {name: spent[code] for code, name in enumerate(ORDER)}
    parts["bubble"] = followed.until - spent.sum(axis=0) + tail - late
    parts["straggler"] = late
    by_rank = np.argsort(machine.program.rank[order], kind="stable")
    ranks = RankTimes(
        machine.program.rank[order][by_rank],
        count[by_rank],
        {part: values[by_rank] for part, values in parts.items()},
    )
    exposed = [code for code, name in enumerate(ORDER) if name.startswith("exposed")]
    hidden = (active[exposed] - spent[exposed]).sum(axis=0)
    hidden_s = float(np.average(hidden / PS_PER_S, weights=count))
    ops = int((np.diff(machine.nodes.base) * machine.layout.ranks).sum())
    return RankVector(total, ops, ranks, hidden_s)


def _late(followed: Followed, usual: Usual, tail: IntArray) -> IntArray:
    """Waiting of each rank beyond the usual, after its last op too [ps]."""
    late: IntArray = followed.late + np.maximum(0, tail - usual.idle[-1, usual.like])
    return late
