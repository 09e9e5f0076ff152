"""DualPipe, cut in half: chunks lead to the last stage and back, and passes run side by side.

DualPipe lets microbatches enter a pipeline of 2 p ranks from either end (arXiv 2412.19437, section
3.2.1): ranks k and 2 p − 1 − k mirror each other. One half is a whole pipeline there and back
(DualPipeV, github deepseek-ai/DualPipe), the other another replica of it.
"""

from __future__ import annotations

from collections import deque

from workloads.training.plan.schedules.one_f_one_b import one_f_one_b
from workloads.training.plan.schedules.schedule import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Passes,
    PipelineSchedule,
    in_order,
)

THERE, BACK = range(2)
"""Chunks of a stage: one on the way to the last stage, one on the way back to the first."""


def dualpipe(pp: int, stage: int, microbatches: int, chunks: int) -> Passes:
    """Return the passes of a stage, in the eight steps of the published code.

    With fewer than 2 p microbatches there is no steady state, and all of them go forward before any
    goes backward. The gradients of weights follow those of inputs at once, except at the end, where
    they are postponed to fill what would be bubble.

    >>> print(dualpipe(2, 1, 4, 2))
    F0 F0' F1 F1' F2 B0' W0' F2' B0 W0 F3 B1' W1' F3' B1 W1 B2' W2' B2 W2 B3' B3 W3' W3
    """
    if chunks == 1:  # a single stage
        return _split(one_f_one_b(pp, stage, microbatches, chunks))
    steps = _Steps()
    if microbatches < 2 * pp:
        steps.forward(THERE, microbatches)
        steps.forward(BACK, microbatches)
        steps.backward(BACK, microbatches)
        steps.backward(THERE, microbatches)
        return in_order(steps.passes)
    behind, ahead = pp - 1 - stage, stage + 1
    # Steps 1 to 3: the pipeline fills, and the first microbatches come back.
    steps.forward(THERE, 2 * behind)
    for _ in range(ahead):
        steps.forward(THERE)
        steps.forward(BACK)
    for _ in range(behind):
        steps.backward(BACK)
        steps.forward(BACK)
    # Step 4, the steady state.
    for _ in range(microbatches - 2 * pp + ahead):
        steps.forward(THERE)
        steps.backward(BACK)
        steps.forward(BACK)
        steps.backward(THERE)
    # Steps 5 to 8: the pipeline drains, and postponed gradients of weights fill its bubbles.
    for _ in range(behind):
        steps.backward(BACK)
        steps.forward(BACK)
        steps.backward(THERE)
    for number in range(2 * ahead):
        steps.backward((BACK, THERE)[number % 2], later=number >= ahead)
    for _ in range(behind):
        steps.weights()
        steps.backward(THERE, later=True)
    steps.weights(ahead)
    return in_order(steps.passes)


class _Steps:
    """Recorder of passes that numbers the microbatches of each phase and chunk as they come."""

    def __init__(self) -> None:
        self.passes: list[tuple[int, int, int]] = []
        self._next = {(phase, chunk): 0 for phase in (FORWARD, BACKWARD) for chunk in (THERE, BACK)}
        self._postponed: deque[tuple[int, int]] = deque()  # microbatch and chunk

    def _take(self, phase: int, chunk: int) -> int:
        number = self._next[phase, chunk]
        self._next[phase, chunk] += 1
        self.passes.append((phase, number, chunk))
        return number

    def forward(self, chunk: int, count: int = 1) -> None:
        """Record forward passes of the chunk's next microbatches."""
        for _ in range(count):
            self._take(FORWARD, chunk)

    def backward(self, chunk: int, count: int = 1, *, later: bool = False) -> None:
        """Record backward passes, and their gradients of weights unless these come ``later``."""
        for _ in range(count):
            self._postponed.append((self._take(BACKWARD, chunk), chunk))
            if not later:
                self.weights()

    def weights(self, count: int = 1) -> None:
        """Record the gradients of weights that have waited longest."""
        for _ in range(count):
            self.passes.append((WEIGHT, *self._postponed.popleft()))


def _split(whole: Passes) -> Passes:
    """Return the same passes with gradients of weights after each backward pass."""
    split: list[tuple[int, int, int]] = []
    for phase, microbatch, chunk in zip(*(column.tolist() for column in whole), strict=True):
        split.append((phase, microbatch, chunk))
        if phase == BACKWARD:
            split.append((WEIGHT, microbatch, chunk))
    return in_order(split)


DUALPIPE = PipelineSchedule(
    name="dualpipe",
    title="DualPipe",
    passes=dualpipe,
    splits_weights=True,
    turns=True,
    pairs_passes=True,
    chunks_allowed=range(2, 3),
    chunks_searched=(2,),
    searched=False,  # few frameworks run it
    aliases=("dualpipev", "dualpipe-v"),
    source="arXiv 2412.19437, section 3.2.1; github deepseek-ai/DualPipe",
)
