"""Checks that a plan suits a model and a cluster."""

from __future__ import annotations

import math

from topologies.catalogue.families import chip_family
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.plan.fields import nearest
from workloads.training.plan.plan import ParallelPlan

RUNTIME = ParallelPlan().runtime  # runtime of a plan that states none
CHUNKS_WITHOUT_LAYERS = 2
"""Chunks that need no layer: the first, with the embedding, and the last, with the output layer."""


def check_model(plan: ParallelPlan, model: Model) -> None:
    """Refuse a plan whose degrees do not divide the sizes of the model."""
    _check_tp(plan, model)
    _check_cp(plan, model)
    _check_model_experts(plan, model)
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
