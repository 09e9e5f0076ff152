"""Fields of a plan that change nothing, because of its other fields or of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workloads.models.model import Model
from workloads.training.plan.fields import ORDER
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stage_layers import layer_counts

DEFAULTS = ParallelPlan()


def idle_fields(plan: ParallelPlan, model: Model) -> dict[str, str]:
    """Return each stated field that is no default and changes nothing, and the reason."""
    # Such a field is no mistake, as sweeps and searches vary the degree that it belongs to, but who
    # compares two plans by it should know.
    # Overlap ``all`` hides no more than ``dp`` where no other degree is above 1; fused kernels keep
    # no activations that selective recomputation would leave out.
    overlaps_no_more = plan.overlap == "all" and plan.tp == plan.pp == plan.ep == 1
    keeps_no_more = plan.recompute == "none" and plan.attention == "fused"
    reasons = {
        **_of_experts(plan, model),
        **_of_replicas(plan),
        **_of_the_pipeline(plan, model),
        "cp_exchange": "cp is 1" if plan.cp == 1 else "",
        "order": _of_the_order(plan),
        "overlap": "tp, pp and ep are 1" if overlaps_no_more else "",
        "recompute": "attention is fused" if keeps_no_more else "",
        "recompute_every": f"recompute is {plan.recompute}" if plan.recompute != "full" else "",
        "sequence_parallel": "tp is 1" if plan.tp == 1 else "",
    }
    return {
        name: reason
        for name, reason in sorted(reasons.items())
        if reason and name not in plan.assumed and getattr(plan, name) != getattr(DEFAULTS, name)
    }


def idle_fields_in_all(plans: Sequence[ParallelPlan], model: Model) -> dict[str, str]:
    """Return each field that changes nothing in any of several plans, with the first reason."""
    first, *others = (idle_fields(plan, model) for plan in plans)
    return {name: why for name, why in first.items() if all(name in idle for idle in others)}


def _of_experts(plan: ParallelPlan, model: Model) -> dict[str, str]:
    if model.experts is None:
        return dict.fromkeys(("etp", "routing_skew"), "the model has no experts")
    skew = "ep is 1" if plan.ep == 1 else ""
    if plan.capacity_factor:
        skew = "the capacity factor sets the load of experts"
    return {"etp": f"tp is {plan.tp} as well" if plan.etp == plan.tp else "", "routing_skew": skew}


def _of_replicas(plan: ParallelPlan) -> dict[str, str]:
    alone = "dp and cp are 1" if plan.replicas == plan.expert_replicas == 1 else ""
    bucket = "overlap is none" if plan.overlap == "none" else ""
    if plan.sharding == 3:
        bucket = "under ZeRO-3 each layer is a bucket"
    # An interval is that of sharded training under ZeRO-3, whether states stay whole or not.
    unsharded = plan.zero == 2 and not plan.reshard
    return {
        "bucket_bytes": alone or bucket,
        "reshard": f"zero is {plan.zero}" if plan.zero < 2 else "",
        "zero": "without resharding it acts as ZeRO-1" if unsharded else "",
    }


def _of_the_pipeline(plan: ParallelPlan, model: Model) -> dict[str, str]:
    usual = f"{DEFAULTS.schedule} with vpp {plan.vpp} has the same passes"
    even = plan.stage_layers == layer_counts(model.layers, plan.pp * plan.vpp)
    layers = "layers are divided so by default" if even else ""
    return {
        "schedule": usual if _has_usual_passes(plan) else "",
        "stage_layers": "pp is 1" if plan.pp == 1 else layers,
    }


def _has_usual_passes(plan: ParallelPlan) -> bool:
    """Return whether every stage has the passes of the default schedule, in the same order."""
    # With one stage that is not so for each schedule: gpipe holds the activations of all
    # microbatches, and others compute gradients of weights in passes of their own.
    schedule, usual = plan.pipeline, DEFAULTS.pipeline
    if plan.vpp not in usual.chunks_allowed or schedule.pairs_passes != usual.pairs_passes:
        return False
    sizes = [(plan.pp, stage, plan.microbatches, plan.vpp) for stage in range(plan.pp)]
    return all(
        np.array_equal(column, same)
        for stage in sizes
        for column, same in zip(schedule.passes(*stage), usual.passes(*stage), strict=True)
    )


def _of_the_order(plan: ParallelPlan) -> str:
    """Reason of an order of axes; empty for one that puts ranks elsewhere."""
    placed, usual = (
        [axis for axis in order if getattr(plan, axis) > 1] for order in (plan.order, ORDER)
    )
    if placed != usual:
        return ""
    axes = f"{' and '.join(placed)} keep their order, and " if len(placed) > 1 else ""
    return f"{axes}an axis of one rank has no order"
