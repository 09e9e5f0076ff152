"""When each op of a schedule was ready, started and ended: what an engine gives back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule import BoolArray, IntArray

NEVER = -1
"""Stands in a column of times where the thing did not happen."""

WAITING, READY, RUNNING, DONE, FAILED, DOOMED = range(6)
"""Status of an op when the run was over.

``WAITING`` for its edges, ``READY`` but never started, ``RUNNING`` when the run stopped or its
rate was zero, ``DONE``, ``FAILED`` with its resource, ``DOOMED`` because an op before it failed.
"""


class HorizonError(ValueError):
    """A run that would pass 2⁶² ps (rule 6)."""


@dataclass(frozen=True, eq=False)
class Attempts:
    """Runs of ops that were lost with their resource (rule 8), in order of their end.

    Attributes
    ----------
    op : int32 array (attempts,)
    start_ps, end_ps : int64 array (attempts,)
        From its start to the instant at which it was lost [ps].
    """

    op: IntArray
    start_ps: IntArray
    end_ps: IntArray

    def __len__(self) -> int:
        return len(self.op)

    @classmethod
    def none(cls) -> Attempts:
        """Return an empty table."""
        return cls(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class Times:
    """The outcome of a run, one element an op.

    Attributes
    ----------
    ready_ps, start_ps, end_ps : int64 array (ops,)
        -1 where it never happened [ps]. An op that was lost and restarted keeps its first ready
        time and has the start of its last attempt.
    status : uint8 array (ops,)
        ``WAITING``, ``READY``, ``RUNNING``, ``DONE``, ``FAILED`` or ``DOOMED``.
    attempts : Attempts
        Runs that were lost.
    dead : int32 array
        Numbers of the resources that were dead when the run was over.
    stopped_ps : int or None
        Instant at which ``until_ps`` or ``until_ops`` cut the run short, else None [ps].
    """

    ready_ps: IntArray
    start_ps: IntArray
    end_ps: IntArray
    status: IntArray
    attempts: Attempts
    dead: IntArray
    stopped_ps: int | None = None

    def __len__(self) -> int:
        return len(self.status)

    @property
    def total_ps(self) -> int:
        """Latest end of any op [ps], 0 when none ended."""
        return max(0, int(self.end_ps.max(initial=0)))

    @property
    def blocked(self) -> BoolArray:
        """Ops left over although nothing stopped the run and no fault failed them, (ops,)."""
        if self.stopped_ps is not None:
            return np.zeros(len(self), np.bool_)
        left: BoolArray = self.status < DONE
        return left
