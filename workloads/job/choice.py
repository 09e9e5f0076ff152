"""Choice of a plan for a job without stated degrees of parallelism: the best by its estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.search import best_estimates, candidates, fit
from workloads.training.plan.plan import ParallelPlan
from workloads.training.usual_plan import complete

DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp")
SEQUENCE = 8192
"""Tokens of a sequence unless stated: Llama 3's (arXiv 2407.21783)."""
USUAL: Mapping[str, Any] = {"cp": 1, "microbatch": 1, "order": ("tp", "cp", "dp", "pp")}
"""Fields that are fixed unless stated, so that a search takes seconds."""
NARROWED: tuple[Mapping[str, Any], ...] = (
    {"zero": 1, "recompute": "selective"},
    {"zero": 3, "recompute": "selective"},
    {"zero": 1, "recompute": "full"},
    {"zero": 3, "recompute": "full"},
)
"""Further fixed fields of each search; the first search in which a plan fits in memory decides."""


def job_plan(
    stated: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    *,
    lnc: int | None = None,
    chips: int | None = None,
) -> ParallelPlan:
    """Return the plan of parallelism that a job runs with.

    Where a degree of parallelism is stated, the others are completed as ``train`` does. Otherwise
    the plan is the one with the shortest estimated step among those that fit in memory on the whole
    cluster, with one sequence a chip unless a batch is stated. No step is simulated for the choice:
    on half a million chips one simulation takes as long as all estimates, and the job needs one of
    its own anyway.
    """
    fields = {name: value for name, value in stated.items() if value is not None}
    if chips is not None or any(name in fields for name in DEGREES):
        return complete(fields, model, cluster, lnc=lnc, chips=chips)
    batch = fields.pop("global_batch", cluster.chips)
    fields.setdefault("seq", min(SEQUENCE, model.positions or SEQUENCE))
    why: InputError | None = None
    for narrowed in NARROWED:
        kept = {**USUAL, **narrowed, **fields}
        if model.experts:
            kept.setdefault("etp", 1)
        try:
            return _best_by_estimate(model, cluster, batch, kept, lnc)
        except InputError as mistake:
            why = mistake
    raise InputError(f"no plan for this job was found: {why} State --tp, --pp and the like.")


def _best_by_estimate(
    model: Model, cluster: Cluster, batch: int, stated: Mapping[str, Any], lnc: int | None
) -> ParallelPlan:
    """Return the plan with the shortest estimated step among those that fit in memory."""
    listed = candidates(model, cluster, batch, stated=stated, spared=set(stated), lnc=lnc)
    fitting = np.flatnonzero(fit(listed, set(stated)).fits).tolist()
    plans = [listed.plans[row] for row in fitting]
    return plans[int(np.argmin(best_estimates(model, cluster, plans, 1)))]
