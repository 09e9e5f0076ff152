"""ZB-H1: gradients of weights fill the bubble of 1F1B, with no more activations held."""

from __future__ import annotations

from workloads.training.plan.schedules.one_f_one_b import one_f_one_b
from workloads.training.plan.schedules.passes import BACKWARD, WEIGHT, Passes
from workloads.training.plan.schedules.schedule import PipelineSchedule


def zero_bubble(pp: int, stage: int, microbatches: int, chunks: int) -> Passes:
    """Return the passes of ZB-H1 (arXiv 2401.10241, section 2.1).

    The gradients of a microbatch's weights follow the backward pass of the microbatch ``stage``
    places later, or come at the end. So the last stage, which would wait longest for the others,
    has the most of them left to fill its bubble.

    >>> print(zero_bubble(2, 1, 3, 1))
    F0 B0 F1 B1 W0 F2 B2 W1 W2
    """
    import numpy as np  # the command line lists the schedules without it

    whole = one_f_one_b(pp, stage, microbatches, chunks)
    number = np.arange(microbatches)
    backward_at = np.flatnonzero(whole.phase == BACKWARD).astype(float)
    due = np.minimum(number + min(stage, microbatches), microbatches - 1)
    # Half a place after the backward pass at which they are due; equal places keep their order.
    place = np.concatenate([np.arange(len(whole.phase)), backward_at[due] + 0.5])
    order = np.argsort(place, kind="stable")
    weights = Passes(np.full(microbatches, WEIGHT), number, np.zeros(microbatches, np.int64))
    columns = zip(whole, weights, strict=True)
    return Passes(*(np.concatenate(both)[order] for both in columns))


ZERO_BUBBLE = PipelineSchedule(
    name="zero-bubble",
    title="zero-bubble",
    passes=zero_bubble,
    splits_weights=True,
    aliases=("zb", "zb-h1", "zbh1", "zb1p"),
    source="arXiv 2401.10241, section 2.1",
)
