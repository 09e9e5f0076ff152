"""Training steps and collectives in one call, of things by name or as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.registry import AUTO
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration.duration import CollectiveTime, time_of
from cluster_sim.collectives.group import Group, as_group
from cluster_sim.hardware.faults import parse_fault
from cluster_sim.progress import progress as shown
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.support.arguments import check_fields, check_names, checked
from topologies.support.errors import InputError
from topologies.support.units import as_bytes
from workloads.confidence.answers import collective_interval
from workloads.models.huggingface import MODEL_REMEDY, as_model
from workloads.models.model import Model
from workloads.remarks import remarks
from workloads.search.choice import usual_or_searched
from workloads.search.unlike import unlike_step
from workloads.training.detail import Detail
from workloads.training.execution.jitter import Disturbance, disturbance
from workloads.training.execution.rank_vector import Progress
from workloads.training.frameworks.conditions import CONDITIONS, Conditions
from workloads.training.iteration import Iteration, iteration
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan, check_field
from workloads.training.plan.stages import check_chips, check_ranks
from workloads.training.usual_plan import complete, is_open

WATCH = partial(shown, quiet=False)  # progress of a search, which appears after two seconds
DETAIL = frozenset(field.name for field in fields(Detail))
"""Names of the fields of a detail; no field of a plan has the same name."""


@checked(
    model=MODEL_REMEDY,
    cluster=CLUSTER_REMEDY,
    plan="Pass a Plan, or its fields by name, such as tp=8.",
)
def train(
    model: Model | str,
    cluster: Cluster | str,
    plan: ParallelPlan | None = None,
    detail: Detail | None = None,
    *,
    later_stages: Cluster | str | Sequence[Cluster | str] = (),
    progress: Progress | None = None,
    **stated: Any,
) -> Iteration:
    """Simulate one optimizer step.

    Parameters
    ----------
    model, cluster : Model, Cluster or str
        Objects, or their names as :func:`cluster_sim.model` and ``cluster`` take them.
    plan : Plan, optional
        By default ``stated``, completed as usual, with the ``dp`` that fills the cluster. Without a
        degree it is data parallel if that fits, else the best of a search (``choice``).
    detail : Detail, optional
        Level of detail, engine, and what disturbs the step.
    later_stages : Cluster or str, or a sequence of them, optional
        Clusters of other chips for the later stages; ``unlike`` of the result has other ways.
    progress : function of (str, int, int), optional
        Called with how far a rank-vector run is.
    **stated
        Fields of the plan, such as ``tp=8`` and ``framework="torchtitan"``, of the detail, such as
        ``level="chunk"`` or ``jitter="typical"`` with its ``seed``, and ``power_limit_w=500`` of
        ``Conditions``, in place of those of ``plan`` and ``detail``; ``chips`` are the first ones.

    Returns
    -------
    Iteration
        ``time_s`` [s], ``breakdown_s`` (mean over ranks by part [s]), ``mfu``, ``memory`` [B],
        ``trace``, ``remarks``, and ``interval``, which should hold 80 % of measured times.

    Raises
    ------
    InputError
        For unknown names, and a plan that does not suit model, cluster or memory.

    Examples
    --------
    >>> train("llama-3.1-8b", "trn2.48xlarge", tp=8).plan
    Plan(tp=8, dp=2, global_batch=32)
    """
    if later_stages:
        return _on_unlike_chips(model, (cluster, later_stages), plan, detail, progress, stated)
    plan_fields, detail_fields, conditions = _divided(stated)
    model, cluster = as_model(model), as_cluster(cluster)
    count = _counted(detail_fields, cluster)
    fields = {**(vars(plan) if plan else {}), "chips": count, **plan_fields}
    choice, stack = None, conditions.framework_text(fields, cluster)
    plan = plan and _changed(plan, plan_fields, stack, count)
    plan_fields["framework"] = stack
    if plan is None and _may_search(plan_fields, detail, detail_fields):
        plan, choice = usual_or_searched(plan_fields, model, cluster, watch=WATCH, chips=count)
    plan = plan or complete(plan_fields, model, cluster, chips=count)
    step = iteration(model, cluster, plan, detail, progress=progress, **detail_fields)
    return replace(step, choice=choice, tell=remarks)


def _counted(detail_fields: dict[str, Any], cluster: Cluster) -> int | None:
    """Take a number of chips out of the fields of a detail; None where none is stated."""
    if not isinstance(detail_fields.get("chips"), int):
        return None
    count: int = detail_fields.pop("chips")
    check_chips(count, cluster)
    detail_fields["partial"] = True
    return count


def _on_unlike_chips(
    model: Model | str,
    clusters: tuple[Cluster | str, Cluster | str | Sequence[Cluster | str]],
    plan: ParallelPlan | None,
    detail: Detail | None,
    progress: Progress | None,
    stated: Mapping[str, Any],
) -> Iteration:
    """Simulate a step whose later stages are on other clusters than the first ones."""
    first, later = clusters
    beside = [later] if isinstance(later, (str, Cluster)) else later
    whole = [as_cluster(each) for each in (first, *beside)]
    plan_fields, detail_fields, conditions = _divided(stated)
    count = detail_fields.pop("chips", None)
    stated_fields = {
        name: vars(plan)[name] for name in PLAN_FIELDS if plan and name not in plan.assumed
    }
    fields = {**stated_fields, **plan_fields, "chips": count}
    fields["framework"] = conditions.framework_text(fields, whole[0])
    detail = replace(detail or Detail(), **detail_fields)
    step = unlike_step(as_model(model), whole, fields, detail, progress=progress)
    return replace(step, tell=remarks)


def _may_search(
    plan_fields: Mapping[str, Any], detail: Detail | None, detail_fields: Mapping[str, Any]
) -> bool:
    """Return whether no degree is stated and the plan has to fit in memory."""
    oversized = detail_fields.get("allow_oversized", bool(detail and detail.allow_oversized))
    return is_open(plan_fields) and not oversized


def _changed(
    plan: ParallelPlan, plan_fields: Mapping[str, Any], stack: str, chips: int | None
) -> ParallelPlan:
    """Return the plan with other values for some of its fields, which are then stated ones."""
    assumed = tuple(name for name in plan.assumed if name not in plan_fields)
    plan = replace(plan, **{**plan_fields, "framework": stack}, assumed=assumed)
    if chips is not None:
        check_ranks(plan, chips)
    return plan


ELSEWHERE = {
    **dict.fromkeys(
        ("tokens", "days", "budget"), "Pass it and the step that train returns to cs.run_job."
    ),
    **dict.fromkeys(
        ("nodes", "num_nodes", "gpus", "num_gpus"),
        "State it with the cluster, such as 'p5.48xlarge:8' for eight servers, or pass chips.",
    ),
    "price_basis": "Name it with the cluster, as cs.cluster('p5.48xlarge', "
    "variant='p5.48xlarge.price=spot').",
}
"""Keywords that belong elsewhere, each with its place."""


def _divided(stated: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Conditions]:
    """Divide keyword arguments into fields of a plan, fields of a detail, and conditions."""
    parameters = ("model", "cluster", "plan", "detail", "later_stages", "progress")
    names = [*PLAN_FIELDS, *sorted(DETAIL), *sorted(CONDITIONS), "jitter", "seed"]
    for name in stated:
        if name in ELSEWHERE:
            raise InputError(f"train has no {name!r}. {ELSEWHERE[name]}")
    check_names("train", stated, [*parameters, *names])
    plan_fields, detail_fields, conditions = (
        {name: value for name, value in stated.items() if name in names}
        for names in (PLAN_FIELDS, DETAIL, CONDITIONS)
    )
    for name, value in plan_fields.items():
        check_field(name, value)
    if "jitter" in stated:
        uneven = disturbance(stated["jitter"], stated.get("seed", 0), ())
        base = detail_fields.get("disturbed") or Disturbance()
        detail_fields["disturbed"] = replace(uneven, stragglers=base.stragglers)
    elif "seed" in stated:
        raise InputError("seed changes nothing without jitter. State jitter, or leave seed out.")
    faults = detail_fields.get("faults")
    texts = [faults] if isinstance(faults, str) else faults
    if isinstance(texts, Sequence):
        detail_fields["faults"] = [
            parse_fault(each) if isinstance(each, str) else each for each in texts
        ]
    check_fields(Detail, detail_fields)
    return plan_fields, detail_fields, Conditions(**conditions)


@checked()
def collective_time(
    kind: str,
    group: Group | Cluster | str,
    *,
    size_bytes: float | str,
    algorithm: str | Algorithm = AUTO,
    ideal: bool = False,
) -> CollectiveTime:
    """Time of a collective operation on one group of an otherwise idle cluster.

    Parameters
    ----------
    kind : str
        ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all``, ``broadcast`` or
        ``permute``.
    group : Group, Cluster or str
        Ranks that take part, in one scale-up domain or several; a cluster or its name stands for
        all its chips.
    size_bytes : int or str
        Size of the buffer as nccl-tests counts it, such as ``2**30`` or ``"1GiB"`` [B]; see
        :class:`~cluster_sim.collectives.call.CollectiveCall`.
    algorithm : str or Algorithm, default "auto"
        A name that ``cluster-sim list algorithms`` shows, or an algorithm of your own; ``auto``
        takes what the runtime would.
    ideal : bool, default False
        Count link rates and latencies only, without efficiencies, launches and memory.

    Returns
    -------
    CollectiveTime
        ``time_s`` [s] with its ``interval``, which should hold 80 % of measured times, the
        ``algorithm`` that runs, and the ``method`` that gave the time.

    Raises
    ------
    InputError
        If there is no such operation, or the algorithm does not suit the operation or the group.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> eight = Group(cluster("dgx-h100"), range(8))
    >>> collective_time("all-reduce", eight, size_bytes="1MiB")
    CollectiveTime(time=27.75 us (80 %: 26.17 us – 63.62 us), algorithm=nccl, method=nccl)
    >>> collective_time("all-reduce", eight, size_bytes=2**30).method
    'nccl'
    >>> collective_time("all-reduce", eight, size_bytes=2**30, algorithm="ring").method
    'simulated'
    """
    ranks, size = as_group(group), as_bytes(size_bytes)
    taken = time_of(CollectiveCall(kind, ranks, size), algorithm, ideal=ideal)
    ends = collective_interval(
        *(ranks.cluster, ranks.ranks, size, taken.time_s),
        ideal=ideal,
        crosses=len(ranks.domains) > 1,
    )
    return replace(taken, interval=ends)
