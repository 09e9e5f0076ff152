"""A training step in one call: model, cluster and plan, each by name, by field or as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from topologies.clusters.cluster import Cluster
from topologies.clusters.names import as_cluster
from topologies.errors import InputError, suggestion
from workloads.models.huggingface import as_model
from workloads.models.model import Model
from workloads.training.detail import Detail
from workloads.training.execution.rank_vector import Progress
from workloads.training.iteration import Iteration, iteration
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.plan_file import complete

PLAN = frozenset(field.name for field in fields(ParallelPlan))
DETAIL = frozenset(field.name for field in fields(Detail))


def train(
    model: Model | str,
    cluster: Cluster | str,
    plan: ParallelPlan | None = None,
    detail: Detail | None = None,
    *,
    progress: Progress | None = None,
    **stated: Any,
) -> Iteration:
    """Simulate one optimizer step.

    Parameters
    ----------
    model : Model or str
        A model or its name, as :func:`cluster_sim.model` takes it.
    cluster : Cluster or str
        A cluster or its name, as :func:`cluster_sim.cluster` takes it.
    plan : Plan, optional
        By default one of the stated fields; data parallelism fills the cluster, with 16
        microbatches of sequences of 4,096 tokens for every replica.
    detail : Detail, optional
        Level of detail, engine, and what disturbs the step.
    progress : function of (str, int, int), optional
        Told how far a rank-vector run is.
    **stated
        Fields of the plan, such as ``tp=8``, and of the detail, such as ``level="chunk"``; they
        change the plan and the detail that are given.

    Returns
    -------
    Iteration
        ``time_s`` [s], ``breakdown_s`` (mean over ranks by part [s]), ``mfu``, ``memory`` [B],
        ``trace`` and ``interval``, which should hold 80 % of measured times.

    Raises
    ------
    InputError
        For an unknown name or field, a plan that does not suit model, cluster or memory, and a
        run that this process has no room for.

    Examples
    --------
    >>> step = train("llama-3.1-8b", "trn2.48xlarge", tp=8)
    >>> step.plan
    Plan(tp=8, dp=2, global_batch=32)
    >>> abs(sum(step.breakdown_s.values()) - step.time_s) < 1e-9
    True
    """
    of_plan, of_detail = _sorted(stated)
    shape, machine = as_model(model), as_cluster(cluster)
    chosen = complete(of_plan, shape, machine) if plan is None else replace(plan, **of_plan)
    return iteration(shape, machine, chosen, detail, progress=progress, **of_detail)


def _sorted(stated: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Stated fields of a plan, and those of a detail."""
    for name in stated:
        if name not in PLAN | DETAIL:
            near = suggestion(name, PLAN | DETAIL)
            raise InputError(
                f"train has no {name[:40]!r}.{near} A plan has {', '.join(sorted(PLAN))}; "
                f"its detail has {', '.join(sorted(DETAIL))}."
            )
    return (
        {name: value for name, value in stated.items() if name in PLAN},
        {name: value for name, value in stated.items() if name in DETAIL},
    )
