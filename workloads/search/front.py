"""The function ``search_plans``: a search for plans in one call, with a progress bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cluster_sim.progress import progress
from topologies.arguments import check_names, checked
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from workloads.models.huggingface import MODEL_REMEDY, as_model
from workloads.models.model import Model
from workloads.search.search import Search, own_plan, search
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan


@checked(model=MODEL_REMEDY, cluster=CLUSTER_REMEDY)
def search_plans(
    model: Model | str,
    cluster: Cluster | str,
    global_batch: int,
    *,
    finalists: int = 10,
    each: Sequence[str] = (),
    beside: ParallelPlan | None = None,
    quiet: bool = False,
    **stated: Any,
) -> Search:
    """Estimate every parallel plan that fits in memory, and simulate the best plans in full.

    Parameters
    ----------
    model : Model or str
        A model or its name, as :func:`cluster_sim.model` takes it.
    cluster : Cluster or str
        A cluster or its name, as :func:`cluster_sim.cluster` takes it.
    global_batch : int
        Sequences of one optimizer step.
    finalists : int, default 10
        Plans to simulate in full.
    each : sequence of str
        Keep the best plan of each combination of these fields, such as ``["tp", "pp"]``.
    beside : Plan, optional
        Plan of your own with the same batch, to be ranked too: ``own_plan`` of the result.
    quiet : bool
        Show no progress, which otherwise appears on terminals and in notebooks after two seconds.
    **stated
        Fields of a plan that are kept, such as ``seq=8192``; all others are varied.

    Returns
    -------
    Search
        ``finalists`` with their simulated ``iteration_s`` [s], best first; ``frame()`` is a table.

    Raises
    ------
    InputError
        For an unknown name or field, and when no plan divides model, batch and cluster or none
        fits in memory.

    Examples
    --------
    >>> best = search_plans("gpt2", "trn2.48xlarge", 16, finalists=1, pp=1, tp=2, quiet=True)
    >>> best.finalists[0].plan.dp
    8
    """
    parameters = ("model", "cluster", "global_batch", "finalists", "each", "beside", "quiet")
    check_names("search_plans", stated, [*parameters, *PLAN_FIELDS])
    result = search(
        *(as_model(model), as_cluster(cluster), global_batch),
        stated=stated,
        finalists=finalists,
        each=each,
        watch=partial(progress, quiet=quiet),
    )
    return result if beside is None else replace(result, own_plan=own_plan(result, beside))
