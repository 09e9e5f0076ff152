"""Checked passes of a schedule, and the microbatches in flight that follow from them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from topologies.support.arrays import IntArray
from workloads.training.plan.schedules.schedule import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Passes,
    PipelineSchedule,
)

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
    """Count the microbatches of each chunk in flight at the worst moments, (moments, chunks)."""
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
