"""A program laid out for evaluation, and the passes over its ranks."""

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
"""Different durations up to which all their jittered times are worth a table, of 8 KiB each."""


class Machine:
    """A program laid out for evaluation.

    Attributes
    ----------
    program : Program
    nodes : Nodes
    layout : Layout
    tape : Tape
        On which calls of wide exchanges meet in phases.
    unions : Unions
    work, kernels
        Columns of nodes and ranks.
    meet_at, meet_ps : int64 array
        Calls of wide exchanges: where those of an exchange begin, and when each starts [ps].
    threads : int
    """

    def __init__(self, program: Program, nodes: Nodes, how: Disturbance, threads: int):
        self.program = program
        self.nodes = nodes
        self.layout = layout(program)
        self.tape = phases_tape(nodes, self.layout.wide, self.layout.widest)
        self.unions = unions(nodes)
        self.work = _work(nodes)
        self.kernels = _kernels(program, nodes, self.layout, how)
        sizes = np.where(self.layout.wide, self.layout.groups * self.layout.calls, 0)
        self.meet_at = np.cumsum(sizes) - sizes
        self.meet_ps = np.zeros(int(sizes.sum()), np.int64)
        self.threads = min(threads, self.layout.blocks)

    def clocks(self, end: IntArray, stride: int) -> Clocks:
        """Clocks for a thread; ``end`` may be all threads' own."""
        roles, widest = int(np.diff(self.nodes.part_ptr).max()), int(self.layout.widest.max())
        start, drawn = np.zeros((roles, widest), np.int64), np.zeros(widest, np.int64)
        place, ready = np.zeros(widest, np.uint64), np.zeros_like(self.meet_ps)
        return Clocks(end, stride, ready, self.meet_ps, self.meet_at, start, place, drawn)

    def cover(self, room: int) -> Cover:
        """Room for what the unions of a block cover."""
        rows, stages = int(self.layout.row_at[-1]), len(self.layout.widest)
        return new_cover(len(self.unions.top), IDLE, (stages, rows), room)

    def quiet(self) -> Notes:
        """Return notes that take nothing down."""
        flat, none = np.zeros((0, 0), np.int64), np.zeros(0, np.int64)
        return Notes(
            new_cover(0, 0, (0, 0), 0), Question(none, Usual(flat, none, none), NOTHING),
            none, none, none, flat, flat, none, none,
        )  # fmt: skip

    def notes(self, mode: int, usual: Usual, followed: Followed) -> Notes:
        """Return notes of where time goes, added up in what is followed."""
        question = Question(self.unions.top, usual, mode)
        return Notes(
            self.cover(ROOM), question, self.unions.alone, self.unions.place,
            np.zeros(0, np.int64), *vars(followed).values(),
        )  # fmt: skip

    def in_order(self) -> IntArray:
        """Return the nodes in order of start; the groups of wide exchanges have met."""
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
    """Find when the groups of wide exchanges meet: all phases but the last, one by one."""
    phases = list(pairwise(machine.tape.bounds.tolist()))[:-1]
    end = np.zeros(machine.tape.size * machine.layout.blocks if phases else 0, np.int64)
    counter = Counter(len(phases) * machine.layout.blocks, telling(progress, "clocks"))
    go_through(machine, machine.tape, phases, end, counter)


def go_through(
    machine: Machine, tape: Tape, phases: list[tuple[int, int]], end: IntArray, counter: Counter
) -> None:
    """Carry out phases, one by one, on all blocks, and find when wide exchanges meet.

    Parameters
    ----------
    machine : Machine
    tape : Tape
    phases : list of (int, int)
        First instruction of each phase, and one past the last.
    end : int64 array (blocks · clocks of the tape,)
    counter : Counter
    """
    notes = machine.quiet()
    states = [State(machine.clocks(end, tape.size), notes) for _ in range(machine.threads)]
    for instructions in phases:
        work = partial(machine.carry_out, tape, instructions)
        over_blocks(machine.layout.blocks, states, work, counter.more)
        for state in states:
            np.maximum(machine.meet_ps, state.clocks.ready, out=machine.meet_ps)


def first_starts(machine: Machine) -> IntArray:
    """Earliest start of each node [ps] on the first ranks of every stage, by which to order them.

    What starts in another order on other ranks comes a little late for them.
    """
    when = np.full(len(machine.nodes), HORIZON_PS, np.int64)
    notes = machine.quiet()
    notes = notes._replace(question=notes.question._replace(mode=STARTS), first_start=when)
    blocks = int(np.argmax((machine.layout.low > 0).all(axis=1)))
    end = np.zeros(machine.tape.size * blocks, np.int64)
    state = State(machine.clocks(end, machine.tape.size), notes)
    for instructions in pairwise(machine.tape.bounds.tolist()):
        machine.carry_out(machine.tape, instructions, state, (0, blocks))
    return when


