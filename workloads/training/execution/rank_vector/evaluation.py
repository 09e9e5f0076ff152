"""Times of all ranks of a program, computed at once, and their breakdown.

Where ops contend for nothing but their stream, and the order on every stream is fixed, an op starts
at the latest end of the ops that it waits for. So each clock is computed once, in an order in which
no op waits for a later one, without a queue of events and without a table of all ranks' ops.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from queue import SimpleQueue

import numpy as np

from cluster_sim.schedule.table import HORIZON_PS, ScheduleError
from topologies.support.arrays import IntArray
from topologies.support.units import PS_PER_S
from workloads.training.execution.jitter import GOLDEN, Disturbance
from workloads.training.execution.rank_vector import run
from workloads.training.execution.rank_vector.cover import (
    COMPARE,
    IGNORE,
    NOTHING,
    RECORD,
    ROOM,
    STARTS,
    Clocks,
    Cover,
    Kernels,
    Notes,
    Question,
    Usual,
    new_cover,
)
from workloads.training.execution.rank_vector.nodes import (
    IDLE,
    Layout,
    Nodes,
    layout,
    nodes,
    unions,
)
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
    """Evaluate a program for all its ranks."""
    # ``disturbance``: jitter and stragglers; none by default. ``threads``: threads that work on
    # blocks of ranks at the same time, by default one for each core. The times are the same for any
    # number.
    disturbance = disturbance or Disturbance()
    if disturbance and (program.count > 1).any():
        raise ScheduleError("a folded program cannot be disturbed: its ranks stand for others")
    threads = threads or len(os.sched_getaffinity(0))
    graph = nodes(program)
    factor = 2 * max((factor for _, factor in disturbance.stragglers), default=1.0)
    if float(graph.run_ps.sum()) * factor > HORIZON_PS:
        raise ScheduleError("the kernels of an iteration together last longer than the horizon")
    machine = Machine(program, graph, disturbance, threads)
    if not disturbance:
        meet(machine, progress)
        nothing_usual = Usual(np.zeros((1, 1), np.int64), np.zeros(len(program), np.int64))
        return _summed(machine, follow(machine, IGNORE, nothing_usual, progress))
    # Waiting that jitter and stragglers cause is what exceeds the idle time without them, which one
    # rank of each class of equal ranks shows.
    classes = equal_ranks(program)
    undisturbed = Machine(keep(program, classes), graph, Disturbance(), 1)
    meet(undisturbed)
    idle = np.zeros((int(np.diff(graph.base).max()) + 1, len(undisturbed.program)), np.int64)
    recorded = Usual(idle, undisturbed.layout.order)
    until = follow(undisturbed, RECORD, recorded).until
    idle[-1, recorded.like] = until.max() - until
    usual = Usual(idle, classes[machine.layout.order])
    meet(machine, progress)
    followed = follow(machine, COMPARE, usual, progress)
    return replace(_summed(machine, followed, usual), undisturbed_ps=int(until.max()))


def _summed(machine: Machine, followed: Notes, usual: Usual | None = None) -> RankVector:
    """Sum up the times of all ranks; time after a rank's last op counts as idle time."""
    total = int(followed.until.max())
    tail = total - followed.until
    late = followed.late
    if usual is not None:
        late = late + np.maximum(0, tail - usual.idle[-1, usual.like])
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


Progress = Callable[[str, int, int], None]
"""Called with the name of a stage of the work, how much of it is done, and how much there is."""
CALLS = 200  # approximate number of stretches into which all blocks are divided


