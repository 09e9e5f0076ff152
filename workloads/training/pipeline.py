"""Pipeline schedules: in which order a stage works on its microbatches."""

from __future__ import annotations

import numpy as np

from cluster_sim.schedule import BoolArray, IntArray


def order(schedule: str, pp: int, stage: int, microbatches: int) -> tuple[BoolArray, IntArray]:
    """Order of the forward and backward passes of one stage.

    Parameters
    ----------
    schedule : {"gpipe", "1f1b"}
        All forward passes first (arXiv 1811.06965), or alternating after a warm-up of as many
        forward passes as there are stages behind this one (arXiv 2104.04473).
    pp, stage, microbatches : int

    Returns
    -------
    backward : bool array (2 · microbatches,)
    microbatch : int64 array (2 · microbatches,)

    Examples
    --------
    >>> backward, microbatch = order("1f1b", 4, 2, 4)
    >>> " ".join("FB"[int(b)] + str(m) for b, m in zip(backward, microbatch, strict=True))
    'F0 F1 B0 F2 B1 F3 B2 B3'
    """
    number = np.arange(microbatches)
    warm_up = microbatches if schedule == "gpipe" else min(pp - stage - 1, microbatches)
    forward_at = np.where(number < warm_up, number, 2 * number - warm_up)
    steady = microbatches - warm_up
    backward_at = np.where(number < steady, warm_up + 2 * number + 1, microbatches + number)
    backward = np.zeros(2 * microbatches, np.bool_)
    microbatch = np.empty(2 * microbatches, np.int64)
    backward[backward_at] = True
    microbatch[forward_at] = number
    microbatch[backward_at] = number
    return backward, microbatch


def bubble_fraction(pp: int, microbatches: int) -> float:
    """Idle over working time of GPipe and 1F1B with equal stages: (p − 1) / m (arXiv 2104.04473).

    Examples
    --------
    >>> bubble_fraction(4, 12)
    0.25
    """
    return (pp - 1) / microbatches
