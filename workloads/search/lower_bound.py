"""A lower bound of the estimated time of a pipeline, without a walk through its passes.

The engine of a stage runs the stage's passes one after the other. It cannot begin before the first
microbatch has come forward through the chunks before the stage's, and after its last backward pass
that microbatch must go back through these chunks. Transfers, exchanges of replicas and updates only
add to this time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray, IntArray
from workloads.training.plan.schedules import BACKWARD, FORWARD, WEIGHT

ROUNDING = 1e-9
"""Largest relative difference by which bound and walk may err as they add times in another order.
Each adds some thousands of times, every one with an error of at most 2⁻⁵³."""


class Work(NamedTuple):
    """Passes of a pipeline, as far as its lower bound depends on them."""

    number: IntArray  # (stages, chunks of a stage): number of each stage's chunks in the model
    # layers, sparse: (chunks,): layers of each chunk of the model, and those with experts among
    # them
    layers: IntArray
    sparse: IntArray
    # (3, 2): time of one layer by phase and kind [s]; 0 for gradients of weights where the schedule
    # does not split them from backward passes
    layer_s: FloatArray
    # (2, 3): further time of the first and the last chunk, by phase [s]; 0 for the same passes
    ends_s: FloatArray
    microbatches: int


def least_s(work: Work) -> float:
    """Return a lower bound of the time that a walk through the pipeline takes [s].

    Backward passes of a microbatch follow its forward passes, so all forward passes of a stage are
    over at its last backward pass. Gradients of weights may run while that microbatch goes back.
    """
    dense, sparse = work.layers - work.sparse, work.sparse
    pass_s = dense * work.layer_s[:, :1] + sparse * work.layer_s[:, 1:]
    pass_s[:, 0] += work.ends_s[0]
    pass_s[:, -1] += work.ends_s[1]
    before_s = np.cumsum(pass_s, axis=1) - pass_s
    ahead_s = before_s[FORWARD][work.number].min(axis=1)
    behind_s = before_s[BACKWARD][work.number].min(axis=1)
    passes_s = pass_s[:, work.number].sum(axis=2) * work.microbatches
    busy_s = passes_s[FORWARD] + passes_s[BACKWARD]
    ends_s = ahead_s + busy_s + np.maximum(passes_s[WEIGHT], behind_s)
    return float(ends_s.max()) * (1 - ROUNDING)