def over_blocks(
    blocks: int,
    states: Sequence[State],
    work: Callable[[State, tuple[int, int]], None],
    report: Callable[[int], None],
) -> None:
    """Do some work on stretches of blocks, with as many threads as there are states."""
    step = max(1, blocks // CALLS)
    stretches = [(low, min(low + step, blocks)) for low in range(0, blocks, step)]
    if len(stretches) == 1 or len(states) == 1:
        for low, high in stretches:
            work(states[0], (low, high))
            report(high - low)
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed

    free: SimpleQueue[State] = SimpleQueue()
    for state in states:
        free.put(state)

    def work_on(stretch: tuple[int, int]) -> int:
        state = free.get()
        work(state, stretch)
        free.put(state)
        return stretch[1] - stretch[0]

    with ThreadPoolExecutor(len(states)) as pool:
        futures = [pool.submit(work_on, stretch) for stretch in stretches]
        try:
            for future in as_completed(futures):
                report(future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class Machine:
    """A program laid out for evaluation."""

    # ``meet_at`` (exchanges,): where the calls of a wide exchange begin in ``meet_ps``.
    # ``meet_ps``: start of each call of each group of the wide exchanges [ps].

    def __init__(self, program: Program, nodes: Nodes, disturbance: Disturbance, threads: int):
        self.program = program
        self.nodes = nodes
        self.layout = layout(program)
        self.tape = run.phases_tape(nodes, self.layout.wide, self.layout.widest)
        self.unions = unions(nodes)
        self.kernels = _kernels(program, nodes, self.layout, disturbance)
        sizes = np.where(self.layout.wide, self.layout.groups * self.layout.calls, 0)
        self.meet_at = np.cumsum(sizes) - sizes
        self.meet_ps = np.zeros(int(sizes.sum()), np.int64)
        self.threads = min(threads, self.layout.blocks)

    def clocks(self, end: IntArray, stride: int) -> Clocks:
        """Clocks for a thread; ``end`` may be shared by all threads, block after block."""
        roles, widest = int(np.diff(self.nodes.part_ptr).max()), int(self.layout.widest.max())
        start, drawn = np.zeros((roles, widest), np.int64), np.zeros(widest, np.int64)
        place, ready = np.zeros(widest, np.uint64), np.zeros_like(self.meet_ps)
        return Clocks(end, stride, ready, self.meet_ps, self.meet_at, start, place, drawn)

    def cover(self, room: int) -> Cover:
        """Return a cover without intervals for the ranks of a block."""
        rows, stages = int(self.layout.row_at[-1]), len(self.layout.widest)
        return new_cover(len(self.unions.top), IDLE, (stages, rows), room)

    def no_notes(self) -> Notes:
        """Return notes of an evaluation that notes nothing."""
        flat, none = np.zeros((0, 0), np.int64), np.zeros(0, np.int64)
        return Notes(
            new_cover(0, 0, (0, 0), 0), Question(none, Usual(flat, none), NOTHING),
            none, none, none, flat, flat, none, none,
        )  # fmt: skip

    def carry_out(
        self, tape: run.Tape, instructions: tuple[int, int], state: State, blocks: tuple[int, int]
    ) -> None:
        """Carry out instructions for some blocks."""
        task = run.Task(self.nodes, tape, self.layout, self.kernels, state.clocks, state.notes)
        run.carry_out(task, blocks, instructions)


@dataclass(eq=False)
class State:
    """State that one thread changes."""

    clocks: Clocks
    notes: Notes


def meet(machine: Machine, progress: Progress | None = None) -> None:
    """Find when the groups of wide exchanges meet, by running all phases but the last."""
    tape, blocks, notes = machine.tape, machine.layout.blocks, machine.no_notes()
    phases = list(pairwise(tape.bounds.tolist()))[:-1]
    # Clocks of all blocks, with which each phase goes on [ps].
    end = np.zeros(tape.size * blocks if phases else 0, np.int64)
    states = [State(machine.clocks(end, tape.size), notes) for _ in range(machine.threads)]
    report = counted(len(phases) * blocks, progress, "clocks")
    for instructions in phases:
        over_blocks(blocks, states, partial(machine.carry_out, tape, instructions), report)
        for state in states:
            np.maximum(machine.meet_ps, state.clocks.ready, out=machine.meet_ps)


def first_starts(machine: Machine) -> IntArray:
    """Earliest start of each node on the first ranks of stages, by which to order nodes [ps]."""
    # On other ranks nodes may start in another order. Their intervals then come out of order, which
    # a cover allows as far as it has room.
    start_ps = np.full(len(machine.nodes.exchange), HORIZON_PS, np.int64)
    notes = machine.no_notes()
    notes = notes._replace(question=notes.question._replace(mode=STARTS), first_start=start_ps)
    # Enough blocks that each stage has a rank among them.
    blocks = int(np.argmax((machine.layout.low > 0).all(axis=1)))
    end = np.zeros(machine.tape.size * blocks, np.int64)
    state = State(machine.clocks(end, machine.tape.size), notes)
    for instructions in pairwise(machine.tape.bounds.tolist()):
        machine.carry_out(machine.tape, instructions, state, (0, blocks))
    return start_ps


def follow(machine: Machine, mode: int, usual: Usual, progress: Progress | None = None) -> Notes:
    """Evaluate all blocks, each from beginning to end, and note where time goes."""
    unions, ranks = machine.unions, len(machine.program)
    notes = Notes(
        machine.cover(ROOM), Question(unions.top, usual, mode), unions.alone, unions.place,
        np.zeros(0, np.int64), np.zeros((unions.followed, ranks), np.int64),
        np.zeros((IDLE, ranks), np.int64), *np.zeros((2, ranks), np.int64),
    )  # fmt: skip
    # Nodes in order of start, now that it is known when wide exchanges meet.
    order = run.starting_order(machine.nodes, first_starts(machine), unions.place)
    tape = run.timed_tape(machine.nodes, order, machine.layout.widest)
    states = [
        State(
            machine.clocks(np.zeros(tape.size, np.int64), 0),
            notes._replace(cover=machine.cover(ROOM)),
        )
        for _ in range(machine.threads)
    ]
    report = counted(machine.layout.blocks, progress, "breakdown")
    over_blocks(machine.layout.blocks, states, partial(follow_blocks, machine, tape), report)
    return notes


def follow_blocks(machine: Machine, tape: run.Tape, state: State, blocks: tuple[int, int]) -> None:
    """Evaluate blocks one by one; repeat one with twice the room if its cover lost an interval."""
    for block in range(*blocks):
        alone = (block, block + 1)
        machine.carry_out(tape, (0, len(tape.node)), state, alone)
        while state.notes.cover.lost[0]:
            room = state.notes.cover.gap_start.shape[0]
            if state.notes.question.mode == RECORD:
                # Clear the idle times that blocks recorded while their cover lost an interval.
                usual = state.notes.question.usual
                for stage, first in enumerate(machine.layout.stage_at[:-1]):
                    low, high = first + machine.layout.low[list(alone), stage]
                    usual.idle[:, usual.like[low:high]] = 0
            state.notes = state.notes._replace(cover=machine.cover(2 * room))
            machine.carry_out(tape, (0, len(tape.node)), state, alone)


def counted(whole: int, progress: Progress | None, stage: str) -> Callable[[int], None]:
    """Return a function that counts finished work of one stage, and reports every addition."""
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(stage, done, whole)

    return report


def _kernels(program: Program, nodes: Nodes, layout: Layout, disturbance: Disturbance) -> Kernels:
    """Disturbance of kernels, of ranks in the order of the layout."""
    ranks, longest = program.rank[layout.order], int(np.diff(nodes.base).max())
    return Kernels(
        key=disturbance.keys(ranks),
        slow=disturbance.slowness(ranks),
        table=disturbance.table,
        op_key=np.arange(longest).astype(np.uint64) * GOLDEN,
        disturbed=bool(disturbance),
    )
