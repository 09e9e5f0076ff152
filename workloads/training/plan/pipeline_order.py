"""Pipeline schedules: in which order a stage works on its microbatches and model chunks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.schedule.table import IntArray

FORWARD, BACKWARD, WEIGHT = range(3)
"""Phases of a microbatch: forward, backward, and where the backward pass is split the gradients of
weights (``BACKWARD`` is then that of inputs alone)."""


class Order(NamedTuple):
    """What a stage does, pass after pass.

    Attributes
    ----------
    phase : int64 array (passes,)
        ``FORWARD``, ``BACKWARD`` or ``WEIGHT``.
    microbatch, chunk : int64 array (passes,)
        Chunk of the model: of the stage's parts the how many-th.
    """

    phase: IntArray
    microbatch: IntArray
    chunk: IntArray

    def __str__(self) -> str:
        columns = (column.tolist() for column in self)
        return " ".join("FBW"[p] + str(m) + "'" * c for p, m, c in zip(*columns, strict=True))


def order(schedule: str, pp: int, stage: int, microbatches: int, vpp: int = 1) -> Order:
    """Order of the passes of one stage.

    Parameters
    ----------
    schedule : {"gpipe", "1f1b", "interleaved", "zero-bubble"}
        All forward passes first (arXiv 1811.06965); alternating after a warm-up of as many forward
        passes as there are stages behind this one (arXiv 2104.04473); the same with ``vpp`` chunks
        a stage (section 2.2 there); or ZB-H1, which lets gradients of weights fill the bubble with
        no more activations than 1F1B (arXiv 2401.10241, section 2.1).
    pp, stage, microbatches : int
    vpp : int
        Chunks of a stage; above 1 only for 1F1B.

    Examples
    --------
    >>> print(order("1f1b", 4, 2, 4))
    F0 F1 B0 F2 B1 F3 B2 B3
    >>> print(order("interleaved", 2, 1, 2, vpp=2))
    F0 F1 F0' B0' F1' B1' B0 B1
    >>> print(order("zero-bubble", 2, 1, 3))
    F0 B0 F1 B1 W0 F2 B2 W1 W2
    """
    total = microbatches * vpp
    warm_up = total if schedule == "gpipe" else min(_warm_up(pp, stage, microbatches, vpp), total)
    forward = _forward_order(pp, microbatches, vpp)
    number = np.arange(total)
    forward_at = np.where(number < warm_up, number, 2 * number - warm_up)
    steady = total - warm_up
    backward_at = np.where(number < steady, warm_up + 2 * number + 1, total + number)
    phase = np.repeat([FORWARD, BACKWARD], total)
    place = np.concatenate([forward_at, backward_at])
    microbatch = np.tile(forward[0], 2)
    chunk = np.concatenate([forward[1], vpp - 1 - forward[1]])
    sorted_by = np.argsort(place)
    made = Order(phase[sorted_by], microbatch[sorted_by], chunk[sorted_by])
    return _split(made, stage, microbatches) if schedule == "zero-bubble" else made


def _warm_up(pp: int, stage: int, microbatches: int, vpp: int) -> int:
    """Forward passes before the first backward one, beyond the one that goes with it."""
    behind = pp - stage - 1
    return behind if vpp == 1 else 2 * behind + (vpp - 1) * _group_sizes(pp, microbatches)[0]


def _group_sizes(pp: int, microbatches: int) -> tuple[int, int]:
    """Microbatches of the first group that goes through all chunks, and of every later one.

    A group is as large as the pipeline; what is left over goes with the first group, as a smaller
    one would make stages wait for one another.
    """
    return microbatches % pp + min(pp, microbatches // pp * pp), pp


def _forward_order(pp: int, microbatches: int, vpp: int) -> tuple[IntArray, IntArray]:
    """Microbatch and chunk of each forward pass: chunk after chunk for a group of microbatches.

    Backward passes go through the same list with the chunks reversed.
    """
    if vpp == 1:
        return np.arange(microbatches), np.zeros(microbatches, np.int64)
    first, later = _group_sizes(pp, microbatches)
    number = np.arange(microbatches * vpp)
    begun = np.maximum(0, 1 + (number - first * vpp) // (later * vpp))
    size = np.where(begun == 0, first, later)
    base = np.where(begun == 0, 0, first + (begun - 1) * later)
    within = number - base * vpp
    return base + within % size, within // size


def _split(whole: Order, stage: int, microbatches: int) -> Order:
    """Put gradients of weights after the backward pass ``stage`` microbatches on, or at the end.

    So the stage that ends first has the most of them left to fill what it would wait.
    """
    late = min(stage, microbatches)
    backward_at = np.flatnonzero(whole.phase == BACKWARD).astype(float)
    number = np.arange(microbatches)
    due = np.minimum(number + late, microbatches - 1)
    place = np.concatenate([np.arange(len(whole.phase)), backward_at[due] + 0.5])
    sorted_by = np.argsort(place, kind="stable")
    columns = (
        np.concatenate([whole.phase, np.full(microbatches, WEIGHT)]),
        np.concatenate([whole.microbatch, number]),
        np.concatenate([whole.chunk, np.zeros(microbatches, np.int64)]),
    )
    return Order(*(column[sorted_by] for column in columns))


def bubble_fraction(pp: int, microbatches: int, vpp: int = 1) -> float:
    """Idle over working time of GPipe and 1F1B with equal stages: (p − 1) / (v m).

    arXiv 2104.04473, sections 2.2.1 and 2.2.2.

    Examples
    --------
    >>> bubble_fraction(4, 12), bubble_fraction(4, 12, vpp=2)
    (0.25, 0.125)
    """
    return (pp - 1) / (vpp * microbatches)


def zero_bubble_s(pp: int, forward_s: float, backward_s: float, weight_s: float) -> float:
    """Idle time of ZB-H1 with equal stages [s]: (p − 1) (F + B − W) (arXiv 2401.10241, table 2)."""
    return (pp - 1) * (forward_s + backward_s - weight_s)
