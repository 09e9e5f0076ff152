"""The plan of a job for which no degree of parallelism is stated: the best by its estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.search import candidates, estimate, fit
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.plan_file import complete

DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp")
SEQUENCE = 8192
"""Tokens of a sequence unless stated: Llama 3's (arXiv 2407.21783)."""
USUAL: Mapping[str, Any] = {"cp": 1, "microbatch": 1, "order": ("tp", "cp", "dp", "pp")}
"""Fields that are not searched unless stated, so that a search takes seconds."""
NARROWED: tuple[Mapping[str, Any], ...] = (
    {"zero": 1, "recompute": "selective"},
    {"zero": 3, "recompute": "selective"},
    {"zero": 1, "recompute": "full"},
    {"zero": 3, "recompute": "full"},
)
"""Searches in turn; the first in which a plan fits in memory is kept."""


def job_plan(
    stated: Mapping[str, Any], model: Model, cluster: Cluster, *, lnc: int | None = None
) -> ParallelPlan:
    """Return the plan that a job runs with.

    Where a degree of parallelism is stated, all others are as ``train`` takes them; where none is,
    it is the plan with the least estimated step of those that fit in memory on the whole cluster,
    with one sequence a chip unless a batch is stated. Nothing is simulated to choose it: the job
    simulates its step anyway, and one more on half a million chips takes as long as all estimates.

    Raises
    ------
    InputError
        When no plan fits in memory.
    """
    fields = {name: value for name, value in stated.items() if value is not None}
    if any(name in fields for name in DEGREES):
        return complete(fields, model, cluster, lnc=lnc)
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
    """Return the plan with the shortest estimated step of those that fit in memory."""
    listed = candidates(model, cluster, batch, stated=stated, spared=set(stated), lnc=lnc)
    fitting = np.flatnonzero(fit(listed, set(stated)).fits).tolist()
    plans = [listed.plans[row] for row in fitting]
    return plans[int(np.argmin(estimate(model, cluster, plans)))]
