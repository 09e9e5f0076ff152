"""Training of a part of a model: low-rank adapters beside frozen weights, or one part alone.

An adapter adds ``B A`` of some rank to a frozen weight (arXiv 2106.09685), which has neither
gradients nor optimizer state, but gradients of inputs are propagated through it.
"""

from __future__ import annotations

from collections.abc import Sequence

from topologies.catalogue.catalogue import chip_family
from workloads.kernels.chip_share import Timing, worst
from workloads.models.model import ATTENTION, Model, forward_flops, training_flops
from workloads.training.layers.steps import PREVIOUS, LayerOp, RankShapes, kernel
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import Share, end_stages, part, stage_kinds, stage_share

OF_WEIGHTS = (".weight", ".input.gather")
"""Endings of the names of steps that only the gradients of weights need."""
AGAIN = "again."


def whole(plan: ParallelPlan) -> bool:
    """Return whether the whole model is trained."""
    return not plan.lora_rank and not plan.train_only


def layers_run_again(plan: ParallelPlan, merged: int) -> bool:
    """Return whether full recomputation of layers takes time of the chip."""
    # ``merged``: 1 where a compiler merges it with the first run if adapters alone are trained.
    # Single operations are not compiled together.
    compiled = merged and plan.lora_rank and plan.runtime != "eager"
    return plan.recompute == "full" and not compiled


def trains(plan: ParallelPlan, name: str) -> bool:
    """Return whether the weights of the step with this name are trained, and not frozen."""
    block = name.removeprefix(AGAIN).split(".")[0]
    block = {"router": "mlp", "experts": "mlp", "layer": "mlp"}.get(block, block)
    return whole(plan) or (not plan.lora_rank and block == plan.train_only)


def products(shapes: RankShapes) -> dict[str, tuple[int, int]]:
    """Return the columns in and out of each product of a layer on one rank that has adapters."""
    model, plan = shapes.model, shapes.plan
    inner = part(model.ffn, plan.tp)
    columns = (shapes.heads + model.kv_products * shapes.kv_heads) * model.head_dim
    sizes = {
        "attention.qkv": (model.hidden, columns),
        "attention.out": (shapes.values, model.hidden),
        "mlp.up": (model.hidden, inner * (2 if model.gated_mlp else 1)),
        "mlp.down": (inner, model.hidden),
    }
    return {name: size for name, size in sizes.items() if _adapted_in(model, plan, name)}


def _adapted_in(model: Model, plan: ParallelPlan, name: str) -> bool:
    """Return whether layers like a model's have the product of this name, with adapters."""
    # Routed experts have none, nor have the compressed products of latent attention.
    compressed = model.latent or model.low_rank
    held = model.mixer in ATTENTION and (name == "attention.out" or not compressed)
    if name.startswith("mlp"):
        held = model.ffn > 0 and model.experts is None
    return held and adapted(plan, name)


def adapted(plan: ParallelPlan, name: str) -> bool:
    """Return whether the product of this name has adapters."""
    return plan.lora_on == "all" or name.startswith(plan.lora_on)


def gathered_apart(shapes: RankShapes) -> int:
    """Return how many parts of a layer's adapters a rank gathers on their own under ZeRO-3."""
    # PEFT's policy wraps each trained weight, so that the frozen ones around it need no gradient;
    # its models have products of their own for queries, keys and values, and for gate and input.
    if not shapes.plan.lora_rank:
        return 0
    apart = {
        "attention.qkv": 1 + shapes.model.kv_products,
        "mlp.up": 2 if shapes.model.gated_mlp else 1,
    }
    adapters = sum(apart.get(name, 1) for name in products(shapes))
    return adapters * shapes.catalogue.integer("training", "adapter_units")


