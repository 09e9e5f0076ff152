"""Memory of one rank by part, and the check that a plan fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from topologies.catalogue.catalogue import Catalogue, usable_hbm_bytes
from topologies.support.errors import InputError
from workloads.models.model import ATTENTION, RECURRENCE, Model
from workloads.training.layers.adapters import adapted, trained_share, whole
from workloads.training.layers.feed_forward import fed_again
from workloads.training.layers.replicas import sharded
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.held import most_held
from workloads.training.plan.schedules.registry import schedule_of_chunks
from workloads.training.plan.stages import (
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    Share,
    check_model,
    edge_share,
    end_stages,
    kind_shares,
    kinds_of_chunks,
    layer_weight_bytes,
    layers_by_cost,
    optimizer_bytes,
    part,
    stage_kinds,
    stage_share,
    unlike_stages,
)

# Activations: tensors that a layer keeps for its backward pass, and those that a stage holds.
# They are counted tensor by tensor. For a GPT layer with dropout their sum is ``s b h (34 + 5 a s /
# h)`` bytes, formula (1) of arXiv 2205.05198; tensor and sequence parallelism divide it by t
# (formula 4). Context parallelism divides the sequence before that.

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
    # length of a sequence from which selective recomputation runs feed-forward parts again in
    # pipelines; 0 for none
    feed_again_tokens: int = 0
    # 1 where selective recomputation keeps attention's projections and runs the rest again
    selective_keeps: int = 0
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
    elements, input_bytes = tokens * model.hidden // plan.sp, 0
    if model.layer_input:  # what the layer takes of the embedding, whichever way it runs
        input_bytes = ELEMENT_BYTES * tokens * model.layer_input.width
    copies = model.streams.count if model.streams else 1
    if plan.recompute == "full":
        return copies * ELEMENT_BYTES * elements * stack.layer_inputs_kept + input_bytes
    masks = elements if model.dropout else 0
    # Inputs of the norms, and of the projections of the mixer and of the feed-forward part.
    halves = [name for name, has in (
        ("attention", model.mixer != "none"), ("mlp", moe or model.ffn)) if has]  # fmt: skip
    size = len(halves) * (ELEMENT_BYTES * elements + masks) + _mixer(model, plan, tokens, stack)
    size += 2 * (copies - 1) * ELEMENT_BYTES * elements  # before a layer's mixture and after it
    size += input_bytes and input_bytes + 2 * input_bytes // plan.sp + 2 * ELEMENT_BYTES * elements
    if _runs_again(plan, stack):
        # The result of attention is computed again.
        result = model.value_width // plan.tp if model.mixer in ATTENTION else 0
        return size - ELEMENT_BYTES * tokens * result
    for half in halves:
        if stack.norms_kept:
            more = ELEMENT_BYTES * (stack.norms_kept - 1)
            size += (more + _input_bytes(plan, half, stack)) * elements
    if moe:
        return size + _experts(model, plan, stack)
    if fed_again(plan, stack.feed_again_tokens):
        return size
    return size + _inner(model, plan, tokens * model.ffn // plan.tp, stack)


def _runs_again(plan: ParallelPlan, stack: Stack) -> bool:
    """Return whether most of a layer runs again: all, or all but attention's projections."""
    return plan.recompute == "full" or (plan.recompute == "selective" and stack.selective_keeps > 0)


def _input_bytes(plan: ParallelPlan, half: str, stack: Stack) -> int:
    """Bytes kept of an element of the input of a product of ``attention`` or ``mlp`` [B]."""
    # A frozen product needs its input only for an adapter.
    if plan.lora_rank and not adapted(plan, half):
        return 0
    return ELEMENT_BYTES if plan.precision == "bf16" else stack.fp8_input_bytes


