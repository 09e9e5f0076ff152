"""Layers of the model that each pipeline stage holds, in one or several chunks.

With ``vpp`` chunks a stage, chunk c of stage s is number c · pp + s in order of the model. Under a
schedule that turns at the last stage, every second chunk is number c · pp + pp − 1 − s instead.

Where layers do not divide evenly, some chunks have one layer fewer: first the last chunk, which has
the output layer besides, then the first, which has the embedding, and then the chunks that follow
the first, as early stages hold the most activations. So 126 layers in 64 chunks are 1, 2, …, 2, 1,
as in Megatron-LM when it counts the embedding and the output as a layer each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from topologies.catalogue.catalogue import chip_family
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import IntArray
from topologies.support.errors import InputError
from workloads.kernels.precision import ELEMENT_BYTES
from workloads.models.model import (
    ATTENTION,
    Model,
    beside_size,
    expert_parameters,
    index_size,
    layer_norms,
    layer_parameters,
)
from workloads.training.plan.plan import ORDER, ParallelPlan, nearest
from workloads.training.plan.schedules.registry import pipeline_schedule


@lru_cache(maxsize=1024)
def layer_counts(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, as even as possible."""
    most = -(-layers // chunks)
    shorter = [chunks - 1, *range(chunks - 1)][: chunks * most - layers]
    return tuple(most - (chunk in shorter) for chunk in range(chunks))


def chunk_layers(model: Model, plan: ParallelPlan, stage: int) -> list[IntArray]:
    """Return the layer numbers of each chunk of a stage."""
    first = first_layers(model, plan)
    chunks = (plan.pipeline.number(plan.pp, stage, chunk) for chunk in range(plan.vpp))
    return [np.arange(first[chunk], first[chunk + 1]) for chunk in chunks]


def first_layers(model: Model, plan: ParallelPlan) -> tuple[int, ...]:
    """Return the first layer of each chunk in order of the model, then the number of layers."""
    return (0, *accumulate(_counts(model, plan)))


def _counts(model: Model, plan: ParallelPlan) -> tuple[int, ...]:
    """Layers of every chunk; stated ones that are not all of the model's are refused."""
    if plan.stage_layers and sum(plan.stage_layers) != model.layers:
        raise InputError(
            f"stage_layers sum to {sum(plan.stage_layers)}, but {model.name} has {model.layers} "
            "layers. Correct them or leave them out."
        )
    return plan.stage_layers or even_layers(model, plan.pp * plan.vpp)


def even_layers(model: Model, chunks: int) -> tuple[int, ...]:
    """Return the layers of each chunk, as even as possible, with prediction heads in the last."""
    counts, heads = layer_counts(model.layers, chunks), model.prediction_heads
    if counts[-1] >= heads:
        return counts
    return (*layer_counts(model.layers - heads, chunks - 1), heads)


def layers_by_cost(model: Model, pp: int) -> tuple[int, ...]:
    """Count the layers of stages that take turns until their share of the products is passed."""
    # The output layer counts as well, so that the last stages may be left without a layer
    # (nanotron, ``build_model`` and ``get_block_compute_costs``).
    products = 4 * model.query_width * model.hidden + 3 * model.ffn * model.hidden
    whole = model.layers * products + model.vocab * model.hidden
    counts, stage = [0] * pp, 0
    for layer in range(1, model.layers + 1):
        counts[stage] += 1
        stage += layer * products * pp > whole * (stage + 1)
    return tuple(counts)


@lru_cache(maxsize=1024)
def chunk_numbers(schedule: str, pp: int, vpp: int) -> tuple[IntArray, IntArray]:
    """Number the chunks of all stages in order of the model."""
    # Returns ``number`` (stages, vpp): number in the model of each chunk of each stage. ``stage``
    # (chunks,): stage that holds each chunk of the model.
    pipeline = pipeline_schedule(schedule)
    number = [[pipeline.number(pp, stage, chunk) for chunk in range(vpp)] for stage in range(pp)]
    stage = [pipeline.stage(pp, chunk) for chunk in range(pp * vpp)]
    return np.array(number, np.int64), np.array(stage, np.int64)


def kinds_of_chunks(model: Model, plan: ParallelPlan) -> tuple[tuple[int, ...], ...]:
    """Count the layers of each chunk by kind, and by whether their activations are kept."""
    # Returns, for each chunk in order of the model: the number of layers of each of ``model.kinds``
    # that are recomputed as the plan says, then the number of layers of each kind whose activations
    # are kept, as full recomputation of only every N-th layer leaves them.
    return _kinds_of_chunks(
        model, _counts(model, plan), plan.recompute_every if plan.recompute == "full" else 1
    )


@lru_cache(maxsize=4096)
def _kinds_of_chunks(
    model: Model, counts: tuple[int, ...], every: int
) -> tuple[tuple[int, ...], ...]:
    layers = np.arange(model.layers)
    kept = layers % every > 0
    column = len(model.kinds) * kept + layer_kinds(model, layers)
    # Row n of the table has the layers of each column among the first n layers of the model.
    counted = np.zeros((model.layers + 1, 2 * len(model.kinds)), np.int64)
    counted[1:] = np.cumsum(column[:, None] == np.arange(2 * len(model.kinds)), axis=0)
    first = [0, *accumulate(counts)]
    return tuple(map(tuple, np.diff(counted[first], axis=0).tolist()))


def stage_kinds(model: Model, plan: ParallelPlan, stage: int) -> tuple[int, ...]:
    """Count the layers that a stage holds by kind."""
    chunks, kinds = kinds_of_chunks(model, plan), len(model.kinds)
    held = [chunks[plan.pipeline.number(plan.pp, stage, chunk)] for chunk in range(plan.vpp)]
    return tuple(
        sum(layers[kind] + layers[kinds + kind] for layers in held) for kind in range(kinds)
    )


def unlike_stages(model: Model, plan: ParallelPlan) -> tuple[int, ...]:
    """Return stages of which one needs the most memory, ascending."""
    # If chunks of two stages have as many layers of each kind, recomputed and kept alike, and both
    # stages hold the same of embedding and output layer, the earlier one needs no less, as it holds
    # more microbatches. Where a schedule turns at the last stage, stages that hold more of one
    # chunk hold less of another, so there every stage is one of them.
    if plan.pipeline.turns:
        return tuple(range(plan.pp))
    every = plan.recompute_every if plan.recompute == "full" else 1
    return _unlike_stages(model, _counts(model, plan), plan.pipeline.name, plan.pp, plan.vpp, every)


@lru_cache(maxsize=4096)
def _unlike_stages(
    model: Model, counts: tuple[int, ...], schedule: str, pp: int, vpp: int, every: int
) -> tuple[int, ...]:
    number, stage = chunk_numbers(schedule, pp, vpp)
    kinds = np.array(_kinds_of_chunks(model, counts, every))[number].reshape(pp, -1)
    ends = np.arange(pp)[:, None] == stage[[0, -1]]
    _, first = np.unique(np.concatenate([kinds, ends], axis=1), axis=0, return_index=True)
    return tuple(sorted(first.tolist()))


def end_stages(plan: ParallelPlan) -> tuple[int, int]:
    """Return the stages of the model's first chunk, with the embedding, and last, the output."""
    return 0, plan.pipeline.stage(plan.pp, plan.pp * plan.vpp - 1)


def layer_kinds(model: Model, layers: IntArray) -> IntArray:
    """Return the number of each layer's kind in ``model.kinds``."""
    return _kind_numbers(model)[np.asarray(layers, np.int64)]


@lru_cache(maxsize=64)
def _kind_numbers(model: Model) -> IntArray:
    number = {kind: place for place, kind in enumerate(model.kinds)}
    return np.array([number[kind] for kind in model.each_layer], np.int64)


def is_kept(plan: ParallelPlan, layers: IntArray) -> IntArray:
    """Return 1 for each layer whose activations full recomputation keeps, else 0."""
    between = np.asarray(layers) % plan.recompute_every > 0
    return (between & (plan.recompute == "full")).astype(np.int64)


def stage_layers(model: Model, plan: ParallelPlan) -> int:
    """Count the layers of the pipeline stage that has the most."""
    held = (chunk_layers(model, plan, stage) for stage in range(plan.pp))
    return max(sum(len(chunk) for chunk in chunks) for chunks in held)


# Parameters of a model that one rank holds, with routed experts counted apart from the rest.

WEIGHT_BYTES = 2  # bytes of a parameter in bf16, in mixed precision (arXiv 1710.03740)
GRADIENT_BYTES = 4  # bytes of a gradient, accumulated in fp32
OPTIMIZER_BYTES = {"adamw": 12, "muon": 8, "adafactor": 4, "sgd": 8}
"""Bytes of a parameter's master copy and state in fp32: mean and variance of Adam (arXiv
1910.02054, section 3.1), the momentum of Muon and SGD; Adafactor keeps a number for each row and
column, which is left out (arXiv 1804.04235)."""


def optimizer_bytes(plan: ParallelPlan, parameters: int, edges: int) -> int:
    """Bytes of master copy and optimizer state of parameters, of which ``edges`` are of ends."""
    of_edges = OPTIMIZER_BYTES["adamw" if plan.optimizer == "muon" else plan.optimizer]
    return OPTIMIZER_BYTES[plan.optimizer] * (parameters - edges) + of_edges * edges


def layer_weight_bytes(plan: ParallelPlan) -> float:
    """Bytes of a parameter of a layer in a rank's memory [B]."""
    # Parameters that adapters leave frozen are never updated, so they are stored only in the
    # precision of their products, as NeMo does; embedding and output layer stay in bf16.
    return ELEMENT_BYTES[plan.precision] if plan.lora_rank else WEIGHT_BYTES


class Share(NamedTuple):
    """Parameters that a rank holds of a layer, a stage or a model."""

    dense: int  # parameters that dp and cp replicate
    experts: int  # parameters of routed experts, which expert parallelism divides

    @property
    def total(self) -> int:
        """Dense parameters and parameters of experts."""
        return self.dense + self.experts


def total(shares: Sequence[Share]) -> Share:
    """Sum of several shares."""
    return Share(sum(share.dense for share in shares), sum(share.experts for share in shares))


def layer_share(model: Model, plan: ParallelPlan, *, moe: bool = False) -> Share:
    """Parameters of one layer on one rank."""
    # Norms, routers and the down-projections of latent attention are on every rank of a
    # tensor-parallel group, and so are key-value heads where tp exceeds them.
    return _layer_share(model, plan.tp, plan.ep * plan.expert_tp, moe=moe)


def _layer_share(model: Model, tp: int, parts: int, *, moe: bool) -> Share:
    """Parameters of one layer on one of ``tp`` ranks, with its experts divided into ``parts``."""
    experts = model.experts.count * expert_parameters(model) if moe and model.experts else 0
    whole = _undivided(model, moe=moe)
    split = part(layer_parameters(model, moe=moe) - experts - whole, tp)
    replicated = 0  # parameters of key-value heads beyond an equal part
    if model.mixer in ATTENTION and not (model.latent or model.low_rank):
        copies = max(0, tp - model.kv_heads)
        replicated = model.kv_products * copies * model.head_dim * model.hidden // tp
    return Share(split + whole + replicated, part(experts, parts))


def _undivided(model: Model, *, moe: bool) -> int:
    """Parameters of a layer that tensor parallelism does not divide."""
    whole = layer_norms(model, moe=moe) * model.norm_parameters
    if model.latent and model.mixer in ATTENTION:
        latent = model.latent
        # The down-projections of queries, and of keys and values, each with the norm behind it.
        whole += latent.query_rank * (model.hidden + 1) + latent.kv_rank
        whole += model.hidden * (latent.kv_rank + latent.rope_dim)
    if model.low_rank and model.mixer in ATTENTION:
        whole += model.low_rank.queries * (model.hidden + 1) + model.key_columns * model.hidden
    whole += sum(index_size(model)) + sum(beside_size(model))
    if moe and model.experts:
        experts = model.experts
        router = (experts.count + experts.idle) * (model.hidden + experts.router_bias)
        whole += router + model.hidden * (experts.shared_gate + 2 * experts.latent)
    return whole


def edge_share(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Parameters outside of layers on a rank of a stage: embedding, final norm, output layer."""
    # Tied embeddings are one table; where the model's first and last chunk lie on different stages,
    # each of the two has a copy. Prediction heads look tokens up too, so the last stage has one.
    edges, (first, last) = 0, end_stages(plan)
    if stage == first:
        edges += part(model.embedding_parameters, plan.tp)
    if stage == last:
        untied = not model.tied_embeddings
        copied = model.tied_embeddings and first != last
        edges += model.norm_parameters
        edges += part(model.vocab * model.hidden, plan.tp) * (untied or copied)
    if stage == last and model.prediction_heads:
        looked_up = part(model.embedding_parameters, plan.tp) * (first != last)
        edges += looked_up * (not model.tied_embeddings)
        edges += part(model.prediction_parameters, plan.tp)
    return edges


def stage_share(model: Model, plan: ParallelPlan, stage: int) -> Share:
    """Parameters that a rank of a stage holds."""
    held = zip(stage_kinds(model, plan, stage), kind_shares(model, plan), strict=True)
    shares = [Share(count * each.dense, count * each.experts) for count, each in held]
    return total([*shares, Share(edge_share(model, plan, stage), 0)])


def kind_shares(model: Model, plan: ParallelPlan) -> tuple[Share, ...]:
    """Parameters of a layer of each of ``model.kinds`` on one rank."""
    return _kind_shares(model, plan.tp, plan.ep * plan.expert_tp)


@lru_cache(maxsize=1024)
def _kind_shares(model: Model, tp: int, parts: int) -> tuple[Share, ...]:
    return tuple(
        _layer_share(model.of_kind(kind), tp, parts, moe=kind.experts) for kind in model.kinds
    )


def part(size: int, parts: int) -> int:
    """Size of the largest part when a size is divided as evenly as possible."""
    return -(-size // parts)


# Checks that a plan suits a model and a cluster, and the fields of it that change nothing.

RUNTIME = ParallelPlan().runtime  # runtime of a plan that states none
CHUNKS_WITHOUT_LAYERS = 2
"""Chunks that need no layer: the first, with the embedding, and the last, with the output layer."""


def check_model(plan: ParallelPlan, model: Model) -> None:
    """Refuse a plan whose degrees do not divide the sizes of the model."""
    _check_tp(plan, model)
    if plan.cp > 1:
        # Each rank takes one part from the beginning of the sequence and one from its end, as late
        # tokens see more keys than early ones.
        _check_divides("2 × cp", 2 * plan.cp, "tokens of a sequence", plan.seq, model)
    if plan.cp > 1 and plan.attention == "unfused":
        raise InputError(f"cp {plan.cp} needs fused attention. Use --attention fused or cp 1.")
    _check_model_experts(plan, model)
    _check_heads(plan, model)
    if plan.cp > 1 and model.low_rank:
        raise InputError(
            f"cp {plan.cp}: a key of {model.name} stands for tokens of several ranks, and their "
            "exchange is not modelled. Use cp 1."
        )
    if plan.pp > model.most_stages == 1:
        raise InputError(
            f"pp {plan.pp}: layers of {model.name} read embeddings or keys of the first layers, "
            "which no stage sends on. Use pp 1."
        )
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
    _counts(model, plan)


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
    sizes = {"attention heads": math.gcd(*(alike.heads for alike in model.by_heads))}
    if model.moe_layers < model.layers:
        sizes["feed-forward columns"] = model.ffn
    if model.low_rank:
        sizes["groups of heads"] = model.low_rank.groups
    if plan.sequence_parallel:
        sizes["tokens of a sequence (sequence parallel)"] = plan.local_seq
    mistakes = [
        f"{size:,} {what} of {model.name} are not divisible by tp {plan.tp}"
        for what, size in sizes.items()
        if size % plan.tp
    ]
    # With more ranks than key-value heads, each head is copied to as many ranks.
    heads = [alike.kv_heads for alike in model.by_heads]
    mistakes += [
        f"tp {plan.tp} neither divides the {count} key-value heads of {model.name} nor is a "
        "multiple of them"
        for count in heads
        if count % plan.tp and plan.tp % count
    ]
    if mistakes:
        near = nearest(plan.tp, math.gcd(*sizes.values()), min(heads))
        raise InputError(f"{mistakes[0]}. Use tp {near}.")


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
    """Refuse a Trainium runtime on a machine of another chip, whose steps it would not change."""
    if plan.runtime != RUNTIME and not chip_family(cluster.chip, cluster.catalogue).is_neuron:
        raise InputError(
            f"runtime {plan.runtime!r} is a way to issue work to Trainium, and {cluster.name} has "
            f"{cluster.chip}. Leave --runtime out."
        )


def check_ranks(plan: ParallelPlan, chips: int) -> None:
    """Refuse a plan of other ranks than the cluster has, unless it leaves some of one chip idle."""
    room = chips * plan.ranks_per_chip
    if plan.ranks == room or (chips == 1 and plan.ranks < room):
        return
    each = f" of {plan.ranks_per_chip} ranks" if plan.ranks_per_chip > 1 else ""
    degrees = f"dp {plan.dp} × tp {plan.tp} × pp {plan.pp}" + (f" × cp {plan.cp}" * (plan.cp > 1))
    fits = room * plan.dp // plan.ranks
    wanted = -(-plan.ranks // plan.ranks_per_chip)
    verb = "Reduce" if plan.ranks > room else "Raise"
    remedy = f"{verb} dp to {fits}" if fits and fits != plan.dp else "Change tp or pp"
    held = f"{chips:,} chip{'s'[: chips > 1]}{each}"
    more = f" or use {wanted:,} chip{'s'[: wanted > 1]}" if wanted != chips else ""
    raise InputError(
        f"{degrees} = {plan.ranks:,} ranks, but the cluster has {held}. {remedy}{more}."
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
        shared = math.gcd(replica, room)  # what a model is divided by, its divisors divide it by
        near = shared if shared > 1 else nearest(replica, room)
        raise InputError(
            f"tp {tp} × pp {pp} × cp {cp} = {replica:,} ranks of one replica do not divide the "
            f"{room:,} ranks of the cluster. Use degrees whose product divides them, such as "
            f"{near:,}, or state dp."
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
    skew = "ep is 1" if plan.ep == 1 else ""
    if plan.capacity_factor:
        skew = "the capacity factor sets the load of experts"
    lone = "" if model.experts else "the model has no experts"
    even = plan.stage_layers == even_layers(model, plan.pp * plan.vpp)
    layers = "layers are divided so by default" if even else ""
    usual = f"{DEFAULTS.schedule} with vpp {plan.vpp} has the same passes"
    usual = usual if plan.pp > 1 else "pp is 1"
    reasons = {
        **_of_replicas(plan),
        "etp": lone or (f"tp is {plan.tp} as well" if plan.etp == plan.tp else ""),
        "routing_skew": lone or skew,
        "schedule": usual if _has_usual_passes(plan) else "",
        "stage_layers": "pp is 1" if plan.pp == 1 else layers,
        "cp_exchange": "cp is 1" if plan.cp == 1 else "",
        "order": _of_the_order(plan),
        "overlap": "tp, pp and ep are 1" if overlaps_no_more else "",
        "recompute": "attention is fused" if keeps_no_more else "",
        "recompute_every": f"recompute is {plan.recompute}" if plan.recompute != "full" else "",
        "sequence_parallel": "tp is 1" if plan.tp == 1 else "",
        "sample_tokens": "a sample fills its sequence" if plan.context == plan.seq else "",
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


def _has_usual_passes(plan: ParallelPlan) -> bool:
    """Return whether every stage has the passes of the default schedule, in the same order."""
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
