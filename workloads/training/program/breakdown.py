"""Breakdown of an iteration: every picosecond goes to the first active category, rank by rank.

Idle time is waiting for a peer: *bubble* where a run without jitter, stragglers and faults waits
as long before the same op, *straggler* for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cluster_sim.analysis.stretches import (
    CategoryTimes,
    Intervals,
    category_times,
    end_of_run_ps,
    idle_gaps,
)
from cluster_sim.schedule.table import PS_PER_S
from cluster_sim.trace.trace import Trace
from topologies.support.arrays import IntArray

if TYPE_CHECKING:
    import pandas as pd

ORDER: Mapping[str, list[str]] = {
    "optimizer": ["optimizer"],
    "compute": ["compute"],
    "scheduling": ["scheduling"],
    "exposed_tp": ["tp"],
    "exposed_cp": ["cp"],
    "exposed_ep": ["ep"],
    "exposed_pp": ["pp"],
    "exposed_dp": ["dp"],
    "host": ["host"],
    "other": ["other"],
}
"""Categories by priority: an instant in which several are active counts to the first of them."""
SILENT = ("optimizer", "compute", "host", "other")  # categories that are not communication

PARTS = (
    "compute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble",
    "straggler", "optimizer", "scheduling", "host", "other",
)  # fmt: skip
"""All parts, in the order in which results list them."""

OPS_OF_A_RANK = 2**32  # number above that of any op of a rank, so that rank and op make one number


@dataclass(frozen=True, eq=False)
class RankTimes:
    """Time of each rank by category; the parts of every rank sum to the iteration exactly."""

    rank: IntArray  # (ranks,): simulated ranks, ascending
    count: IntArray  # (ranks,): number of equal ranks that each of them stands for
    parts_ps: Mapping[str, IntArray]  # (ranks,): time of each of ``PARTS`` [ps]

    def mean_s(self) -> dict[str, float]:
        """Mean of each part over all ranks, folded ones included [s]; sums to the iteration."""
        return {part: _mean_ps(self.count, self.parts_ps[part]) / PS_PER_S for part in PARTS}

    def frame(self) -> pd.DataFrame:
        """Return a table by ``rank``: ``count``, and the time ``<part>_ps`` of each part [ps]."""
        import pandas as pd

        columns = {f"{part}_ps": self.parts_ps[part] for part in PARTS}
        index = pd.Index(self.rank, name="rank")
        return pd.DataFrame({"count": self.count, **columns}, index=index)


def hidden_and_exposed(trace: Trace) -> CategoryTimes:
    """Return the time of each category of ``ORDER`` on each rank, both exposed and in all."""
    return category_times(trace, ORDER)


def breakdown(
    trace: Trace,
    undisturbed: Trace | None = None,
    times: CategoryTimes | None = None,
    like: IntArray | None = None,
) -> RankTimes:
    """Return the time of each rank by category."""
    # ``like`` (ranks,): number of the rank of the undisturbed run that each rank equals there,
    # where equal ranks were run once; by default each equals that of its own number.
    times = hidden_and_exposed(trace) if times is None else times
    ranks = np.asarray(times.groups)
    idle = end_of_run_ps(trace) - times.exposed_ps.sum(axis=1)
    late = np.zeros_like(idle) if undisturbed is None else _late_ps(trace, undisturbed, idle, like)
    parts = {name: times.exposed_ps[:, k] for k, name in enumerate(times.names)}
    return RankTimes(
        ranks, _counts(trace, ranks), {**parts, "bubble": idle - late, "straggler": late}
    )


def _late_ps(trace: Trace, undisturbed: Trace, idle: IntArray, like: IntArray | None) -> IntArray:
    """Waiting of each rank beyond what the undisturbed run waits before the same op [ps]."""
    gaps, key = _gaps_before(trace, like)
    usual_gaps, usual_key = _gaps_before(undisturbed)
    # Look up how long the undisturbed run waits before the same op of the same rank, or 0.
    order = np.argsort(usual_key)
    usual_ps = np.append((usual_gaps.end_ps - usual_gaps.start_ps)[order], 0)
    place = np.searchsorted(usual_key[order], key)
    same = np.append(usual_key[order], -2)[place] == key
    late = gaps.end_ps - gaps.start_ps - np.where(same, usual_ps[place], 0)
    summed = np.zeros(len(idle), np.int64)
    np.add.at(summed, gaps.group, np.maximum(0, late))
    return np.minimum(summed, idle)


def _gaps_before(trace: Trace, like: IntArray | None = None) -> tuple[Intervals, IntArray]:
    """Return the gaps of all ranks, and a number for rank and op that each stands before."""
    # Ops are counted from the first of their rank; the number is that of the same op of the rank in
    # ``like``.
    gaps, op, _ = idle_gaps(trace)
    place = np.where(op < 0, -1, op - _first_ops(trace)[1][gaps.group])
    return gaps, (gaps.group if like is None else like[gaps.group]) * OPS_OF_A_RANK + place


def _counts(trace: Trace, ranks: IntArray) -> IntArray:
    rank, first = _first_ops(trace)
    count: IntArray = np.asarray(trace.schedule.labels["count"])[first]
    return count[np.searchsorted(rank, ranks)]


def _first_ops(trace: Trace) -> tuple[IntArray, IntArray]:
    """Return the ranks, ascending, and the first op of each."""
    column = np.asarray(trace.schedule.labels["rank"])
    # Ops stand rank by rank, so only the places where the rank changes are sorted.
    begins = np.flatnonzero(np.append(True, column[1:] != column[:-1]))
    rank, first = np.unique(column[begins], return_index=True)
    return rank, begins[first]


def _mean_ps(weight: IntArray, values_ps: IntArray) -> float:
    ranks = int(weight.sum())
    # The sum itself would exceed 2⁶³ ps for half a million ranks of 20 s.
    whole, rest = np.divmod(values_ps, ranks)
    return (int((weight * whole).sum()) * ranks + int((weight * rest).sum())) / ranks


def overlapped_s(trace: Trace, times: CategoryTimes | None = None) -> float:
    """Time of communication that a category of higher priority hides, mean over all ranks [s]."""
    times = hidden_and_exposed(trace) if times is None else times
    communication = [k for k, name in enumerate(times.names) if name not in SILENT]
    hidden = (times.active_ps - times.exposed_ps)[:, communication].sum(axis=1)
    return _mean_ps(_counts(trace, np.asarray(times.groups)), hidden) / PS_PER_S
