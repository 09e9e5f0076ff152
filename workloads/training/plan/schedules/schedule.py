"""``PipelineSchedule``: what the simulator needs to know of a schedule, such as its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from topologies.arrays import IntArray

FORWARD, BACKWARD, WEIGHT = range(3)
"""Phases of a microbatch. Where a schedule splits the backward pass, ``BACKWARD`` computes the
gradients of inputs alone and ``WEIGHT`` the gradients of weights."""


class Passes(NamedTuple):
    """Passes of one stage in an iteration, in the order in which the stage runs them.

    Attributes
    ----------
    phase : int64 array (passes,)
        ``FORWARD``, ``BACKWARD`` or ``WEIGHT``.
    microbatch : int64 array (passes,)
    chunk : int64 array (passes,)
        Number of the chunk among those that the stage holds, from 0.
    """

    phase: IntArray
    microbatch: IntArray
    chunk: IntArray

    def __str__(self) -> str:
        """Passes as F0 B0 W0; a prime for each chunk after the first."""
        columns = (column.tolist() for column in self)
        return " ".join("FBW"[p] + str(m) + "'" * c for p, m, c in zip(*columns, strict=True))


def in_order(passes: Iterable[tuple[int, int, int]]) -> Passes:
    """Return the passes of a sequence of (phase, microbatch, chunk).

    Examples
    --------
    >>> print(in_order([(FORWARD, 0, 0), (BACKWARD, 0, 0)]))
    F0 B0
    """
    import numpy as np  # the command line lists the schedules without it

    return Passes(*np.array(list(passes), np.int64).reshape(-1, 3).T)


ANY_NUMBER = range(1, 2**31)  # chunks a stage of a schedule that allows any number
ONLY_ONE = range(1, 2)  # chunks a stage of a schedule that does not divide stages


@dataclass(frozen=True)
class PipelineSchedule:
    """A pipeline schedule: its names, and the order of every stage's passes.

    From ``passes`` follow the simulated iteration, the activations that a stage holds at once, and
    the estimate of the plan search.

    Attributes
    ----------
    name : str
        Name in a plan and on the command line.
    title : str
        Name in figures and tables.
    passes : function of (pp, stage, microbatches, chunks)
        The passes of one stage in order. Every stage must take each microbatch forward and then
        backward through each of its chunks once, and stages must not wait for one another in a
        circle.
    splits_weights : bool
        Whether gradients of weights have a pass of their own, ``WEIGHT``, apart from the backward
        pass.
    turns : bool
        Whether every second chunk runs from the last stage back to the first, so that the model
        leads to the last stage and back. Otherwise each chunk begins at the first stage.
    pairs_passes : bool
        Whether a forward pass and the backward pass that follows it through another chunk run side
        by side: while one communicates the other computes. Neither waits for its sends.
    chunks_allowed : range
        Numbers of chunks of the model that a stage may hold (``vpp`` of a plan).
    chunks_searched : tuple of int
        Numbers of chunks that the plan search tries.
    searched : bool
        Whether the plan search tries the schedule when none is stated.
    title_of_chunks : str
        Title where a stage has several chunks; ``title`` where it is empty.
    aliases : tuple of str
        Other names of the schedule in published measurements.
    torchtitan : str
        Name in torchtitan; empty where it has no such schedule.
    source : str
        Publication that describes the schedule.
    """

    name: str
    title: str
    passes: Callable[[int, int, int, int], Passes]
    splits_weights: bool = False
    turns: bool = False
    pairs_passes: bool = False
    chunks_allowed: range = ONLY_ONE
    chunks_searched: tuple[int, ...] = (1,)
    searched: bool = True
    title_of_chunks: str = ""
    aliases: tuple[str, ...] = ()
    torchtitan: str = ""
    source: str = ""

    def number(self, pp: int, stage: int, chunk: int) -> int:
        """Return the number in order of the model, from 0, of a stage's chunk.

        >>> def none(pp, stage, microbatches, chunks): ...
        >>> there_and_back = PipelineSchedule("v", "V", none, turns=True)
        >>> [[there_and_back.number(3, stage, chunk) for chunk in (0, 1)] for stage in range(3)]
        [[0, 5], [1, 4], [2, 3]]
        """
        return chunk * pp + (pp - 1 - stage if self.turns and chunk % 2 else stage)

    def stage(self, pp: int, number: int) -> int:
        """Return the stage that holds the chunk of this number in order of the model."""
        chunk, place = divmod(number, pp)
        return pp - 1 - place if self.turns and chunk % 2 else place

    def titled(self, chunks: int) -> str:
        """Return the title for stages of ``chunks`` chunks."""
        return self.title_of_chunks if chunks > 1 and self.title_of_chunks else self.title


# Microbatches that a stage holds at once.

REMEMBERED = 4096  # results of :func:`most_held` that are kept
COUNTED = 4096
"""Microbatches whose passes are counted one by one. A schedule soon repeats itself from round to
round of the pipeline, so the rounds beyond are extrapolated from the last two that are counted."""


def passes(
    schedule: PipelineSchedule, pp: int, stage: int, microbatches: int, chunks: int = 1
) -> Passes:
    """Return the passes of one stage, after checking that none is missing."""
    # Raises ValueError for a schedule that leaves out a pass, takes one twice, or takes a
    # microbatch backward before forward. This is a mistake in the schedule's code, not of the user.
    order = schedule.passes(pp, stage, microbatches, chunks)
    phases = 3 if schedule.splits_weights else 2
    # place[number] is where in the order each pass stands; -1 stays where one is missing.
    number = (order.phase * chunks + order.chunk) * microbatches + order.microbatch
    place = np.full(phases * chunks * microbatches, -1)
    if len(number) == len(place):
        place[number] = np.arange(len(number))
    by_phase = place.reshape(phases, -1)
    if (place < 0).any() or (np.diff(by_phase, axis=0) < 0).any():
        raise ValueError(
            f"pipeline schedule {schedule.name}: stage {stage} of {pp} does not take each of "
            f"{microbatches} microbatches through each of {chunks} chunks forward, then backward"
        )
    return order


@lru_cache(REMEMBERED)
def most_held(
    schedule: PipelineSchedule, pp: int, stage: int, microbatches: int, chunks: int = 1
) -> IntArray:
    """Count the microbatches of each chunk in flight at the worst moments, (moments, chunks).

    >>> from workloads.training.plan.schedules.registry import pipeline_schedule
    >>> [most_held(pipeline_schedule(name), 4, 1, 8).tolist() for name in ("1f1b", "gpipe")]
    [[[3]], [[8]]]
    """
    # A stage holds a microbatch's activations of a chunk from its forward pass through the chunk
    # until its last pass through it. There is a row for each moment at which no other moment holds
    # at least as many of every chunk; memory is worst at one of them, whatever a chunk's
    # activations weigh.
    rounds = -(-(microbatches - max(COUNTED, 4 * pp)) // pp)
    if rounds > 1:
        before, last = (
            most_held(schedule, pp, stage, microbatches - (rounds + more) * pp, chunks)
            for more in (1, 0)
        )
        if before.shape == last.shape:
            return last + rounds * (last - before)
    order = passes(schedule, pp, stage, microbatches, chunks)
    dropped = WEIGHT if schedule.splits_weights else BACKWARD
    change = (order.phase == FORWARD).astype(np.int64) - (order.phase == dropped)
    if chunks == 1:
        return np.full((1, 1), np.cumsum(change).max())
    of_chunk = order.chunk[:, None] == np.arange(chunks)
    in_flight = np.cumsum(change[:, None] * of_chunk, axis=0)
    # Before a forward pass no moment is among the worst: the next one exceeds it.
    full = np.append(change[1:] <= 0, True) & (change > 0)
    return _undominated(np.unique(in_flight[full], axis=0))


def _undominated(moments: IntArray) -> IntArray:
    """Leave out the moments at which no chunk holds more than at some other moment."""
    kept: list[IntArray] = []
    for moment in moments[np.argsort(-moments.sum(axis=1), kind="stable")]:
        if not any((other >= moment).all() for other in kept):
            kept.append(moment)
    return np.array(kept)
