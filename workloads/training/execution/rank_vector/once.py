"""Evaluation of a disturbed program in which most instructions are carried out once.

When ranks meet in wide exchanges is known only after all that comes before, so the clocks of all
blocks are needed first and their notes come later. What starts before anything waits for a late
meeting is carried out with its notes at once. The state of every block is then kept; from there
the clocks go on phase by phase, and once all meetings are known, the notes go on as well.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from topologies.arrays import IntArray
from workloads.training.execution.rank_vector.cover import COMPARE, Cover, Usual
from workloads.training.execution.rank_vector.machine import (
    Counter,
    Followed,
    Machine,
    State,
    follow,
    follow_blocks,
    go_through,
    meet,
    nothing_followed,
    telling,
)
from workloads.training.execution.rank_vector.over_blocks import Progress, over_blocks
from workloads.training.execution.rank_vector.tape import Cut, cut_tapes


def compared(
    machine: Machine, order: IntArray, usual: Usual, progress: Progress | None = None
) -> Followed:
    """Find where the time of all ranks goes, and how late they are.

    Parameters
    ----------
    machine : Machine
    order : int64 array (nodes,)
        Nodes in order of start without disturbance.
    usual : Usual
        Idle times without disturbance.
    progress : function of (str, int, int), optional
    """
    cut = cut_tapes(machine.nodes, machine.layout.wide, order, machine.layout.widest)
    if cut is None:
        meet(machine, progress)
        return follow(machine, COMPARE, usual, progress)
    return _Passes(machine, cut, usual, progress).carried_out()


class _Passes:
    """Passes over the blocks before and behind a cut."""

    def __init__(self, machine: Machine, cut: Cut, usual: Usual, progress: Progress | None):
        self.machine = machine
        self.cut = cut
        self.followed = nothing_followed(machine)
        self.notes = machine.notes(COMPARE, usual, self.followed)
        self.covers: list[Cover] = [self.notes.cover] * machine.layout.blocks
        blocks = machine.layout.blocks
        self.early = list(pairwise(machine.tape.bounds.tolist()))[: cut.phases]
        self.late = list(pairwise(cut.rest.bounds.tolist()))[:-1]
        clocks = (len(self.early) + len(self.late)) * blocks
        self.clocks = Counter(clocks, telling(progress, "clocks"))
        self.breakdown = Counter(2 * blocks, telling(progress, "breakdown"))

    def carried_out(self) -> Followed:
        """Carry out all passes."""
        machine, cut = self.machine, self.cut
        blocks = machine.layout.blocks
        end = np.zeros(machine.tape.size * blocks if self.early else 0, np.int64)
        go_through(machine, machine.tape, self.early, end, self.clocks)
        held = np.zeros(cut.timed.size * blocks, np.int64)
        clocks = [machine.clocks(held, cut.timed.size) for _ in range(machine.threads)]
        states = [State(its, self.notes) for its in clocks]
        over_blocks(blocks, states, self._begin, self.breakdown.more)
        go_through(machine, cut.rest, self.late, held.copy(), self.clocks)
        over_blocks(blocks, states, self._go_on, self.breakdown.more)
        return self.followed

    def _begin(self, state: State, blocks: tuple[int, int]) -> None:
        """Carry out what comes before the cut, with more room where it is needed."""
        for block in range(*blocks):
            room = self.notes.cover.gap_start.shape[0]
            while True:
                cover = self.machine.cover(room)
                self._carry_out(state, block, cover, (0, self.cut.at))
                if not cover.lost[0]:
                    break
                room *= 4
            self.covers[block] = cover

    def _go_on(self, state: State, blocks: tuple[int, int]) -> None:
        """Carry out what comes behind the cut, or all where that needs more room."""
        for block in range(*blocks):
            cover = self.covers[block]
            self._carry_out(state, block, cover, (self.cut.at, len(self.cut.timed.node)))
            if cover.lost[0]:
                cover.lost[0] = 0
                room = 4 * cover.gap_start.shape[0]
                state.notes = self.notes._replace(cover=self.machine.cover(room))
                follow_blocks(self.machine, self.cut.timed, state, (block, block + 1))

    def _carry_out(
        self, state: State, block: int, cover: Cover, instructions: tuple[int, int]
    ) -> None:
        state.notes = self.notes._replace(cover=cover)
        self.machine.carry_out(self.cut.timed, instructions, state, (block, block + 1))
