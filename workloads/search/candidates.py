"""Candidates: all plans that divide a model, a batch and a cluster and that no rule leaves out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.search.combinations import (
    EXCHANGES,
    LIGHT_END,
    ORDERS,
    OVERLAPS,
    RECOMPUTE,
    Stated,
    combinations,
    light_end,
    with_overlaps,
)
from workloads.search.grid import Columns, rows
from workloads.search.refusals import check_alone
from workloads.search.rules import Frame, sieve
from workloads.training.frameworks.framework import framework, framework_text
from workloads.training.plan.checks import check_runtime
from workloads.training.plan.fields import check_field
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.plan_file import field_value
from workloads.training.plan.schedules import schedule_names
from workloads.training.program.groups import routing_mistake
from workloads.training.usual_plan import complete

SHARED = (
    "seq", "precision", "fp8_recipe", "attention", "ranks_per_chip", "cp_exchange",
    "routing_skew", "capacity_factor", "bucket_bytes", "recompute_every", "reshard",
    "lora_rank", "lora_on", "train_only", "optimizer", "runtime", "framework",
)  # fmt: skip
"""Fields that are the same in all candidates."""
DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "microbatch", "zero")


@dataclass(frozen=True, eq=False)
class Candidates:
    """Plans that a search chooses from."""

    model: Model
    cluster: Cluster
    plans: tuple[ParallelPlan, ...]  # plans that no rule leaves out
    considered: int  # number of plans that divide model, batch and cluster
    pruned: Mapping[str, int]  # number of plans that were left out, by reason

    def __len__(self) -> int:
        return len(self.plans)


def candidates(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    *,
    stated: Stated | None = None,
    spared: Collection[str] = (),
    lnc: int | None = None,
) -> Candidates:
    """Return the plans that use all of a cluster and divide the model and the batch.

    ``stated`` fields are not varied; None counts as not stated. Fields of ``spared`` leave out no
    plan whatever their values; ``overlap`` is varied only if it is among them and not stated.
    """
    if not cluster.chip:
        raise InputError(
            f"{cluster.name} is a plain shape without chips, so nothing can be computed on it. "
            "Use a named machine such as trn2-ultraserver:16."
        )
    entered = (stated or {}).items()
    fixed = {name: field_value(name, value) for name, value in entered if value is not None}
    for name, value in fixed.items():
        check_field(name, value)
    base = _base(model, cluster, global_batch, fixed, lnc)
    stack = framework(base.framework)
    stack.check_chip(cluster)
    cluster = stack.on(cluster, model)
    check_alone(model, base, fixed)
    check_runtime(base, cluster)
    compared = "overlap" in spared and "overlap" not in fixed
    grid = with_overlaps(combinations(model, cluster, base, fixed), base, compared=compared)
    left, pruned = sieve(grid, Frame(model, cluster, base), {*fixed, *spared})
    plans = _routable(_plans(model, base, left, fixed), cluster)
    return Candidates(model, cluster, plans, rows(grid), pruned)


def _base(
    model: Model, cluster: Cluster, global_batch: int, fixed: Stated, lnc: int | None
) -> ParallelPlan:
    """Fields that all candidates share, as a plan."""
    # With replicas of one rank each, every cluster has a plan, so defaults can be completed.
    sizes = {name: fixed[name] for name in ("seq", "ranks_per_chip") if name in fixed}
    usual = complete(sizes, model, cluster, lnc=lnc)
    same = {name: fixed[name] for name in (*SHARED, "overlap") if name in fixed}
    sizes = {"seq": usual.seq, "ranks_per_chip": usual.ranks_per_chip}
    # All plans of a search are run by one framework, so that none wins by another's kernels.
    text = same.get("framework", "")
    same["framework"] = framework_text(text, cluster, same)
    fields = {**sizes, **same, "global_batch": global_batch}
    return ParallelPlan(**fields, assumed=() if text[:1] not in ("", ":") else ("framework",))


def _routable(plans: tuple[ParallelPlan, ...], cluster: Cluster) -> tuple[ParallelPlan, ...]:
    """Plans whose experts can be reached by sending tokens once to each server."""
    routed = [plan for plan in plans if plan.routed_nodes]
    if not routed:
        return plans
    reasons = {plan: routing_mistake(plan, cluster) for plan in routed}
    if all(reasons.values()):
        raise InputError(next(iter(reasons.values())))
    return tuple(plan for plan in plans if not reasons[plan])


def _plans(
    model: Model, base: ParallelPlan, columns: Columns, fixed: Stated
) -> tuple[ParallelPlan, ...]:
    """Combinations as plans."""
    names = schedule_names()
    same = {name: getattr(base, name) for name in (*SHARED, "global_batch")}
    same |= {name: fixed[name] for name in EXCHANGES if name in fixed}
    same["assumed"] = base.assumed
    orders = [fixed["order"]] if "order" in fixed else ORDERS
    listed = {name: column.tolist() for name, column in columns.items()}
    spread = {pp: light_end(model, pp, base.seq) for pp in set(listed["pp"])}
    return tuple(
        ParallelPlan(
            **same,
            **{name: listed[name][row] for name in DEGREES},
            sequence_parallel=bool(listed["sequence_parallel"][row]),
            schedule=names[listed["schedule"][row]],
            recompute=RECOMPUTE[listed["recompute"][row]],
            overlap=OVERLAPS[listed["overlap"][row]],
            order=orders[listed["order"][row]],
            stage_layers=spread[listed["pp"][row]] if listed["ends"][row] == LIGHT_END else (),
        )
        for row in range(rows(columns))
    )