def _mixer(model: Model, plan: ParallelPlan, tokens: int, stack: Stack) -> int:
    """Inputs and output of attention, of its indexer, and of a recurrent mixer [B]."""
    size = 0
    if model.mixer in ATTENTION:
        size += _heads(model, plan, tokens, stack) + _scores(model, plan, tokens)
    index = model.indexer
    if index and model.mixer in ATTENTION:  # also its head weights, and places of selected keys
        places = 4 * min(model.window, plan.context)
        size += tokens * (ELEMENT_BYTES * (index.heads * index.dim + index.columns) + places)
    if model.mixer in RECURRENCE and model.recurrence:
        columns = model.recurrence.columns + model.recurrence.inner
        size += ELEMENT_BYTES * tokens * columns // plan.tp
    return size


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
    kv = max(model.kv_heads // plan.tp, 1) * model.head_dim * (2 if model.kv_products else 0)
    if low := model.low_rank:
        kv += low.queries + model.key_columns + low.groups * low.output // plan.tp
    return size + ELEMENT_BYTES * tokens * (queries + kv)


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
    moved = math.ceil(element_bytes * copies * model.expert_hidden * plan.expert_tp)
    moved += ELEMENT_BYTES * rows * experts.latent  # input of the product behind them
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
    """Activations of a layer of each kind, recomputed as the plan says, then not [B]."""
    # The order is that of :func:`~workloads.training.plan.stages.kinds_of_chunks`.
    recomputed = _each_kind(model, plan, stack)
    if plan.recompute != "full":
        return recomputed + recomputed
    return recomputed + kept_activations(model, plan, stack)


@lru_cache(maxsize=PLANS_KEPT)
def kept_activations(model: Model, plan: ParallelPlan, stack: Stack) -> tuple[int, ...]:
    """Return the activations of a layer of each kind of which nothing runs again [B]."""
    whole_layer = stack._replace(selective_keeps=0)
    return _each_kind(model, replace(plan, recompute="selective"), whole_layer)


def _each_kind(model: Model, plan: ParallelPlan, stack: Stack) -> tuple[int, ...]:
    return tuple(
        layer_activations(model.of_kind(kind), plan, moe=kind.experts, stack=stack)
        for kind in model.kinds
    )


ENDS: tuple[Literal["low"], Literal["high"]] = ("low", "high")
"""Ends of the range of a quantity of a stack."""
FREE = 0.05  # share of a rank's memory that a plan leaves free if one does: stacks differ by more
SHOWN = 3  # remedies that a refusal names at most
GATHERED_LAYERS = 2
"""Layers whose parameters are whole at once under ZeRO-3: the current one and the next."""
REMEMBERED = 256
"""Plans whose memory is kept, as a plan is checked when it is chosen and again when it is run."""


@dataclass(frozen=True)
class Memory:
    """Memory of one rank at the worst moment of a step, by part."""

    # weights, gradients, optimizer: state that the rank keeps throughout the step [B]
    weights: int
    gradients: int
    optimizer: int
    activations: int  # activations that wait for their backward pass [B]
    # Tensors that exist only for a moment: gathered inputs, logits, gradients before they are
    # accumulated [B]
    buffers: int
    # Free memory that the framework's allocator holds in pieces too small to use [B]
    fragments: int
    # Memory outside of that allocator: context, program code, buffers of communicators [B]
    runtime: int
    capacity: int  # usable memory of the rank's share of its chip [B]
    # below, above: memory less and more than the sum of the parts that some training stack may need
    # [B]
    below: int = 0
    above: int = 0

    @property
    def least(self) -> int:
        """Least need by training stack [B]."""
        return self.total - self.below

    @property
    def most(self) -> int:
        """Greatest need by training stack [B]."""
        return self.total + self.above

    @property
    def fits(self) -> bool:
        """Return whether the rank has room for the least need."""
        return self.least <= self.capacity

    @property
    def tight(self) -> bool:
        """Return whether the rank has room for the least need, but not for the likely one."""
        return self.fits and self.total > self.capacity

    @property
    def roomy(self) -> bool:
        """Return whether the likely need leaves ``FREE`` of the rank's memory."""
        return self.total <= self.capacity - int(FREE * self.capacity)

    @property
    def total(self) -> int:
        """Likely sum of all parts [B]."""
        kept = self.weights + self.gradients + self.optimizer + self.activations
        return kept + self.buffers + self.fragments + self.runtime

    @property
    def reserved(self) -> int:
        """Memory that the allocator holds, such as PyTorch's ``max_memory_reserved`` [B]."""
        return self.total - self.runtime

    @property
    def allocated(self) -> int:
        """Memory of tensors, such as PyTorch's ``max_memory_allocated`` [B]."""
        return self.reserved - self.fragments

    def parts(self) -> dict[str, int]:
        """Return the parts by name [B]."""
        names = [field.name for field in fields(self)][: -len(("capacity", "below", "above"))]
        return {name: getattr(self, name) for name in names}


def memory(model: Model, plan: ParallelPlan, stage: int, catalogue: Catalogue, chip: str) -> Memory:
    """Return the memory of a rank of one stage."""
    capacity = usable_hbm_bytes(chip, catalogue) // plan.ranks_per_chip
    return _memory(model, plan, stage, stack_of(catalogue), capacity)


def _memory(model: Model, plan: ParallelPlan, stage: int, stack: Stack, capacity: int) -> Memory:
    owned = stage_share(model, plan, stage)
    trained = owned if whole(plan) else trained_share(model, plan, stage)
    # Parameters, gradients and optimizer states are sharded from ZeRO-3, 2 and 1 on.
    parameters, gradients, updated = (
        sharded(plan.sharding >= level, share, plan.replicas, plan.expert_replicas)
        for level, share in ((3, owned), (2, trained), (1, trained))
    )
    edges = Share(edge_share(model, plan, stage), 0)
    kept_edges, updated_edges = (
        sharded(plan.sharding >= level, edges, plan.replicas, plan.expert_replicas)
        for level in (3, 1)
    )
    weights = layer_weight_bytes(plan) * (parameters - kept_edges) + WEIGHT_BYTES * kept_edges
    adapters = WEIGHT_BYTES * trained.total if plan.lora_rank else 0
    # At the worst moment a stage holds the activations of all microbatches with GPipe, with 1F1B
    # of as many as there are stages from this one to the last (arXiv 2104.04473).
    chunks = range(plan.vpp)
    sizes = np.array([chunk_activations(model, plan, stage, chunk, stack) for chunk in chunks])
    in_flight = most_held(plan.pipeline, plan.pp, stage, plan.microbatches, plan.vpp)
    activations = int((in_flight * sizes).sum(axis=1).max())
    copied_gradients = stack.gradient_copy_bytes * gradients
    gathered, work = 0, _work(model, plan, stage, stack)
    if plan.sharding == 3:  # whole parameters of layers, and of embedding and output layer
        layers = GATHERED_LAYERS * _largest(model, plan, stage)
        gathered = WEIGHT_BYTES * (layers + edge_share(model, plan, stage))
    buffers = copied_gradients + gathered + work
    return Memory(
        weights=math.ceil(weights) + adapters,
        gradients=stack.gradient_bytes * gradients,
        optimizer=stack.optimizer_bytes
        * optimizer_bytes(plan, updated, min(updated, updated_edges))
        // OPTIMIZER_BYTES["adamw"],
        activations=activations,
        buffers=buffers,
        fragments=int(stack.fragmentation * (activations + buffers)),
        runtime=stack.runtime_bytes // plan.ranks_per_chip,
        capacity=capacity,
    )


def _work(model: Model, plan: ParallelPlan, stage: int, stack: Stack) -> int:
    """Largest sum of buffers that exist at one moment, within a layer or at the loss [B]."""
    # Within a layer they are a gathered input and its gradient, the layer's activations where it is
    # recomputed, and gradients that are not accumulated yet.
    tokens = tokens_of(plan)
    gradients = _gradients(model, plan, stage, stack.gradient_bytes)
    layer = 2 * ELEMENT_BYTES * tokens * model.hidden + gradients
    if _runs_again(plan, stack):
        kept = kept_activations(model, plan, stack)
        layer += max(kept[kind] for kind in _held(model, plan, stage))
    if stage != end_stages(plan)[1]:
        return layer
    vocabulary = part(model.vocab, plan.tp)
    columns = model.vocab if stack.loss_gathered else vocabulary
    logits = stack.loss_bytes * tokens * columns * (1 + model.prediction_heads)
    # Inputs of the projections of prediction heads: their own and an embedding.
    logits += 2 * ELEMENT_BYTES * tokens * model.hidden * model.prediction_heads
    return max(layer, logits + WEIGHT_BYTES * vocabulary * model.hidden)


def _gradients(model: Model, plan: ParallelPlan, stage: int, each_bytes: int) -> int:
    """Gradients of the current layer that are not accumulated yet [B]."""
    # Below ZeRO-2 it is the gradient of its widest product in bf16. Where ranks keep shards of
    # gradients, those of the whole layer wait to be reduced, in the precision of the sum.
    if plan.sharding >= 2:
        return each_bytes * _largest(model, plan, stage)
    inner = model.ffn * (2 if model.gated_mlp else 1)
    outer = model.query_width + 2 * model.kv_heads * model.head_dim
    return WEIGHT_BYTES * model.hidden * part(max(inner, outer), plan.tp)


def _held(model: Model, plan: ParallelPlan, stage: int) -> list[int]:
    """Numbers of the kinds of layers that a stage holds; of all kinds if it holds no layer."""
    counts = stage_kinds(model, plan, stage)
    return [kind for kind, count in enumerate(counts) if count or not any(counts)]


def _largest(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Parameters of the largest layer of a stage on one rank."""
    shares = kind_shares(model, plan)
    return max(shares[kind].total for kind in _held(model, plan, stage))


@lru_cache(REMEMBERED)
def likely(
    model: Model, plan: ParallelPlan, catalogue: Catalogue, chip: str, among: tuple[int, ...] = ()
) -> Memory:
    """Return the memory of a rank of the stage that needs most, without the range of its sum."""
    # Only the stages that :func:`~workloads.training.plan.stages.unlike_stages` names are
    # computed, or those ``among`` which the neediest is wanted.
    capacity = usable_hbm_bytes(chip, catalogue) // plan.ranks_per_chip
    plan = _divided(model, plan, catalogue)
    return _with_stack(model, plan, stack_of(catalogue), capacity, among)


@lru_cache(REMEMBERED)
def worst(
    model: Model, plan: ParallelPlan, catalogue: Catalogue, chip: str, among: tuple[int, ...] = ()
) -> Memory:
    """Return the memory of a rank of the stage that needs most, and the range of its sum."""
    # Stacks differ in each of their quantities by the range that the catalogue states, and in one
    # independently of the others, so that differences add as squares. A variant narrows the range
    # to what is known of one stack.
    need, stack = likely(model, plan, catalogue, chip, among), stack_of(catalogue)
    plan = _divided(model, plan, catalogue)
    below, above = (
        math.hypot(
            *(
                _with_stack(
                    *(model, plan, stack._replace(**{name: value}), need.capacity, among)
                ).total
                - need.total
                for name, value in stack_of(catalogue, end)._asdict().items()
                if value != getattr(stack, name)
            )
        )
        for end in ENDS
    )
    return replace(need, below=int(below), above=int(above))


def _with_stack(
    model: Model, plan: ParallelPlan, stack: Stack, capacity: int, among: tuple[int, ...]
) -> Memory:
    """Memory of a rank of the stage that needs most."""
    stages = among or unlike_stages(model, plan)
    needs = (_memory(model, plan, stage, stack, capacity) for stage in stages)
    return max(needs, key=lambda need: need.total)


def _divided(model: Model, plan: ParallelPlan, catalogue: Catalogue) -> ParallelPlan:
    """Plan with the layers of stages as the stack divides them, where the plan leaves that open."""
    if plan.stage_layers or plan.pp == 1 or plan.vpp > 1:
        return plan
    if not catalogue.integer("training", "stages_by_cost"):
        return plan
    return replace(plan, stage_layers=layers_by_cost(model, plan.pp))


def check_memory(
    memory: Memory, model: Model, plan: ParallelPlan, catalogue: Catalogue, chip: str
) -> None:
    """Refuse a plan that does not fit in memory even at the least that a stack may need."""
    if memory.fits:
        return
    numbers = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in memory.parts().items())
    sizes = memory.total, memory.least, memory.most, memory.capacity
    usual, least, most, capacity = (size / 1e9 for size in sizes)
    raise InputError(
        f"the plan needs {usual:.1f} GB a rank ({numbers}), or {least:.1f} to {most:.1f} GB by "
        f"training stack, but a rank has {capacity:.1f} GB: {usual - capacity:.1f} GB are "
        f"missing, or {least - capacity:.1f} GB in the stack that needs least. "
        f"{_advice(model, plan, catalogue, chip)}, or --allow-oversized to run it anyway."
    )


def _advice(model: Model, plan: ParallelPlan, catalogue: Catalogue, chip: str) -> str:
    """Return what makes a plan fit, with few changes if few do."""
    sharded = {"zero": 3} if plan.replicas > 1 and plan.reshard else {}
    remedies: dict[str, bool] = {}
    for ways in (_changes(model, plan), [[{**sharded, "recompute": "full"}]]):
        remedies |= _remedies(model, plan, catalogue, chip, ways)
        if sure := [words for words, tight in remedies.items() if not tight][:SHOWN]:
            return f"Use {' or '.join(sure)}"
    if remedies:
        words = " or ".join([*remedies][:SHOWN])
        return f"With {words} it fits only in a stack that keeps little: use more chips"
    return "No change of one field makes it fit: use more chips, for more tp or pp"


def _remedies(
    model: Model,
    plan: ParallelPlan,
    catalogue: Catalogue,
    chip: str,
    changes: Iterable[list[dict[str, Any]]],
) -> dict[str, bool]:
    """Return changes that make a plan fit, the fastest first, and whether it is tight with each."""
    # Of each way to save memory it is the smallest change that is likely to fit, or the greatest.
    remedies: dict[str, bool] = {}
    for ways in changes:
        best = None
        for change in ways:
            try:
                changed = replace(plan, **change)
                check_model(changed, model)
            except InputError:
                continue
            needed = worst(model, changed, catalogue, chip)
            if needed.fits:
                words = " ".join(f"--{name} {to}" for name, to in change.items())
                best = words, needed.tight
            if best and not needed.tight:
                break
        remedies |= dict([best] if best else [])
    return remedies


def _changes(model: Model, plan: ParallelPlan) -> Iterator[list[dict[str, Any]]]:
    """Yield ways to save memory, each with its changes from the smallest on."""
    if plan.replicas > 1 and plan.reshard:
        yield [{"zero": zero} for zero in range(plan.zero + 1, 4)]
    if plan.pp > 1:
        most = model.layers // plan.pp
        yield [{"vpp": vpp} for vpp in range(plan.vpp + 1, most + 1) if plan.vpp > 1]
        yield [{"schedule": schedule_of_chunks(1), "vpp": 1}]
    yield [{"microbatch": size} for size in range(plan.microbatch - 1, 0, -1)]
    yield [{"recompute": kind} for kind in ("selective", "full") if plan.recompute != kind]
    most = plan.ranks_per_chip // plan.ranks  # times that the only chip has so many ranks
    for name in ("tp", "pp"):
        each = getattr(plan, name)
        yield [
            {name: each * times, "dp": plan.dp // (times if times > most else 1)}
            for times in (2, 4, 8)
            if times <= most or plan.dp % times == 0
        ]
