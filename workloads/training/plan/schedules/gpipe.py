"""GPipe: all forward passes first, then all backward passes."""

from __future__ import annotations

from workloads.training.plan.schedules.one_f_one_b import alternating
from workloads.training.plan.schedules.passes import Passes
from workloads.training.plan.schedules.schedule import PipelineSchedule


def gpipe(pp: int, stage: int, microbatches: int, chunks: int) -> Passes:
    """Return the passes of a stage, which are the same for all stages (arXiv 1811.06965).

    >>> print(gpipe(4, 2, 3, 1))
    F0 F1 F2 B0 B1 B2
    """
    return alternating(pp, microbatches, chunks, warm_up=microbatches * chunks)


GPIPE = PipelineSchedule(
    name="gpipe",
    title="gpipe",
    passes=gpipe,
    searched=False,  # it has the bubble of 1F1B and holds more activations
    aliases=("afab",),
    source="arXiv 1811.06965",
)
