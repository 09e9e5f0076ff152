"""Neighbours of a plan: plans one change away that fit, and how long their steps take beside it.

Fields that nobody stated are varied by :mod:`workloads.training.alternatives`, and a whole search
changes all degrees at once; here is what a user's own choice costs, field by field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.search.choice import COMPARED_CHIPS, WORTH_NAMING
from workloads.search.estimate import estimate
from workloads.training.frameworks.framework import framework_of
from workloads.training.memory.memory import worst
from workloads.training.plan.checks import check_model
from workloads.training.plan.fields import ORDER
from workloads.training.plan.plan import ParallelPlan

ORDERS = (ORDER, ("tp", "cp", "pp", "dp"))
"""Orders of axes that are tried: replicas, or stages, nearest to each other."""
VARIED = ("recompute", "zero", "sequence_parallel")
"""Fields whose other values are shown already where nobody stated them."""


class Neighbour(NamedTuple):
    """A plan one change away."""

    changes: dict[str, Any]
    ratio: float  # estimated time of its step over that of the plan


def faster_neighbours(model: Model, plan: ParallelPlan, cluster: Cluster) -> list[Neighbour]:
    """Return the neighbours that are estimated to be faster by a tenth, the fastest first.

    None where the plan does not fill the cluster, and on more than ``COMPARED_CHIPS`` chips, where
    estimates take long. ``cluster``: without the numbers of the plan's framework.
    """
    if plan.ranks != cluster.chips * plan.ranks_per_chip or cluster.chips > COMPARED_CHIPS:
        return []
    fitting = [
        (changes, other)
        for changes in _changes(plan)
        if (other := _changed(plan, changes, model, cluster)) is not None
    ]
    if not fitting:
        return []
    own_s, *seconds = estimate(model, cluster, [plan, *(other for _, other in fitting)]).tolist()
    neighbours = [
        Neighbour(changes, other_s / own_s)
        for (changes, _), other_s in zip(fitting, seconds, strict=True)
        if other_s * WORTH_NAMING <= own_s
    ]
    return sorted(neighbours, key=lambda each: each.ratio)


def _changed(
    plan: ParallelPlan, changes: dict[str, Any], model: Model, cluster: Cluster
) -> ParallelPlan | None:
    """Plan with changes; None for one that contradicts itself or is likely not to fit."""
    try:
        other = replace(plan, **changes)
        check_model(other, model)
        on_stack = framework_of(other, cluster).on(cluster, model)
    except InputError:
        return None
    needed = worst(model, other, on_stack.catalogue or shipped_catalogue(), cluster.chip)
    return other if other != plan and needed.fits and not needed.tight else None


def _changes(plan: ParallelPlan) -> Iterator[dict[str, Any]]:
    """Yield changes of one field, or of a degree with that of the replicas."""
    stated = [name for name in VARIED if name not in plan.assumed]
    if "recompute" in stated and plan.recompute != "none":
        yield {"recompute": "none", "recompute_every": 1}
    if "recompute" in stated and plan.recompute == "full":
        yield {"recompute": "selective", "recompute_every": 1}
    if "zero" in stated and plan.zero != 1:
        yield {"zero": 1}
    if "sequence_parallel" in stated and plan.tp > 1:
        yield {"sequence_parallel": not plan.sequence_parallel}
    yield {"microbatch": 2 * plan.microbatch}
    if plan.microbatch % 2 == 0:
        yield {"microbatch": plan.microbatch // 2}
    yield from ({"order": order} for order in ORDERS)
    for axis in ("tp", "pp", "cp"):
        degree = getattr(plan, axis)
        if degree % 2 == 0 and not (axis == "pp" and plan.stage_layers):
            halved = {axis: degree // 2, "dp": 2 * plan.dp}
            yield (
                {**halved, "vpp": 1, "schedule": ParallelPlan().schedule}
                if halved.get("pp") == 1
                else halved
            )
