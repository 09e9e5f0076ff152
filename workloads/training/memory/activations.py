"""Activations: tensors that a layer keeps for its backward pass, and those that a stage holds.

They are counted tensor by tensor. For a GPT layer with dropout their sum is ``s b h (34 + 5 a s /
h)`` bytes, formula (1) of arXiv 2205.05198; tensor and sequence parallelism divide it by t (formula
4). Context parallelism divides the sequence before that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from topologies.arrays import IntArray
from topologies.catalogue.catalogue import Catalogue
from workloads.models.model import Model
from workloads.training.layers.adapters import adapted
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.held import most_held
from workloads.training.plan.stage_layers import kinds_of_chunks

ELEMENT_BYTES = 2  # bytes of an element of an activation
PLANS_KEPT = 64
"""Plans whose activations a layer are cached: all stages of a plan ask for the same ones."""
FUSED_GATE = 3
"""Tensors that a fused gate keeps: both inputs of the activation function, and their product."""


class Stack(NamedTuple):
    """Memory that a training stack uses: quantities of the catalogue's part ``training``."""

    # Tensors kept of a gated feed-forward part: both inputs of the activation function and its
    # output; 4 with the activated gate, 2 where the output is computed again, 1 with inputs in fp8
    gated_kept: int = FUSED_GATE
    norms_kept: int = 1  # tensors of a norm beside its input; 0 where its output is computed again
    # 1 for the queries, keys and values of latent attention; 0 where they are computed again
    latent_kept: int = 1
    fp8_input_bytes: int = 1  # bytes of an element of the input of a product in fp8
    # 1 for what experts return to the ranks of their tokens; 0 where routing weights are applied
    # before
    returned_kept: int = 1
    # 1 for inputs of layers that are recomputed; 0 where they move to the host's memory
    layer_inputs_kept: int = 1
    optimizer_bytes: int = 12  # bytes of the optimizer's state of a parameter
    # gradient_bytes, gradient_copy_bytes: bytes of a gradient as it is summed, and of a copy beside
    # the sum
    gradient_bytes: int = 4
    gradient_copy_bytes: int = 0
    # loss_bytes, loss_gathered: bytes of a logit at its peak; 1 where each rank has the whole
    # vocabulary's, else 0
    loss_bytes: int = 8
    loss_gathered: int = 0
    # Free memory that the allocator cannot use, over activations and buffers
    fragmentation: float = 0.0
    runtime_bytes: int = 0  # memory of a chip outside of the allocator [B]


def stack_of(catalogue: Catalogue, end: Literal["value", "low", "high"] = "value") -> Stack:
    """Return the stack of a catalogue, or one end of the range of each of its quantities."""
    entries = (catalogue.entry("training", name) for name in Stack._fields)
    stated = ((getattr(entry, end), entry.value) for entry in entries)
    numbers = (value if number is None else number for number, value in stated)
    return Stack._make(number if number % 1 else int(number) for number in numbers)


def tokens_of(plan: ParallelPlan) -> int:
    """Count the tokens of a microbatch on one rank, before sequence parallelism."""
    return plan.microbatch * plan.local_seq


