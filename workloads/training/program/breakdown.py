"""Breakdown of an iteration: every picosecond goes to the first active category, rank by rank.

Idle time is waiting for a peer: *bubble* where a run without jitter, stragglers and faults waits
as long before the same op, *straggler* for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from cluster_sim.analysis.categories import overlap, waits
from cluster_sim.analysis.metrics import end_of_run_ps
from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.trace.trace import Trace
from topologies.arrays import IntArray

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

PARTS = (
    "compute", "exposed_tp", "exposed_pp", "exposed_dp", "exposed_cp", "exposed_ep", "bubble",
    "straggler", "optimizer", "scheduling", "other",
)  # fmt: skip
"""All parts, in the order in which they are told."""


def hidden_and_exposed(trace: Trace) -> pd.DataFrame:
    """Time that each rank had each category active, first or hidden; see :func:`overlap`."""
    return overlap(trace, ORDER)


def breakdown(
    trace: Trace, undisturbed: Trace | None = None, parts: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Time of each rank by category.

    Parameters
    ----------
    trace : Trace
        Trace of a schedule with the labels ``rank``, ``what`` and ``count``.
    undisturbed : Trace, optional
        The same schedule run without jitter and faults; without it nobody is a straggler.
    parts : DataFrame, optional
        Parts from :func:`hidden_and_exposed`, where they are known already.

    Returns
    -------
    DataFrame
        Index ``rank``; ``count`` and one integer column ``<part>_ps`` for each part [ps]. The
        parts of every row sum to the iteration exactly.
    """
    times = hidden_and_exposed(trace) if parts is None else parts
    exposed = times["exposed_ps"].to_numpy().reshape(-1, len(ORDER))
    ranks = times.index.unique("rank")
    frame = pd.DataFrame(exposed, index=ranks, columns=[f"{name}_ps" for name in ORDER])
    idle = end_of_run_ps(trace) - exposed.sum(axis=1)
    late = np.zeros_like(idle) if undisturbed is None else _late_ps(trace, undisturbed, idle)
    frame["bubble_ps"] = idle - late
    frame["straggler_ps"] = late
    frame["count"] = _counts(trace, frame.index.to_numpy())
    return frame[["count", *(f"{part}_ps" for part in PARTS)]]


def _late_ps(trace: Trace, undisturbed: Trace, idle: IntArray) -> IntArray:
    """Waiting of each rank beyond what the undisturbed run waits before the same op [ps]."""
    now, before = waits(trace), waits(undisturbed)
    keys = ["rank", "op"]
    usual = before.set_index(keys)["wait_ps"]
    wait = now["wait_ps"].to_numpy()
    expected = usual.reindex(pd.MultiIndex.from_frame(now[keys]), fill_value=0).to_numpy()
    late = np.maximum(0, wait - expected)
    ranks = np.unique(now["rank"].to_numpy())
    summed = np.zeros(len(idle), np.int64)
    place = np.searchsorted(time_index(trace), ranks)
    np.add.at(summed, place[np.searchsorted(ranks, now["rank"].to_numpy())], late)
    return np.minimum(summed, idle)


def time_index(trace: Trace) -> IntArray:
    """Ranks of a trace, ascending."""
    label = trace.schedule.labels["rank"]
    return np.unique(np.asarray(label))


def _counts(trace: Trace, ranks: IntArray) -> IntArray:
    """Equal ranks that each rank stands for."""
    labels = trace.schedule.labels
    rank, first = np.unique(np.asarray(labels["rank"]), return_index=True)
    count: IntArray = np.asarray(labels["count"])[first][np.searchsorted(rank, ranks)]
    return count


def mean_s(parts: pd.DataFrame) -> dict[str, float]:
    """Mean over all ranks, equal ones counted [s]; sums to the iteration."""
    weight = parts["count"].to_numpy()
    return {part: _mean_ps(weight, parts[f"{part}_ps"].to_numpy()) / PS_PER_S for part in PARTS}


def _mean_ps(weight: IntArray, values_ps: IntArray) -> float:
    """Weighted mean; the sum itself would pass 2⁶³ ps for half a million ranks of 20 s."""
    ranks = int(weight.sum())
    whole, rest = np.divmod(values_ps, ranks)
    return (int((weight * whole).sum()) * ranks + int((weight * rest).sum())) / ranks


def overlapped_s(trace: Trace, parts: pd.DataFrame | None = None) -> float:
    """Communication hidden behind something that goes first, mean over all ranks [s]."""
    frame = (hidden_and_exposed(trace) if parts is None else parts).reset_index()
    talks = frame[~frame["category"].isin(["optimizer", "compute", "other"])]
    hidden = talks.groupby("rank")["overlapped_ps"].sum()
    weight = _counts(trace, hidden.index.to_numpy())
    return _mean_ps(weight, hidden.to_numpy()) / PS_PER_S
