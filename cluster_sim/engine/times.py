"""Times of the ops of a schedule (ready, start and end), which an engine returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.schedule.table import HORIZON_PS, BoolArray, IntArray

NEVER = -1  # entry of a column of times for an event that never happened

WAITING, READY, RUNNING, DONE, FAILED, DOOMED = range(6)
STATUSES = ("waiting", "ready", "running", "done", "failed", "doomed")
"""Status of an op when the run was over.

``WAITING`` for its edges; ``READY`` but never started; ``RUNNING`` when the run stopped, or at a
rate of zero; ``DONE``; ``FAILED`` with its resource; ``DOOMED`` because an op before it failed.
"""


UNKNOWN_PS = HORIZON_PS + 1
"""Entry, inside the engines, for the end of a flow in flight, which depends on later rates."""


class HorizonError(ValueError):
    """Error for a run that would pass 2⁶² ps (rule 6)."""

    @classmethod
    def of(cls, op: int) -> HorizonError:
        """Return the error for an op that would end, or be ready, past the horizon."""
        return cls(
            f"op {op} would end or be ready after 2**62 ps, which is the horizon of a run "
            f"(53 days). Simulate fewer iterations, or shorter ones."
        )


@dataclass(frozen=True, eq=False)
class Attempts:
    """Runs of ops that were lost because a resource died (rule 8), in the order of their ends."""

    op: IntArray
    start_ps: IntArray
    end_ps: IntArray  # instant at which the run was lost

    def __len__(self) -> int:
        return len(self.op)

    @classmethod
    def none(cls) -> Attempts:
        """Return an empty table."""
        return cls(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class Times:
    """The outcome of a run, one element an op."""

    # -1 for what never happened. An op that was lost and restarted keeps its first ready time, and
    # has the start of its last attempt.
    ready_ps: IntArray
    start_ps: IntArray
    end_ps: IntArray
    status: IntArray  # WAITING, READY, RUNNING, DONE, FAILED or DOOMED
    attempts: Attempts  # that were lost to faults
    dead: IntArray  # resources that were dead when the run was over
    stopped_ps: int | None = None  # instant at which until_ps or until_ops cut it short

    def __len__(self) -> int:
        return len(self.status)

    @property
    def total_ps(self) -> int:
        """Latest end of any op [ps], 0 when none ended."""
        return max(0, int(self.end_ps.max(initial=0)))

    @property
    def blocked(self) -> BoolArray:
        """Mask (ops,) of the ops left over though no stop and no failure kept them from running."""
        if self.stopped_ps is not None:
            return np.zeros(len(self), np.bool_)
        left: BoolArray = self.status < DONE
        return left


def settle(times: Times, pending: IntArray, *, now: int, on_its_way: bool) -> Times:
    """Turn the columns of an engine, as they were when it stopped, into the outcome of the run."""
    # ``pending``: edges into each op that were not counted; of ``times``, ``ready_ps`` is the
    # latest counted, ``status`` FAILED, DOOMED or 0, and ``stopped_ps`` when the run was to stop.
    ready, start, end, failure = times.ready_ps, times.start_ps, times.end_ps, times.status
    started = start >= 0
    in_flight = started & (end > now)
    arriving = ~started & (pending == 0) & (ready > now) & (failure == 0)
    # A run that had nothing left to do was not cut short, whatever it was told to stop at.
    on_its_way = on_its_way or bool((in_flight & (end < UNKNOWN_PS)).any() or arriving.any())
    was_ready = started | ((pending == 0) & (ready <= now))
    status = failure.copy()
    # The first that fits counts: an op in flight has started, one that has started was ready.
    for number, holds in ((RUNNING, in_flight), (DONE, started), (READY, was_ready)):
        status[(status == 0) & holds] = number
    return replace(
        times,
        ready_ps=np.where(was_ready, ready, NEVER),
        end_ps=np.where(status == DONE, end, NEVER),
        status=status,
        stopped_ps=times.stopped_ps if on_its_way else None,
    )
