"""``PipelineSchedule``: what the simulator needs to know of a schedule, such as its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from topologies.support.arrays import IntArray

FORWARD, BACKWARD, WEIGHT = range(3)
"""Phases of a microbatch. Where a schedule splits the backward pass, ``BACKWARD`` computes the
gradients of inputs alone and ``WEIGHT`` the gradients of weights."""


class Passes(NamedTuple):
    """Passes of one stage in an iteration, in the order in which the stage runs them."""

    phase: IntArray  # (passes,): ``FORWARD``, ``BACKWARD`` or ``WEIGHT``
    microbatch: IntArray  # (passes,)
    chunk: IntArray  # (passes,): number of the chunk among those that the stage holds, from 0

    def __str__(self) -> str:
        """Passes as F0 B0 W0; a prime for each chunk after the first."""
        columns = (column.tolist() for column in self)
        return " ".join("FBW"[p] + str(m) + "'" * c for p, m, c in zip(*columns, strict=True))


def in_order(passes: Iterable[tuple[int, int, int]]) -> Passes:
    """Return the passes of a sequence of (phase, microbatch, chunk)."""
    import numpy as np  # the command line lists the schedules without it

    return Passes(*np.array(list(passes), np.int64).reshape(-1, 3).T)


ANY_NUMBER = range(1, 2**31)  # chunks a stage of a schedule that allows any number
ONLY_ONE = range(1, 2)  # chunks a stage of a schedule that does not divide stages


@dataclass(frozen=True)
class PipelineSchedule:
    """A pipeline schedule: its names, and the order of passes from which all else follows."""

    name: str  # name in a plan and on the command line
    title: str  # name in figures and tables
    # Function of (pp, stage, microbatches, chunks): the passes of one stage in order. Every stage
    # must take each microbatch forward and then backward through each of its chunks once, and
    # stages must not wait for one another in a circle.
    passes: Callable[[int, int, int, int], Passes]
    # Whether gradients of weights have a pass of their own, ``WEIGHT``, apart from the backward one
    splits_weights: bool = False
    # Whether every second chunk runs from the last stage back to the first, so that the model leads
    # to the last stage and back; otherwise each chunk begins at the first stage
    turns: bool = False
    # Whether a forward pass and the backward pass that follows it, of another microbatch or chunk,
    # run side by side: while one communicates the other computes. Neither waits for its sends.
    pairs_passes: bool = False
    chunks_allowed: range = ONLY_ONE  # numbers of chunks that a stage may hold (``vpp`` of a plan)
    chunks_searched: tuple[int, ...] = (1,)  # numbers of chunks that the plan search tries
    searched: bool = True  # whether the plan search tries the schedule when none is stated
    title_of_chunks: str = ""  # title where a stage has several chunks, if it is another
    aliases: tuple[str, ...] = ()  # other names of the schedule in published measurements
    torchtitan: str = ""  # name in torchtitan; empty where it has no such schedule
    source: str = ""  # publication that describes the schedule

    def number(self, pp: int, stage: int, chunk: int) -> int:
        """Return the number in order of the model, from 0, of a stage's chunk."""
        return chunk * pp + (pp - 1 - stage if self.turns and chunk % 2 else stage)

    def stage(self, pp: int, number: int) -> int:
        """Return the stage that holds the chunk of this number in order of the model."""
        chunk, place = divmod(number, pp)
        return pp - 1 - place if self.turns and chunk % 2 else place

    def titled(self, chunks: int) -> str:
        """Return the title for stages of ``chunks`` chunks."""
        return self.title_of_chunks if chunks > 1 and self.title_of_chunks else self.title
