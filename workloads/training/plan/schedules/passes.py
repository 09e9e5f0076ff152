"""The passes of a pipeline stage: each takes a microbatch through a chunk in one phase."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
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
