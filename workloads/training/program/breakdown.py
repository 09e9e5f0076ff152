"""Breakdown of an iteration: every picosecond goes to the first active category, rank by rank.

Idle time is waiting for a peer: *bubble* where a run without jitter, stragglers and faults waits
as long before the same op, *straggler* for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cluster_sim.analysis.category_times import CategoryTimes, category_times, waiting
from cluster_sim.analysis.stretches import end_of_run_ps
from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.trace.trace import Trace
from topologies.arrays import IntArray

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
    "other": ["host"],
}
"""Categories, first things first."""
SILENT = ("optimizer", "compute", "other")
"""Categories that are no communication."""

PARTS = (
    "compute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble",
    "straggler", "optimizer", "scheduling", "other",
)  # fmt: skip
"""All parts, in the order in which they are told."""


@dataclass(frozen=True, eq=False)
class RankTimes:
    """Time of each rank by category; the parts of every rank sum to the iteration exactly.

    Attributes
    ----------
    rank : int array (ranks,)
        Ascending.
    count : int array (ranks,)
        Equal ranks that each stands for.
    parts_ps : mapping of str to int64 array (ranks,)
        Time of each of ``PARTS`` [ps].
    """

    rank: IntArray
    count: IntArray
    parts_ps: Mapping[str, IntArray]

    def mean_s(self) -> dict[str, float]:
        """Mean over all ranks, equal ones counted [s]; sums to the iteration."""
        return {part: _mean_ps(self.count, self.parts_ps[part]) / PS_PER_S for part in PARTS}

    def frame(self) -> pd.DataFrame:
        """Return a table by ``rank``: ``count``, and ``<part>_ps`` of each part [ps]."""
        import pandas as pd

        columns = {f"{part}_ps": self.parts_ps[part] for part in PARTS}
        index = pd.Index(self.rank, name="rank")
        return pd.DataFrame({"count": self.count, **columns}, index=index)


def hidden_and_exposed(trace: Trace) -> CategoryTimes:
    """Time that each rank had each category of ``ORDER`` active, first or hidden."""
    return category_times(trace, ORDER)


def breakdown(
    trace: Trace, undisturbed: Trace | None = None, times: CategoryTimes | None = None
) -> RankTimes:
    """Time of each rank by category.

    Parameters
    ----------
    trace : Trace
        Trace of a schedule with the labels ``rank``, ``what`` and ``count``.
    undisturbed : Trace, optional
        The same schedule run without jitter and faults; without it nobody is a straggler.
    times : CategoryTimes, optional
        Times from :func:`hidden_and_exposed`, where they are known already.
    """
    times = hidden_and_exposed(trace) if times is None else times
    ranks = np.asarray(times.groups)
    idle = end_of_run_ps(trace) - times.exposed_ps.sum(axis=1)
    late = np.zeros_like(idle) if undisturbed is None else _late_ps(trace, undisturbed, idle)
    parts = {name: times.exposed_ps[:, k] for k, name in enumerate(times.names)}
    return RankTimes(
        ranks, _counts(trace, ranks), {**parts, "bubble": idle - late, "straggler": late}
    )


def _late_ps(trace: Trace, undisturbed: Trace, idle: IntArray) -> IntArray:
    """Waiting of each rank beyond what the undisturbed run waits before the same op [ps]."""
    (now, op, _), (before, usual_op, _) = waiting(trace), waiting(undisturbed)
    ops = len(trace) + 1  # with -1 for the end of the run
    key, usual_key = now.group * ops + op, before.group * ops + usual_op
    order = np.argsort(usual_key)
    usual_ps = np.append((before.end_ps - before.start_ps)[order], 0)
    place = np.searchsorted(usual_key[order], key)
    same = np.append(usual_key[order], -2)[place] == key
    late = now.end_ps - now.start_ps - np.where(same, usual_ps[place], 0)
    summed = np.zeros(len(idle), np.int64)
    np.add.at(summed, now.group, np.maximum(0, late))
    return np.minimum(summed, idle)


def _counts(trace: Trace, ranks: IntArray) -> IntArray:
    """Equal ranks that each rank stands for."""
    labels = trace.schedule.labels
    rank, first = np.unique(np.asarray(labels["rank"]), return_index=True)
    count: IntArray = np.asarray(labels["count"])[first][np.searchsorted(rank, ranks)]
    return count


def _mean_ps(weight: IntArray, values_ps: IntArray) -> float:
    """Weighted mean; the sum itself would pass 2⁶³ ps for half a million ranks of 20 s."""
    ranks = int(weight.sum())
    whole, rest = np.divmod(values_ps, ranks)
    return (int((weight * whole).sum()) * ranks + int((weight * rest).sum())) / ranks


def overlapped_s(trace: Trace, times: CategoryTimes | None = None) -> float:
    """Communication hidden behind something that goes first, mean over all ranks [s]."""
    times = hidden_and_exposed(trace) if times is None else times
    talks = [k for k, name in enumerate(times.names) if name not in SILENT]
    hidden = (times.active_ps - times.exposed_ps)[:, talks].sum(axis=1)
    return _mean_ps(_counts(trace, np.asarray(times.groups)), hidden) / PS_PER_S
