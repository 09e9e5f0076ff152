"""The rank vector: a program evaluated for all ranks at once, as arrays of clocks.

Where nothing contends but for a stream, and the order on every stream is fixed, the start of an
op is the latest end of what it waits for. So each clock is computed once, in an order in which
nothing waits for what comes later; no queue of events is needed, and no table of ops is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from cluster_sim.instants import PS_PER_S
from cluster_sim.schedule import HORIZON_PS, IntArray, ScheduleError
from workloads.training.breakdown import ORDER, PARTS
from workloads.training.fold import equal_ranks, fold
from workloads.training.jitter import GOLDEN, Disturbance
from workloads.training.program import Program
from workloads.training.rank_vector.cover import COMPARE, IGNORE, RECORD, ROOM, new_cover
from workloads.training.rank_vector.layout import Layout, layout
from workloads.training.rank_vector.nodes import IDLE, Nodes, nodes
from workloads.training.rank_vector.run import (
    Clocks,
    Kernels,
    Notes,
    Work,
    advance,
    first_starts,
    follow,
)
from workloads.training.rank_vector.tape import Tape, phases_tape, timed_tape

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""
CALLS = 200
"""Calls of the progress function, about."""


@dataclass(frozen=True, eq=False)
class RankVector:
    """Times of all ranks, summed up while they were computed.

    Attributes
    ----------
    total_ps : int
        Length of the iteration [ps].
    ops : int
        Ops of all ranks, joins not counted.
    ranks : DataFrame
        As :func:`workloads.training.breakdown.breakdown` returns it.
    overlapped_s : float
        Communication hidden behind something that goes first, mean over all ranks [s].
    """

    total_ps: int
    ops: int
    ranks: pd.DataFrame
    overlapped_s: float

    @property
    def total_s(self) -> float:
        """Length of the iteration [s]."""
        return self.total_ps / PS_PER_S

    def __len__(self) -> int:
        return self.ops


def evaluate(
    program: Program, how: Disturbance | None = None, *, progress: Progress | None = None
) -> RankVector:
    """Evaluate a program for all its ranks.

    Parameters
    ----------
    program : Program
        Folded or not; one that is to be disturbed must not be folded.
    how : Disturbance, optional
    progress : function of (str, int, int), optional

    Raises
    ------
    ScheduleError
        When ops wait for each other in a cycle, or the run may pass the horizon.
    """
    how = how or Disturbance()
    if how and (program.count > 1).any():
        raise ScheduleError("a folded program cannot be disturbed: its ranks stand for others")
    made, classes = nodes(program), equal_ranks(program)
    _check_horizon(made, how)
    usual = _Machine(fold(program), made, Disturbance())
    when = usual.first_starts()
    machine = (
        usual if len(usual.program) == len(program) and not how else _Machine(program, made, how)
    )
    machine.meet(progress)
    if not how:
        return machine.follow(when, IGNORE, np.zeros((1, 1), np.int64), progress=progress)
    noted = np.zeros((len(usual.program), int(np.diff(made.base).max()) + 1), np.int64)
    usual.follow(when, RECORD, noted)
    return machine.follow(when, COMPARE, noted, like=classes, progress=progress)


def _check_horizon(made: Nodes, how: Disturbance) -> None:
    factor = 2 * max((factor for _, factor in how.stragglers), default=1.0)
    if float(made.run_ps.sum()) * factor > HORIZON_PS:
        raise ScheduleError("the kernels of an iteration together last longer than the horizon")


class _Machine:
    """A program laid out for evaluation."""

    def __init__(self, program: Program, made: Nodes, how: Disturbance):
        self.program = program
        self.nodes = made
        self.layout = layout(program)
        self.kernels = _kernels(program, made, self.layout, how)
        self.work = _work(made)
        groups, calls = self.layout.groups, self.layout.calls
        sizes = np.where(self.layout.wide, groups * calls, 0)
        self.meet_ps = np.zeros(int(sizes.sum()), np.int64)
        self.meet_at = np.cumsum(sizes) - sizes
        self.tape = phases_tape(made, self.layout.wide, self.layout.rows)

    def clocks(self, tape: Tape) -> Clocks:
        """Return clocks for a tape."""
        parts = int(np.diff(self.nodes.part_ptr).max())
        start = np.zeros((parts, self.block_ranks), np.int64)
        return Clocks(np.zeros(tape.size, np.int64), self.meet_ps, self.meet_at, start)

    @property
    def block_ranks(self) -> int:
        """Ranks of the largest block."""
        return int(np.diff(self.layout.low, axis=0).sum(axis=1).max())

    def first_starts(self) -> IntArray:
        """Earliest start of each node [ps], by which they are put in order."""
        when = np.full(len(self.nodes), HORIZON_PS, np.int64)
        clocks = self.clocks(self.tape)
        for low, high in pairwise(self.tape.bounds.tolist()):
            first_starts(self.work, self.tape, self.layout, self.kernels, clocks, when, low, high)
        return when

    def meet(self, progress: Progress | None) -> None:
        """Find when the groups of wide exchanges meet: all phases but the last."""
        bounds = self.tape.bounds[:-1].tolist()
        clocks = self.clocks(self.tape)
        stretch = max(1, self.layout.blocks * len(bounds) // CALLS)
        for phase, (low, high) in enumerate(pairwise(bounds)):
            for block in range(0, self.layout.blocks, stretch):
                blocks = (block, min(block + stretch, self.layout.blocks))
                advance(self.work, self.tape, self.layout, self.kernels, clocks, blocks, low, high)
                if progress:
                    done = phase * self.layout.blocks + blocks[1]
                    progress("clocks", done, (len(bounds) - 1) * self.layout.blocks)

    def follow(
        self,
        when: IntArray,
        mode: int,
        noted: IntArray,
        *,
        like: IntArray | None = None,
        progress: Progress | None = None,
    ) -> RankVector:
        """Go through all blocks, each from beginning to end, and sum up where time goes."""
        tape = timed_tape(self.nodes, when, self.layout.rows)
        clocks = self.clocks(tape)
        notes = self._notes(mode, noted, like)
        stretch = max(1, self.layout.blocks // CALLS)
        for block in range(0, self.layout.blocks, stretch):
            blocks = (block, min(block + stretch, self.layout.blocks))
            notes = self._follow(tape, clocks, notes, blocks)
            if progress:
                progress("breakdown", blocks[1], self.layout.blocks)
        return self._summed(notes)

    def _follow(self, tape: Tape, clocks: Clocks, notes: Notes, blocks: tuple[int, int]) -> Notes:
        """Follow blocks, with more room for what they remember when it was too little."""
        while True:
            follow(self.work, tape, self.layout, self.kernels, clocks, notes, *blocks)
            if not notes.cover.lost[0]:
                return notes
            rows, room = notes.cover.start.shape
            notes = notes._replace(cover=new_cover(rows, 4 * room))

    def _notes(self, mode: int, noted: IntArray, like: IntArray | None) -> Notes:
        """Nothing noted yet; when recording, each rank is of its own kind."""
        ranks, several = len(self.program), _several(self.nodes)
        if like is None:
            like = np.arange(ranks) if mode == RECORD else np.zeros(ranks, np.int64)
        return Notes(
            cover=new_cover(self.block_ranks * (1 + int(several.max())), ROOM),
            several=several,
            active=np.zeros((ranks, IDLE), np.int64),
            spent=np.zeros((ranks, IDLE + 1), np.int64),
            late=np.zeros(ranks, np.int64),
            until=np.zeros(ranks, np.int64),
            noted=noted,
            like=like[self.layout.order],
            mode=mode,
        )

    def _summed(self, notes: Notes) -> RankVector:
        """Sum up; what is idle after a rank's last op counts like what is idle before one."""
        total = int(notes.until.max())
        tail = total - notes.until
        late = notes.late
        if notes.mode == RECORD:
            notes.noted[notes.like, -1] = tail
        elif notes.mode == COMPARE:
            late = late + np.maximum(0, tail - notes.noted[notes.like, -1])
        order = self.layout.order
        count = self.program.count[order]
        columns = {f"{name}_ps": notes.spent[:, code] for code, name in enumerate(ORDER)}
        columns["bubble_ps"] = notes.spent[:, IDLE] + tail - late
        columns["straggler_ps"] = late
        frame = pd.DataFrame({"count": count, **columns})
        frame.index = pd.Index(self.program.rank[order], name="rank")
        talks = [code for code, name in enumerate(ORDER) if name.startswith("exposed")]
        hidden = (notes.active[:, talks] - notes.spent[:, talks]).sum(axis=1)
        hidden_s = float(np.average(hidden / PS_PER_S, weights=count))
        lengths = np.diff(self.nodes.base)
        ops = int((lengths * self.layout.rows).sum())
        parts = frame.sort_index()[["count", *(f"{part}_ps" for part in PARTS)]]
        return RankVector(total, ops, parts, hidden_s)


def _several(made: Nodes) -> IntArray:
    """Numbers from 1 on of categories that a rank has on more than one stream, else 0."""
    pairs = np.unique(np.stack([made.stage, made.category, made.stream], axis=1), axis=0)
    both, streams = np.unique(pairs[:, :2], axis=0, return_counts=True)
    found = np.zeros(IDLE, np.int64)
    more = np.unique(both[streams > 1, 1])
    more = more[more > 1]  # of the optimizer and of compute no overlap is asked for
    found[more] = np.arange(1, len(more) + 1)
    return found


def _work(made: Nodes) -> Work:
    total = np.concatenate([[0], np.cumsum(made.run_ps)])
    return Work(
        made.exchange, made.call, made.part_ptr, made.stage, made.category, made.first,
        made.run_ptr, made.run_op, made.run_ps, np.diff(total[made.run_ptr]), made.wait_ptr,
    )  # fmt: skip


def _kernels(program: Program, made: Nodes, where: Layout, how: Disturbance) -> Kernels:
    ranks = program.rank[where.order]
    longest = int(np.diff(made.base).max())
    op_key = np.arange(longest).astype(np.uint64) * GOLDEN
    return Kernels(how.keys(ranks), how.slowness(ranks), how.table, op_key, bool(how))