def layer_activations(
    model: Model, plan: ParallelPlan, *, moe: bool = False, stack: Stack = Stack()
) -> int:
    """Size of the activations that one layer keeps of a microbatch on one rank [B]."""
    tokens = tokens_of(plan)
    elements = tokens * model.hidden // plan.sp
    if plan.recompute == "full":
        return ELEMENT_BYTES * elements * stack.layer_inputs_kept
    masks = elements if model.dropout else 0
    # Inputs of the norms, and of the projections of the mixer and of the feed-forward part.
    halves = [name for name, has in (
        ("attention", model.mixer != "none"), ("mlp", moe or model.ffn)) if has]  # fmt: skip
    size = len(halves) * (ELEMENT_BYTES * elements + masks) + _mixer(model, plan, tokens, stack)
    for half in halves:
        if stack.norms_kept:
            more = ELEMENT_BYTES * (stack.norms_kept - 1)
            size += (more + _input_bytes(plan, half, stack)) * elements
    if moe:
        return size + _experts(model, plan, stack)
    return size + _inner(model, plan, tokens * model.ffn // plan.tp, stack)


def _input_bytes(plan: ParallelPlan, half: str, stack: Stack) -> int:
    """Bytes kept of an element of the input of a product of ``attention`` or ``mlp`` [B]."""
    # A frozen product needs its input only for an adapter.
    if plan.lora_rank and not adapted(plan, half):
        return 0
    return ELEMENT_BYTES if plan.precision == "bf16" else stack.fp8_input_bytes


def _mixer(model: Model, plan: ParallelPlan, tokens: int, stack: Stack) -> int:
    """Inputs and output of attention, or of a recurrent mixer [B]."""
    if model.mixer == "attention":
        return _heads(model, plan, tokens, stack) + _scores(model, plan, tokens)
    if model.mixer == "recurrence" and model.recurrence:
        columns = model.recurrence.columns + model.recurrence.inner
        return ELEMENT_BYTES * tokens * columns // plan.tp
    return 0


def _heads(model: Model, plan: ParallelPlan, tokens: int, stack: Stack) -> int:
    """Queries, keys, values and the output of attention, also as cast for the next product [B]."""
    queries, values = model.query_width // plan.tp, model.value_width // plan.tp
    size = ELEMENT_BYTES * tokens * values
    if plan.precision != "bf16" and stack.fp8_input_bytes < ELEMENT_BYTES:
        size += _input_bytes(plan, "attention", stack) * tokens * values
    if model.latent:
        latent = model.latent
        compressed = latent.query_rank + latent.kv_rank + latent.rope_dim
        return size + ELEMENT_BYTES * tokens * (
            compressed + stack.latent_kept * (2 * queries + values)
        )
    kv = max(model.kv_heads // plan.tp, 1) * model.head_dim
    return size + ELEMENT_BYTES * tokens * (queries + 2 * kv)


def _inner(model: Model, plan: ParallelPlan, elements: int, stack: Stack) -> int:
    """Inputs and output of an activation function over ``elements`` elements [B]."""
    each = 1 if stack.gated_kept == 1 else ELEMENT_BYTES
    size = each * (2 if model.gated_mlp else 1)
    if stack.gated_kept >= FUSED_GATE:
        size += _input_bytes(plan, "mlp", stack)
        size += ELEMENT_BYTES * (stack.gated_kept - FUSED_GATE) * model.gated_mlp
    return size * elements


def _experts(model: Model, plan: ParallelPlan, stack: Stack) -> int:
    """Activations of a layer's experts: sorted copies, inner columns, shared experts [B]."""
    experts = model.experts
    if experts is None:
        return 0
    rows = -(-tokens_of(plan) // plan.tp)
    copies = math.ceil(rows * experts.per_token * plan.expert_load)
    came = min(plan.exchange_bytes, _input_bytes(plan, "mlp", stack))
    element_bytes = came + ELEMENT_BYTES * stack.returned_kept
    moved = math.ceil(element_bytes * copies * model.hidden * plan.expert_tp)
    scores = 2 * 4 * rows * experts.count  # the router's scores and their softmax in fp32
    shared = _inner(model, plan, tokens_of(plan) * experts.shared_ffn // plan.tp, stack)
    return moved + scores + shared + _inner(model, plan, copies * experts.ffn, stack)


def _scores(model: Model, plan: ParallelPlan, tokens: int) -> int:
    """Softmax and dropout of every attention score, or one sum a query of a fused kernel [B]."""
    heads = model.heads // plan.tp
    if plan.attention == "fused" or plan.recompute != "none":
        return 4 * tokens * heads
    # Softmax and its dropped-out copy in half precision, and a mask of one byte.
    score_bytes = 2 * ELEMENT_BYTES + 1 if model.dropout else 2 * ELEMENT_BYTES
    return score_bytes * heads * tokens * plan.seq


def held_activations(model: Model, plan: ParallelPlan, stage: int, stack: Stack = Stack()) -> int:
    """Return the size of the activations that a stage holds at the worst moment of its passes [B].

    ``stack`` has the same meaning as in :func:`layer_activations`.
    """
    chunks = range(plan.vpp)
    sizes = np.array([chunk_activations(model, plan, stage, chunk, stack) for chunk in chunks])
    return int((_held(plan, stage) * sizes).sum(axis=1).max())


def in_flight(plan: ParallelPlan, stage: int) -> int:
    """Count the microbatches whose activations a stage holds at once, summed over its chunks."""
    # With GPipe it holds all of them, with 1F1B as many as there are stages from this one to the
    # last (arXiv 2104.04473).
    return int(_held(plan, stage).sum(axis=1).max())


def _held(plan: ParallelPlan, stage: int) -> IntArray:
    """Microbatches in flight of each chunk at the worst moments, int64 (moments, chunks)."""
    return most_held(plan.pipeline, plan.pp, stage, plan.microbatches, plan.vpp)


def chunk_activations(
    model: Model, plan: ParallelPlan, stage: int, chunk: int, stack: Stack
) -> int:
    """Return the activations of one microbatch in one chunk of a stage [B]."""
    number = plan.pipeline.number(plan.pp, stage, chunk)
    layers, sizes = kinds_of_chunks(model, plan)[number], _of_kinds(model, plan, stack)
    size = sum(count * each for count, each in zip(layers, sizes, strict=True))
    last = number == plan.pp * plan.vpp - 1
    # The last chunk also keeps the input and the output of the final norm.
    return size + 2 * last * ELEMENT_BYTES * tokens_of(plan) * model.hidden // plan.sp


@lru_cache(maxsize=PLANS_KEPT)
def _of_kinds(model: Model, plan: ParallelPlan, stack: Stack) -> tuple[int, ...]:
    """Activations of a layer of each kind where the plan recomputes it, then where it does not [B].

    The order is that of :func:`~workloads.training.plan.stage_layers.kinds_of_chunks`.
    """
    recomputed = _each_kind(model, plan, stack)
    if plan.recompute != "full":
        return recomputed + recomputed
    return recomputed + kept_activations(model, plan, stack)


@lru_cache(maxsize=PLANS_KEPT)
def kept_activations(model: Model, plan: ParallelPlan, stack: Stack) -> tuple[int, ...]:
    """Return the activations of a layer of each kind that full recomputation leaves alone [B]."""
    return _each_kind(model, replace(plan, recompute="selective"), stack)


def _each_kind(model: Model, plan: ParallelPlan, stack: Stack) -> tuple[int, ...]:
    return tuple(
        layer_activations(model.of_kind(kind), plan, moe=kind.experts, stack=stack)
        for kind in model.kinds
    )
