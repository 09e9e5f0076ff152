"""The passes of a pipeline stage: which microbatch it takes through which chunk, and when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from topologies.arrays import IntArray

FORWARD, BACKWARD, WEIGHT = range(3)
"""Phases of a microbatch: forward, backward, and, where the backward pass is split, the gradients
of weights (``BACKWARD`` is then the gradients of inputs alone)."""


class Passes(NamedTuple):
    """Everything that one stage does in an iteration, pass after pass.

    Attributes
    ----------
    phase : int64 array (passes,)
        ``FORWARD``, ``BACKWARD`` or ``WEIGHT``.
    microbatch : int64 array (passes,)
    chunk : int64 array (passes,)
        Which of the stage's own chunks of the model, from 0.
    """

    phase: IntArray
    microbatch: IntArray
    chunk: IntArray

    def __str__(self) -> str:
        columns = (column.tolist() for column in self)
        return " ".join("FBW"[p] + str(m) + "'" * c for p, m, c in zip(*columns, strict=True))


def in_order(passes: Iterable[tuple[int, int, int]]) -> Passes:
    """Return passes that are given one by one as (phase, microbatch, chunk).

    Examples
    --------
    >>> print(in_order([(FORWARD, 0, 0), (BACKWARD, 0, 0)]))
    F0 B0
    """
    import numpy as np  # the command line lists the schedules without it

    return Passes(*np.array(list(passes), np.int64).reshape(-1, 3).T)
