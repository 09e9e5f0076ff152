"""Activations: tensors that a layer keeps for its backward pass, and those that a stage holds.

They are counted tensor by tensor. For a GPT layer with dropout their sum is ``s b h (34 + 5 a s /
h)`` bytes, formula (1) of arXiv 2205.05198; tensor and sequence parallelism divide it by t (formula
4). Context parallelism divides the sequence before that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from topologies.arrays import IntArray
from workloads.models.model import Model
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.held import most_held
from workloads.training.plan.stage_layers import kinds_of_chunks

ELEMENT_BYTES = 2
"""Bytes of an element of an activation."""
PLANS_KEPT = 64
"""Plans whose activations a layer are cached: all stages of a plan ask for the same ones."""
GATED_KEPT = 3
"""Tensors kept of a gated feed-forward part: both inputs of the activation, and its output."""


def tokens_of(plan: ParallelPlan) -> int:
    """Count the tokens of a microbatch on one rank, before sequence parallelism."""
    return plan.microbatch * plan.local_seq


def layer_activations(
    model: Model, plan: ParallelPlan, *, moe: bool = False, gated: int = GATED_KEPT
) -> int:
    """Size of the activations that one layer keeps of a microbatch on one rank [B].

    Parameters
    ----------
    model : Model
    plan : ParallelPlan
        Under its full recomputation only the layer's input is kept.
    moe : bool
        Whether the layer has experts.
    gated : int
        Tensors kept of a gated feed-forward part, see ``GATED_KEPT``.
    """
    tokens = tokens_of(plan)
    wide = ELEMENT_BYTES * tokens * model.hidden // plan.sp
    if plan.recompute == "full":
        return wide
    masks = tokens * model.hidden // plan.sp if model.dropout else 0
    # Inputs of the norms and of the projections of the mixer and of the feed-forward part.
    halves = (model.mixer != "none") + bool(moe or model.ffn)
    kept = halves * (2 * wide + masks) + _mixer(model, plan, tokens)
    if moe:
        return kept + _experts(model, plan, gated)
    return kept + _inner(model, tokens * model.ffn // plan.tp, gated)


def _mixer(model: Model, plan: ParallelPlan, tokens: int) -> int:
    """Inputs and output of attention, or of a recurrent mixer [B]."""
    if model.mixer == "attention":
        return _heads(model, plan, tokens) + _scores(model, plan, tokens)
    if model.mixer == "recurrence" and model.recurrence:
        columns = model.recurrence.columns + model.recurrence.inner
        return ELEMENT_BYTES * tokens * columns // plan.tp
    return 0


def _heads(model: Model, plan: ParallelPlan, tokens: int) -> int:
    """Queries, keys, values and the output of attention [B]."""
    queries, values = model.query_width // plan.tp, model.value_width // plan.tp
    if model.latent:
        latent = model.latent
        compressed = latent.query_rank + latent.kv_rank + latent.rope_dim
        return ELEMENT_BYTES * (tokens * (2 * queries + 2 * values) + tokens * compressed)
    kv = max(model.kv_heads // plan.tp, 1) * model.head_dim
    return ELEMENT_BYTES * tokens * (queries + 2 * kv + values)


def _inner(model: Model, elements: int, gated: int) -> int:
    """Inputs and output of an activation function over ``elements`` elements [B]."""
    return ELEMENT_BYTES * elements * (gated if model.gated_mlp else 2)


def _experts(model: Model, plan: ParallelPlan, gated: int) -> int:
    """Activations of a layer's experts: sorted copies, inner columns, shared experts [B]."""
    experts = model.experts
    if experts is None:
        return 0
    rows = -(-tokens_of(plan) // plan.tp)
    copies = math.ceil(rows * experts.per_token * plan.expert_load)
    element_bytes = plan.exchange_bytes + ELEMENT_BYTES  # as they came, and as they go back
    moved = math.ceil(element_bytes * copies * model.hidden * plan.expert_tp)
    scores = 2 * 4 * rows * experts.count  # the router's scores and their softmax in fp32
    shared = _inner(model, tokens_of(plan) * experts.shared_ffn // plan.tp, gated)
    return moved + scores + shared + _inner(model, copies * experts.ffn, gated)


def _scores(model: Model, plan: ParallelPlan, tokens: int) -> int:
    """Softmax and dropout of every attention score, or one sum a query of a fused kernel [B]."""
    heads = model.heads // plan.tp
    if plan.attention == "fused" or plan.recompute != "none":
        return 4 * tokens * heads
    # Softmax and its dropped-out copy in half precision, and a mask of one byte.
    score_bytes = 2 * ELEMENT_BYTES + 1 if model.dropout else 2 * ELEMENT_BYTES
    return score_bytes * heads * tokens * plan.seq


def held_activations(
    model: Model, plan: ParallelPlan, stage: int, *, gated: int = GATED_KEPT
) -> int:
    """Return the size of the activations that a stage holds at the worst moment of its passes [B].

    ``gated`` has the same meaning as in :func:`layer_activations`.
    """
    chunks = range(plan.vpp)
    sizes = np.array([chunk_activations(model, plan, stage, chunk, gated) for chunk in chunks])
    return int((_held(plan, stage) * sizes).sum(axis=1).max())


def in_flight(plan: ParallelPlan, stage: int) -> int:
    """Count the microbatches whose activations a stage holds at once, summed over its chunks.

    With GPipe it holds all of them, with 1F1B as many as there are stages from this one to the last
    (arXiv 2104.04473).
    """
    return int(_held(plan, stage).sum(axis=1).max())


def _held(plan: ParallelPlan, stage: int) -> IntArray:
    """Microbatches in flight of each chunk at the worst moments, int64 (moments, chunks)."""
    return most_held(plan.pipeline, plan.pp, stage, plan.microbatches, plan.vpp)


def chunk_activations(model: Model, plan: ParallelPlan, stage: int, chunk: int, gated: int) -> int:
    """Return the activations of one microbatch in one chunk of a stage [B]."""
    number = plan.pipeline.number(plan.pp, stage, chunk)
    layers, sizes = kinds_of_chunks(model, plan)[number], _of_kinds(model, plan, gated)
    kept = sum(count * size for count, size in zip(layers, sizes, strict=True))
    last = number == plan.pp * plan.vpp - 1
    # The last chunk also keeps the input and the output of the final norm.
    return kept + 2 * last * ELEMENT_BYTES * tokens_of(plan) * model.hidden // plan.sp


@lru_cache(maxsize=PLANS_KEPT)
def _of_kinds(model: Model, plan: ParallelPlan, gated: int) -> tuple[int, ...]:
    """Activations of a layer of each kind where the plan recomputes it, then where it does not [B].

    The order is that of :func:`~workloads.training.plan.stage_layers.kinds_of_chunks`.
    """
    recomputed = _each_kind(model, plan, gated)
    if plan.recompute != "full":
        return recomputed + recomputed
    return recomputed + kept_activations(model, plan, gated)


@lru_cache(maxsize=PLANS_KEPT)
def kept_activations(model: Model, plan: ParallelPlan, gated: int) -> tuple[int, ...]:
    """Return the activations of a layer of each kind that full recomputation leaves alone [B]."""
    return _each_kind(model, replace(plan, recompute="selective"), gated)


def _each_kind(model: Model, plan: ParallelPlan, gated: int) -> tuple[int, ...]:
    return tuple(
        layer_activations(model.of_kind(kind), plan, moe=kind.experts, gated=gated)
        for kind in model.kinds
    )