def with_adapters(shapes: RankShapes, steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Return the steps of a layer's forward pass, with its adapter's after each adapted product."""
    if not shapes.plan.lora_rank:
        return list(steps)
    sizes, adapted_steps = products(shapes), []
    issued = shapes.catalogue.value("training", "adapter_issued")
    for step in steps:
        adapted_steps.append(step)
        if step.name in sizes:
            adapter = kernel(f"{step.name}.adapter", _adapter(shapes, *sizes[step.name]))
            adapted_steps.append(adapter._replace(issued=issued))
    return adapted_steps


def trained_backward(shapes: RankShapes, steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Return a layer's backward pass without frozen weights' gradients and with the adapters'."""
    kept = without_frozen(shapes, steps)
    if not shapes.plan.lora_rank:
        return kept
    issued = shapes.catalogue.value("training", "adapter_issued")
    adapters = [
        kernel(f"{name}.adapter.weight", _adapter_backward(shapes, *size))._replace(issued=issued)
        for name, size in products(shapes).items()
    ]
    return [*kept, *adapters]


def without_frozen(shapes: RankShapes, steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Return the steps of a backward pass without the gradients of frozen weights."""
    if whole(shapes.plan):
        return list(steps)
    plan = shapes.plan
    kept = [step for step in steps if not step.name.endswith(OF_WEIGHTS) or trains(plan, step.name)]
    # A step that waited for a dropped one waits for the step before it instead.
    names = {step.name for step in kept}
    return [
        step if step.after in names or not step.after else step._replace(after=PREVIOUS)
        for step in kept
    ]


def _adapter(shapes: RankShapes, k: int, n: int) -> Timing:
    """Forward time of both products of an adapter on a weight of k rows and n columns."""
    rank, t = shapes.plan.lora_rank, shapes.tokens
    if chip_family(shapes.chip, shapes.catalogue).is_neuron:
        return _widened(shapes, k, n)
    # Transformer Engine's autocast leaves adapters of Megatron-Bridge alone; assumed of others.
    return _sum(
        *(*_beside(shapes, n), *_beside(shapes, k, "adapter_input_bytes")),
        *(shapes.gemm(*size, precision="bf16") for size in ((t, rank, k), (t, n, rank))),
    )


def _adapter_backward(shapes: RankShapes, k: int, n: int) -> Timing:
    """Time of the gradients of an adapter's input and of its two weights."""
    rank, t = shapes.plan.lora_rank, shapes.tokens
    sizes = (rank, n, t), (k, rank, t), (t, rank, n), (t, k, rank)
    *weights, narrow, wide = (shapes.gemm(*size, precision="bf16") for size in sizes)
    if chip_family(shapes.chip, shapes.catalogue).is_neuron:
        return _sum(_widened(shapes, n, k), *weights)
    return _sum(
        *(*_beside(shapes, k), *_beside(shapes, k, "adapter_input_bytes")),
        *(narrow, wide, *weights),
    )


def _beside(shapes: RankShapes, columns: int, quantity: str = "adapter_bytes") -> list[Timing]:
    """Time of kernels that add an adapter's result to the weight's, or cast its input."""
    # The gradient of its input is treated likewise in the backward pass.
    moved = shapes.catalogue.integer("training", quantity) * shapes.tokens * columns
    return [shapes.passes(moved)] if moved else []


def _widened(shapes: RankShapes, k: int, n: int) -> Timing:
    """Time by which an adapter lengthens the product that it is compiled together with."""
    # The compiler joins ``A`` to the weight, whose columns grow by the adapter's rank, and ``xA``
    # to the input, whose columns do too, so that the input is read and the result written only
    # once.
    rank, t = shapes.plan.lora_rank, shapes.tokens
    alone = shapes.gemm(t, n, k)
    wider = _sum(shapes.gemm(t, n + rank, k), shapes.gemm(t, n, k + rank))
    seconds = max(0.0, wider.seconds - 2 * alone.seconds)
    return Timing(seconds, wider.provenance, wider.size_bytes - 2 * alone.size_bytes)


def _sum(*parts: Timing) -> Timing:
    seconds = sum(timing.seconds for timing in parts)
    moved = sum(timing.size_bytes for timing in parts)
    return Timing(seconds, worst(*(timing.provenance for timing in parts)), moved)


def layer_adapters(model: Model, plan: ParallelPlan) -> int:
    """Count the parameters of the adapters of one layer on one rank."""
    heads, kv_heads = part(model.heads, plan.tp), max(1, model.kv_heads // plan.tp)
    inner = part(model.ffn, plan.tp)
    both = (kv_heads,) * model.kv_products
    pairs = {
        "attention.qkv": [(model.hidden, count * model.head_dim) for count in (heads, *both)],
        "attention.out": [(part(model.value_width, plan.tp), model.hidden)],
        "mlp": [(inner, model.hidden)] * (2 + model.gated_mlp),
    }
    held = (pair for name in pairs if _adapted_in(model, plan, name) for pair in pairs[name])
    return plan.lora_rank * sum(k + n for k, n in held)


def trained_share(model: Model, plan: ParallelPlan, stage: int) -> Share:
    """Return the parameters of a rank of a stage that have gradients and optimizer state."""
    if whole(plan):
        return stage_share(model, plan, stage)
    counts = zip(stage_kinds(model, plan, stage), model.kinds, strict=True)
    kinds = [(count, model.of_kind(kind)) for count, kind in counts]
    if plan.lora_rank:
        return Share(sum(count * layer_adapters(alike, plan) for count, alike in kinds), 0)
    held = stage_share(model, plan, stage)
    if plan.train_only == "output":
        last = stage == end_stages(plan)[1]
        return Share(part(model.vocab * model.hidden, plan.tp) * last, 0)
    if plan.train_only == "attention":
        attending = [(count, alike) for count, alike in kinds if alike.mixer in ATTENTION]
        return Share(sum(count * _attention(alike, plan) for count, alike in attending), 0)
    inner = sum(count * part(alike.ffn, plan.tp) for count, alike in kinds)
    inner *= model.hidden * (3 if model.gated_mlp else 2)
    return Share(min(inner, held.dense) if not model.experts else 0, held.experts)


def _attention(model: Model, plan: ParallelPlan) -> int:
    """Parameters of the products around one layer's attention on one rank."""
    columns = part(model.query_width, plan.tp) + part(model.value_width, plan.tp)
    kv_heads = model.kv_products * max(1, model.kv_heads // plan.tp)
    return model.hidden * (columns + kv_heads * model.head_dim)


def undivided(plan: ParallelPlan) -> ParallelPlan:
    """Return a plan that trains the same parameters on a single rank."""
    return ParallelPlan(lora_rank=plan.lora_rank, lora_on=plan.lora_on, train_only=plan.train_only)


def trained_flops(model: Model, plan: ParallelPlan) -> float:
    """Model FLOPs of an optimizer step, without the gradients of frozen weights."""
    if whole(plan):
        return training_flops(model, plan.context, plan.tokens)
    forward = forward_flops(model, plan.context)
    if plan.train_only == "output":
        return plan.tokens * (forward + 4 * model.vocab * model.hidden)
    trained = trained_share(model, undivided(plan), 0).dense
    return plan.tokens * (2 * forward + 2 * trained)
