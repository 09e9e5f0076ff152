"""Evaluation of a disturbed program, whose waiting is compared with the undisturbed one's.

The time at which ranks meet in a wide exchange is known only after the clocks of all blocks are
computed up to it, so that as a rule every instruction runs twice: once for the clocks, and once
more, block by block, to note where time goes. Instructions that no late meeting can delay run only
once, with their notes. The state of every block is then kept; from there the clocks go on phase by
phase, and once all meetings are known, the notes go on as well.
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
    empty_breakdown,
    follow,
    follow_blocks,
    go_through,
    meet,
    reporter,
)
from workloads.training.execution.rank_vector.over_blocks import Progress, over_blocks
from workloads.training.execution.rank_vector.tape import Cut, cut_tapes


def compare(
    machine: Machine, order: IntArray, usual: Usual, progress: Progress | None = None
) -> Followed:
    """Find where the time of all ranks goes, and how much longer they wait than undisturbed.

    ``order`` (nodes,): nodes in order of start without disturbance.
    """
    cut = cut_tapes(machine.nodes, machine.layout.wide, order, machine.layout.widest)
    if cut is None:
        meet(machine, progress)
        return follow(machine, COMPARE, usual, progress)
    return _Passes(machine, cut, usual, progress).run()


class _Passes:
    """Passes over the blocks before and after a cut."""

    def __init__(self, machine: Machine, cut: Cut, usual: Usual, progress: Progress | None):
        self.machine = machine
        self.cut = cut
        self.followed = empty_breakdown(machine)
        self.notes = machine.notes(COMPARE, usual, self.followed)
        self.covers: list[Cover] = [self.notes.cover] * machine.layout.blocks
        blocks = machine.layout.blocks
        self.early = list(pairwise(machine.tape.bounds.tolist()))[: cut.phases]
        self.late = list(pairwise(cut.rest.bounds.tolist()))[:-1]
        clocks = (len(self.early) + len(self.late)) * blocks
        self.clocks = Counter(clocks, reporter(progress, "clocks"))
        self.breakdown = Counter(2 * blocks, reporter(progress, "breakdown"))

    def run(self) -> Followed:
        """Run all passes, and return where the time goes."""
        machine, cut = self.machine, self.cut
        blocks = machine.layout.blocks
        # Meetings that instructions before the cut wait for.
        end = np.zeros(machine.tape.size * blocks if self.early else 0, np.int64)
        go_through(machine, machine.tape, self.early, end, self.clocks)
        # Clocks and notes up to the cut.
        cut_end = np.zeros(cut.timed.size * blocks, np.int64)
        clocks = [machine.clocks(cut_end, cut.timed.size) for _ in range(machine.threads)]
        states = [State(of_thread, self.notes) for of_thread in clocks]
        over_blocks(blocks, states, self._begin, self.breakdown.more)
        # Clocks after the cut, on a copy: the notes go on from the clocks at the cut.
        go_through(machine, cut.rest, self.late, cut_end.copy(), self.clocks)
        over_blocks(blocks, states, self._go_on, self.breakdown.more)
        return self.followed

    def _begin(self, state: State, blocks: tuple[int, int]) -> None:
        """Run the instructions before the cut, again with more room if a cover lost an interval."""
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
        """Run the instructions after the cut, or all again if a cover lost an interval."""
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
