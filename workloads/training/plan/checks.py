"""Checks that a plan suits a model and a cluster, and the fields of it that change nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from topologies.catalogue.catalogue import chip_family
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.plan.plan import ORDER, ParallelPlan, nearest
from workloads.training.plan.stages import even_layers

RUNTIME = ParallelPlan().runtime  # runtime of a plan that states none
CHUNKS_WITHOUT_LAYERS = 2
"""Chunks that need no layer: the first, with the embedding, and the last, with the output layer."""


def check_model(plan: ParallelPlan, model: Model) -> None:
    """Refuse a plan whose degrees do not divide the sizes of the model."""
    _check_tp(plan, model)
    _check_cp(plan, model)
    _check_model_experts(plan, model)
    _check_heads(plan, model)
    stages = plan.pp * plan.vpp
    if stages > model.layers + CHUNKS_WITHOUT_LAYERS:
        fits = plan.vpp > 1 and plan.pp <= model.layers
        remedy = (
            f"vpp {model.layers // plan.pp}" if fits else f"pp {nearest(plan.pp, model.layers)}"
        )
        raise InputError(
            f"pp {plan.pp} × vpp {plan.vpp} = {stages} stages, but {model.name} has "
            f"{model.layers} layers. Use {remedy} or less."
        )
    if plan.stage_layers and sum(plan.stage_layers) != model.layers:
        raise InputError(
            f"stage_layers sum to {sum(plan.stage_layers)}, but {model.name} has {model.layers} "
            "layers. Correct them or leave them out."
        )


def _check_heads(plan: ParallelPlan, model: Model) -> None:
    """Refuse prediction heads that are not trained, or that lie before the last chunk."""
    heads, layers = model.prediction_heads, plan.stage_layers
    if heads and (plan.lora_rank or plan.train_only):
        part = f"lora_rank {plan.lora_rank}" if plan.lora_rank else f"train_only {plan.train_only}"
        raise InputError(
            f"{heads} prediction heads with {part}, which leaves them frozen. Leave them out."
        )
    if layers and layers[-1] < heads:
        raise InputError(
            f"stage_layers has {layers[-1]} layers in the last chunk, which holds the {heads} "
            f"prediction heads of {model.name}. Use {heads} or more."
        )


def _check_tp(plan: ParallelPlan, model: Model) -> None:
    sizes = {"attention heads": model.heads}
    if model.moe_layers < model.layers:
        sizes["feed-forward columns"] = model.ffn
    if plan.sequence_parallel:
        sizes["tokens of a sequence (sequence parallel)"] = plan.local_seq
    mistakes = [
        f"{size:,} {what} of {model.name} are not divisible by tp {plan.tp}"
        for what, size in sizes.items()
        if size % plan.tp
    ]
    # With more ranks than key-value heads, each head is copied to as many ranks.
    if model.kv_heads % plan.tp and plan.tp % model.kv_heads:
        mistakes.append(
            f"tp {plan.tp} neither divides the {model.kv_heads} key-value heads of {model.name} "
            "nor is a multiple of them"
        )
    if mistakes:
        near = nearest(plan.tp, math.gcd(*sizes.values()), model.kv_heads)
        raise InputError(f"{mistakes[0]}. Use tp {near}.")


def _check_cp(plan: ParallelPlan, model: Model) -> None:
    """Refuse a context-parallel degree that does not cut a causal sequence into equal work."""
    if plan.cp == 1:
        return
    # Each rank takes one part from the beginning of the sequence and one from its end, as late
    # tokens see more keys than early ones.
    _check_divides("2 × cp", 2 * plan.cp, "tokens of a sequence", plan.seq, model)
    if plan.attention == "unfused":
        raise InputError(f"cp {plan.cp} needs fused attention. Use --attention fused or cp 1.")


def _check_model_experts(plan: ParallelPlan, model: Model) -> None:
    experts = model.experts
    if experts is None:
        if plan.ep > 1:
            raise InputError(f"ep {plan.ep} divides experts, but {model.name} has none. Use ep 1.")
        if plan.capacity_factor:
            raise InputError(
                f"capacity factor {plan.capacity_factor:g} is the room of experts, but "
                f"{model.name} has none. Leave it out."
            )
        return
    _check_divides("ep", plan.ep, "experts of a layer", experts.count, model)
    _check_divides("etp", plan.expert_tp, "columns of an expert", experts.ffn, model)
    _check_divides("tp", plan.tp, "columns of the shared expert", experts.shared_ffn, model)


def _check_divides(name: str, degree: int, what: str, size: int, model: Model) -> None:
    if size % degree:
        raise InputError(
            f"{size:,} {what} of {model.name} are not divisible by {name} {degree}. "
            f"Use {name} {nearest(degree, size)}."
        )


def check_runtime(plan: ParallelPlan, cluster: Cluster) -> None:
    """Refuse a Trainium runtime on a machine of another chip, whose steps it would not change.

    >>> from topologies.clusters.names import cluster
    >>> check_runtime(ParallelPlan(runtime="xla"), cluster("dgx-h100"))
    Traceback (most recent call last):
    topologies.errors.InputError: runtime 'xla' is a way to issue work to Trainium, and dgx-h100 \
has h100. Leave --runtime out.
    """
    if plan.runtime != RUNTIME and not chip_family(cluster.chip, cluster.catalogue).is_neuron:
        raise InputError(
            f"runtime {plan.runtime!r} is a way to issue work to Trainium, and {cluster.name} has "
            f"{cluster.chip}. Leave --runtime out."
        )


def check_ranks(plan: ParallelPlan, chips: int) -> None:
    """Refuse a plan whose degrees do not multiply to the ranks of the cluster."""
    room = chips * plan.ranks_per_chip
    if plan.ranks == room:
        return
    each = f" of {plan.ranks_per_chip} ranks" if plan.ranks_per_chip > 1 else ""
    degrees = f"dp {plan.dp} × tp {plan.tp} × pp {plan.pp}" + (f" × cp {plan.cp}" * (plan.cp > 1))
    fits = room * plan.dp // plan.ranks
    wanted = -(-plan.ranks // plan.ranks_per_chip)
    verb = "Reduce" if plan.ranks > room else "Raise"
    remedy = f"{verb} dp to {fits}" if fits and fits != plan.dp else "Change tp or pp"
    raise InputError(
        f"{degrees} = {plan.ranks:,} ranks, but the cluster has {chips:,} chips{each}. "
        f"{remedy} or use {wanted:,} chips."
    )


def check_chips(count: int, cluster: Cluster) -> None:
    """Refuse a number of chips that a cluster does not have."""
    if isinstance(count, bool) or not 1 <= count <= cluster.chips:
        raise InputError(
            f"chips {count!r} must be a whole number from 1 to the {cluster.chips:,} of "
            f"{cluster.name}. Correct it."
        )


def filling_dp(tp: int, pp: int, cp: int, chips: int, ranks_per_chip: int) -> int:
    """Data-parallel degree that fills a cluster."""
    room, replica = chips * ranks_per_chip, tp * pp * cp
    if replica > room or room % replica:
        near = nearest(replica, room)
        raise InputError(
            f"tp {tp} × pp {pp} × cp {cp} = {replica:,} ranks of one replica do not divide the "
            f"{room:,} ranks of the cluster. Use a product of {near:,}, or state dp."
        )
    return room // replica


# Fields of a plan that change nothing, because of its other fields or of the model.

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
    even = plan.stage_layers == even_layers(model, plan.pp * plan.vpp)
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
