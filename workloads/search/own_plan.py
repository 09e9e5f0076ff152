"""Plan of a user's own beside those of a search: its place, and the change that helps it most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.errors import InputError
from workloads.search.estimate import estimate
from workloads.search.finalists import OwnPlan, Runner
from workloads.search.search import Search
from workloads.training.memory.memory import likely
from workloads.training.plan.checks import check_model
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import DEFAULT

ALONE = ("ep", "etp", "microbatch", "zero", "recompute", "sequence_parallel", "order")
"""Fields that change without another one."""
GAIN = 0.001
"""Smallest share of the estimated time that a change must save to be worth a simulation."""


def own_plan(search: Search, plan: ParallelPlan, engine: str = "fast") -> OwnPlan:
    """Return a plan as simulated, its place among the plans that fit, and what helps it most."""
    # The place is that of its simulated time among the finalists, or of its estimate where all of
    # them are faster.
    # ``engine`` ("fast", "reference").
    runner = Runner(search.model, search.cluster, engine)
    (estimate_s,) = estimate(search.model, search.cluster, [plan]).tolist()
    mine = runner.finalist(plan, 1, estimate_s)
    worth = mine.worth(search.objective)
    faster = sum(
        each.plan != plan and each.worth(search.objective) < worth for each in search.finalists
    )
    if faster == len(search.finalists):
        faster = max(faster, int((search.estimate_s < estimate_s).sum()))
    mine = replace(mine, estimate_rank=faster + 1)
    changes = [
        change for change in single_changes(plan, search.plans) if _suits(plan, change, search)
    ]
    if not changes:
        return OwnPlan(mine)
    plans = [replace(plan, **change) for change in changes]
    seconds = estimate(search.model, search.cluster, plans)
    best = int(np.argmin(seconds))
    if seconds[best] > (1 - GAIN) * estimate_s:
        return OwnPlan(mine)
    changed = runner.finalist(plans[best], 1, float(seconds[best]))
    better = changed.iteration_s < mine.iteration_s
    return OwnPlan(mine, changes[best], changed) if better else OwnPlan(mine)


def single_changes(plan: ParallelPlan, tried: Sequence[ParallelPlan]) -> Iterator[dict[str, Any]]:
    """Yield changes of one field of a plan to a value that other plans have."""
    # Each comes with what follows from it: replicas make up for a changed degree, and a pipeline
    # has a schedule and its chunks together. Some changes do not suit model or batch.
    for name in ("tp", "pp", "cp"):
        ranks = getattr(plan, name) * plan.dp
        for degree in _values(tried, name):
            follows = {"vpp": 1, "schedule": DEFAULT} if name == "pp" and degree == 1 else {}
            if degree != getattr(plan, name) and ranks % degree == 0:
                yield {name: degree, "dp": ranks // degree, **follows}
    for name in ALONE:
        values = (value for value in _values(tried, name) if value != getattr(plan, name))
        yield from ({name: value} for value in values)
    if plan.stage_layers:
        yield {"stage_layers": ()}
    for schedule, vpp in dict.fromkeys((one.schedule, one.vpp) for one in tried):
        if plan.pp > 1 and (schedule, vpp) != (plan.schedule, plan.vpp):
            yield {"schedule": schedule, "vpp": vpp, "stage_layers": ()}


def _values(tried: Sequence[ParallelPlan], name: str) -> list[Any]:
    """Return the values that plans have in a field, in a fixed order."""
    return sorted({getattr(plan, name) for plan in tried})


def _suits(plan: ParallelPlan, change: Mapping[str, Any], search: Search) -> bool:
    """Return whether a changed plan is another one, divides the model, and is likely to fit."""
    try:
        changed = replace(plan, **change)
        check_model(changed, search.model)
    except InputError:
        return False
    catalogue = search.cluster.catalogue or shipped_catalogue()
    needed = likely(search.model, changed, catalogue, search.cluster.chip)
    return changed != plan and needed.total <= needed.capacity
