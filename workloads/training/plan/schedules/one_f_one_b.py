"""1F1B and its interleaved form: forward and backward passes alternate after a warm-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.training.plan.schedules.schedule import (
    ANY_NUMBER,
    BACKWARD,
    FORWARD,
    WEIGHT,
    Passes,
    PipelineSchedule,
)

if TYPE_CHECKING:
    from topologies.support.arrays import IntArray


def one_f_one_b(pp: int, stage: int, microbatches: int, chunks: int) -> Passes:
    """Return passes that alternate after as many forward passes as there are later stages.

    With several chunks a stage this is the interleaved schedule (arXiv 2104.04473, section 2.2).

    >>> print(one_f_one_b(4, 2, 4, 1))
    F0 F1 B0 F2 B1 F3 B2 B3
    >>> print(one_f_one_b(2, 1, 2, 2))
    F0 F1 F0' B0' F1' B1' B0 B1
    """
    return alternating(pp, microbatches, chunks, _warm_up(pp, stage, microbatches, chunks))


def _warm_up(pp: int, stage: int, microbatches: int, chunks: int) -> int:
    """Forward passes of a stage before its first backward pass."""
    behind = pp - stage - 1
    first_group, _ = _group_sizes(pp, microbatches)
    return behind if chunks == 1 else 2 * behind + (chunks - 1) * first_group


def alternating(pp: int, microbatches: int, chunks: int, warm_up: int) -> Passes:
    """Return passes that alternate after a warm-up of ``warm_up`` forward passes."""
    import numpy as np  # the command line lists the schedules without it

    total = microbatches * chunks
    warm_up = min(warm_up, total)
    forward = _forward_order(pp, microbatches, chunks)
    number = np.arange(total)
    # Places of the forward and the backward passes in the order of all of them.
    forward_at = np.where(number < warm_up, number, 2 * number - warm_up)
    steady = total - warm_up
    backward_at = np.where(number < steady, warm_up + 2 * number + 1, total + number)
    phase = np.repeat([FORWARD, BACKWARD], total)
    microbatch = np.tile(forward[0], 2)
    chunk = np.concatenate([forward[1], chunks - 1 - forward[1]])
    order = np.argsort(np.concatenate([forward_at, backward_at]))
    return Passes(phase[order], microbatch[order], chunk[order])


def _group_sizes(pp: int, microbatches: int) -> tuple[int, int]:
    """Sizes of the first group of microbatches through all chunks, and of later groups."""
    # A group has as many microbatches as the pipeline has stages. The remainder joins the first
    # group, as a smaller group of its own would make stages wait for each other.
    return microbatches % pp + min(pp, microbatches // pp * pp), pp


def _forward_order(pp: int, microbatches: int, chunks: int) -> tuple[IntArray, IntArray]:
    """Microbatch and chunk of each forward pass, int64 (passes,) each."""
    # A group of microbatches goes through one chunk after the other before the next group begins.
    # Backward passes take the same order with the chunks reversed.
    import numpy as np

    if chunks == 1:
        return np.arange(microbatches), np.zeros(microbatches, np.int64)
    first, later = _group_sizes(pp, microbatches)
    number = np.arange(microbatches * chunks)
    group = np.maximum(0, 1 + (number - first * chunks) // (later * chunks))
    size = np.where(group == 0, first, later)
    base = np.where(group == 0, 0, first + (group - 1) * later)  # first microbatch of the group
    within = number - base * chunks
    return base + within % size, within // size


ONE_F_ONE_B = PipelineSchedule(
    name="1f1b",
    title="1F1B",
    passes=one_f_one_b,
    chunks_allowed=ANY_NUMBER,
    title_of_chunks="interleaved",
    aliases=("dapple", "pipedream-flush", "non-interleaved"),
    torchtitan="1F1B",
    source="arXiv 2104.04473, section 2.1",
)

INTERLEAVED = PipelineSchedule(
    name="interleaved",
    title="interleaved",
    passes=one_f_one_b,
    chunks_allowed=ANY_NUMBER,
    chunks_searched=(2, 3, 4, 8),
    aliases=("interleaved-1f1b", "1f1b-interleaved", "vpp"),
    torchtitan="Interleaved1F1B",
    source="arXiv 2104.04473, section 2.2",
)


# Combined 1F1B: a forward pass runs beside the backward pass that follows it, so that each computes
# while the other exchanges tokens of experts (``overlap_moe_expert_parallel_comm``).


def combined(pp: int, stage: int, microbatches: int, chunks: int) -> Passes:
    """Return passes of 1F1B after one forward pass more, so that the two of a pair are independent.

    >>> print(combined(1, 0, 3, 1))
    F0 F1 B0 F2 B1 B2
    """
    return alternating(pp, microbatches, chunks, _warm_up(pp, stage, microbatches, chunks) + 1)


COMBINED = PipelineSchedule(
    name="combined-1f1b",
    title="combined 1F1B",
    passes=combined,
    pairs_passes=True,
    chunks_allowed=ANY_NUMBER[1:],
    chunks_searched=(2,),
    searched=False,  # few frameworks run it
    aliases=("combined",),
    source="github NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/combined_1f1b.py",
)


# GPipe: all forward passes first, then all backward passes.


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
    torchtitan="GPipe",
    source="arXiv 1811.06965",
)


# ZB-H1: gradients of weights fill the bubble of 1F1B, with no more activations held.


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