def follow(machine: Machine, mode: int, usual: Usual, progress: Progress | None = None) -> Followed:
    """Go through all blocks, each from beginning to end, and note where time goes."""
    followed = nothing_followed(machine)
    tape = timed_tape(machine.nodes, machine.in_order(), machine.layout.widest)
    states = [
        State(
            machine.clocks(np.zeros(tape.size, np.int64), 0),
            machine.notes(mode, usual, followed),
        )
        for _ in range(machine.threads)
    ]
    counter = Counter(machine.layout.blocks, telling(progress, "breakdown"))
    over_blocks(machine.layout.blocks, states, partial(follow_blocks, machine, tape), counter.more)
    return followed


def nothing_followed(machine: Machine) -> Followed:
    """Room for the breakdown of the time of all ranks."""
    ranks = len(machine.program)
    return Followed(
        np.zeros((machine.unions.followed, ranks), np.int64),
        np.zeros((IDLE, ranks), np.int64),
        *np.zeros((2, ranks), np.int64),
    )


def follow_blocks(machine: Machine, tape: Tape, state: State, blocks: tuple[int, int]) -> None:
    """Follow blocks, each with more room for what it remembers where that was too little."""
    for block in range(*blocks):
        alone = (block, block + 1)
        machine.carry_out(tape, (0, len(tape.node)), state, alone)
        while state.notes.cover.lost[0]:
            room = state.notes.cover.gap_start.shape[0]
            if state.notes.question.mode == RECORD:
                _unrecord(machine.layout, state.notes.question.usual, alone)
            state.notes = state.notes._replace(cover=machine.cover(2 * room))
            machine.carry_out(tape, (0, len(tape.node)), state, alone)


def _unrecord(where: Layout, usual: Usual, blocks: tuple[int, int]) -> None:
    """Forget the idle times that blocks recorded while some of their gaps were lost."""
    for stage, at in enumerate(where.stage_at[:-1]):
        low, high = at + where.low[list(blocks), stage]
        usual.idle[:, usual.like[low:high]] = 0


Telling = Callable[[int, int], None]


def telling(progress: Progress | None, what: str) -> Telling | None:
    """Return what reports some progress, if somebody wants to hear of it."""
    return partial(progress, what) if progress else None


class Counter:
    """Counter of the work done so far."""

    def __init__(self, whole: int, report: Telling | None):
        self.whole = whole
        self.done = 0
        self.report = report

    def more(self, count: int) -> None:
        """Progress by so much more work."""
        self.done += count
        if self.report:
            self.report(self.done, self.whole)


def _work(nodes: Nodes) -> Work:
    total = np.concatenate([[0], np.cumsum(nodes.run_ps)])
    return Work(
        nodes.exchange, nodes.call, nodes.part_ptr, nodes.stage, nodes.category, nodes.first,
        nodes.run_ptr, nodes.run_op, nodes.run_ps, np.diff(total[nodes.run_ptr]), nodes.wait_ptr,
    )  # fmt: skip


def _kernels(program: Program, nodes: Nodes, where: Layout, how: Disturbance) -> Kernels:
    ranks = program.rank[where.order]
    longest = int(np.diff(nodes.base).max())
    op_key = np.arange(longest).astype(np.uint64) * GOLDEN
    slow = how.slowness(ranks)
    durations, row = np.unique(nodes.run_ps, return_inverse=True)
    tabulated = bool(how) and len(durations) <= MOST_TABLES
    scaled = jittered(durations if tabulated else durations[:0], how.table)
    slowed = _slowed(where, slow) if tabulated else np.ones(_blocks(where), np.bool_)
    duration = np.ascontiguousarray(row, np.int64)
    keys = how.keys(ranks)
    return Kernels(keys, slow, how.table, op_key, scaled, duration, slowed, bool(how))


def _blocks(where: Layout) -> tuple[int, int]:
    return where.blocks, where.low.shape[1]


def _slowed(where: Layout, slow: IntArray) -> BoolArray:
    """Return which blocks have a slow rank in a stage, bool (blocks, stages)."""
    before = np.concatenate([[0], np.cumsum(slow > 0)])
    counted = before[where.stage_at[:-1] + where.low]
    return np.ascontiguousarray(np.diff(counted, axis=0) > 0)
