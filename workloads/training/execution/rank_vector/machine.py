"""A program laid out for evaluation, and the passes over its blocks of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from cluster_sim.schedule.table import HORIZON_PS
from topologies.arrays import BoolArray, IntArray
from workloads.training.execution.jitter import GOLDEN, Disturbance, jittered
from workloads.training.execution.rank_vector.cover import (
    NOTHING,
    RECORD,
    ROOM,
    STARTS,
    Cover,
    Question,
    Usual,
    new_cover,
)
from workloads.training.execution.rank_vector.layout import Layout, layout
from workloads.training.execution.rank_vector.nodes import IDLE, Nodes
from workloads.training.execution.rank_vector.over_blocks import Progress, over_blocks
from workloads.training.execution.rank_vector.run import carry_out
from workloads.training.execution.rank_vector.state import Clocks, Kernels, Notes, Work
from workloads.training.execution.rank_vector.tape import (
    Tape,
    phases_tape,
    starting_order,
    timed_tape,
)
from workloads.training.execution.rank_vector.unions import unions
from workloads.training.program.program import Program

MOST_TABLES = 512
"""Most different durations for which all jittered times are tabulated; each takes 8 KiB."""


class Machine:
    """A program laid out for evaluation.

    ``meet_at`` (exchanges,): where the calls of a wide exchange begin in ``meet_ps``. ``meet_ps``:
    start of each call of each group of the wide exchanges [ps].
    """

    def __init__(self, program: Program, nodes: Nodes, disturbance: Disturbance, threads: int):
        self.program = program
        self.nodes = nodes
        self.layout = layout(program)
        self.tape = phases_tape(nodes, self.layout.wide, self.layout.widest)
        self.unions = unions(nodes)
        self.work = _work(nodes)
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
            new_cover(0, 0, (0, 0), 0), Question(none, Usual(flat, none, none), NOTHING),
            none, none, none, flat, flat, none, none,
        )  # fmt: skip

    def notes(self, mode: int, usual: Usual, followed: Followed) -> Notes:
        """Return notes of where time goes, which are added up in ``followed``."""
        question = Question(self.unions.top, usual, mode)
        return Notes(
            self.cover(ROOM), question, self.unions.alone, self.unions.place,
            np.zeros(0, np.int64), *vars(followed).values(),
        )  # fmt: skip

    def in_order(self) -> IntArray:
        """Return the nodes in order of start, once it is known when wide exchanges meet."""
        return starting_order(self.nodes, first_starts(self), self.unions.place)

    def carry_out(
        self, tape: Tape, instructions: tuple[int, int], state: State, blocks: tuple[int, int]
    ) -> None:
        """Carry out instructions for some blocks."""
        carry_out(
            self.work, tape, self.layout, self.kernels, state.clocks,
            state.notes, blocks, instructions,
        )  # fmt: skip


@dataclass(eq=False)
class State:
    """State that one thread changes."""

    clocks: Clocks
    notes: Notes


@dataclass(frozen=True, eq=False)
class Followed:
    """Breakdown of the time, by place in the layout; see :class:`Notes`."""

    covered: IntArray
    spent: IntArray
    late: IntArray
    until: IntArray


def meet(machine: Machine, progress: Progress | None = None) -> None:
    """Find when the groups of wide exchanges meet, by running all phases but the last."""
    phases = list(pairwise(machine.tape.bounds.tolist()))[:-1]
    end = np.zeros(machine.tape.size * machine.layout.blocks if phases else 0, np.int64)
    counter = Counter(len(phases) * machine.layout.blocks, reporter(progress, "clocks"))
    go_through(machine, machine.tape, phases, end, counter)


def go_through(
    machine: Machine, tape: Tape, phases: list[tuple[int, int]], end: IntArray, counter: Counter
) -> None:
    """Carry out phases, one by one, on all blocks, and find when wide exchanges meet.

    ``end`` (blocks · clocks of the tape,): clocks of all blocks, which the phases continue [ps].
    """
    notes = machine.no_notes()
    states = [State(machine.clocks(end, tape.size), notes) for _ in range(machine.threads)]
    for instructions in phases:
        work = partial(machine.carry_out, tape, instructions)
        over_blocks(machine.layout.blocks, states, work, counter.more)
        for state in states:
            np.maximum(machine.meet_ps, state.clocks.ready, out=machine.meet_ps)


def first_starts(machine: Machine) -> IntArray:
    """Earliest start of each node on the first ranks of every stage, by which to order nodes [ps].

    On other ranks nodes may start in another order. Their intervals then come out of order, which
    a cover allows as far as it has room.
    """
    start_ps = np.full(len(machine.nodes), HORIZON_PS, np.int64)
    notes = machine.no_notes()
    notes = notes._replace(question=notes.question._replace(mode=STARTS), first_start=start_ps)
    # Enough blocks that each stage has a rank among them.
    blocks = int(np.argmax((machine.layout.low > 0).all(axis=1)))
    end = np.zeros(machine.tape.size * blocks, np.int64)
    state = State(machine.clocks(end, machine.tape.size), notes)
    for instructions in pairwise(machine.tape.bounds.tolist()):
        machine.carry_out(machine.tape, instructions, state, (0, blocks))
    return start_ps


def follow(machine: Machine, mode: int, usual: Usual, progress: Progress | None = None) -> Followed:
    """Evaluate all blocks, each from beginning to end, and note where time goes."""
    followed = empty_breakdown(machine)
    tape = timed_tape(machine.nodes, machine.in_order(), machine.layout.widest)
    states = [
        State(
            machine.clocks(np.zeros(tape.size, np.int64), 0),
            machine.notes(mode, usual, followed),
        )
        for _ in range(machine.threads)
    ]
    counter = Counter(machine.layout.blocks, reporter(progress, "breakdown"))
    over_blocks(machine.layout.blocks, states, partial(follow_blocks, machine, tape), counter.more)
    return followed


def empty_breakdown(machine: Machine) -> Followed:
    """Return the breakdown of all ranks' time before any of it is noted."""
    ranks = len(machine.program)
    return Followed(
        np.zeros((machine.unions.followed, ranks), np.int64),
        np.zeros((IDLE, ranks), np.int64),
        *np.zeros((2, ranks), np.int64),
    )


def follow_blocks(machine: Machine, tape: Tape, state: State, blocks: tuple[int, int]) -> None:
    """Evaluate blocks one by one; repeat one with twice the room if its cover lost an interval."""
    for block in range(*blocks):
        alone = (block, block + 1)
        machine.carry_out(tape, (0, len(tape.node)), state, alone)
        while state.notes.cover.lost[0]:
            room = state.notes.cover.gap_start.shape[0]
            if state.notes.question.mode == RECORD:
                _unrecord(machine.layout, state.notes.question.usual, alone)
            state.notes = state.notes._replace(cover=machine.cover(2 * room))
            machine.carry_out(tape, (0, len(tape.node)), state, alone)


def _unrecord(layout: Layout, usual: Usual, blocks: tuple[int, int]) -> None:
    """Clear the idle times that blocks recorded while their cover lost an interval."""
    for stage, first in enumerate(layout.stage_at[:-1]):
        low, high = first + layout.low[list(blocks), stage]
        usual.idle[:, usual.like[low:high]] = 0


Reporter = Callable[[int, int], None]


def reporter(progress: Progress | None, stage: str) -> Reporter | None:
    """Return a function that reports the progress of one stage of the work, None for no reports."""
    return partial(progress, stage) if progress else None


class Counter:
    """Counter of finished work, which reports every addition."""

    def __init__(self, whole: int, report: Reporter | None):
        self.whole = whole
        self.done = 0
        self.report = report

    def more(self, count: int) -> None:
        """Count more finished work, and report it."""
        self.done += count
        if self.report:
            self.report(self.done, self.whole)


def _work(nodes: Nodes) -> Work:
    """Columns of the nodes that compiled code reads, with the summed time of each run."""
    total = np.concatenate([[0], np.cumsum(nodes.run_ps)])
    return Work(
        nodes.exchange, nodes.call, nodes.part_ptr, nodes.stage, nodes.category, nodes.first,
        nodes.run_ptr, nodes.run_op, nodes.run_ps, np.diff(total[nodes.run_ptr]), nodes.wait_ptr,
    )  # fmt: skip


def _kernels(program: Program, nodes: Nodes, layout: Layout, disturbance: Disturbance) -> Kernels:
    """Disturbance of kernels, with all jittered times tabulated if durations are few enough."""
    ranks = program.rank[layout.order]
    longest = int(np.diff(nodes.base).max())
    op_key = np.arange(longest).astype(np.uint64) * GOLDEN
    slow = disturbance.slowness(ranks)
    durations, row = np.unique(nodes.run_ps, return_inverse=True)
    tabulated = bool(disturbance) and len(durations) <= MOST_TABLES
    scaled = jittered(durations if tabulated else durations[:0], disturbance.table)
    slowed = _slowed(layout, slow) if tabulated else np.ones(_blocks(layout), np.bool_)
    duration = np.ascontiguousarray(row, np.int64)
    keys = disturbance.keys(ranks)
    return Kernels(
        keys, slow, disturbance.table, op_key, scaled, duration, slowed, bool(disturbance)
    )


def _blocks(layout: Layout) -> tuple[int, int]:
    return layout.blocks, layout.low.shape[1]


def _slowed(layout: Layout, slow: IntArray) -> BoolArray:
    """Return whether each stage of each block has a slow rank, bool (blocks, stages)."""
    before = np.concatenate([[0], np.cumsum(slow > 0)])
    counted = before[layout.stage_at[:-1] + layout.low]
    return np.ascontiguousarray(np.diff(counted, axis=0) > 0)
