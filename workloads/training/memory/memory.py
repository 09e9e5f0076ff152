"""Memory of one rank by part, and the check that a plan fits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal

from topologies.catalogue.catalogue import Catalogue, usable_hbm_bytes
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.layers.adapters import trained_share, whole
from workloads.training.layers.data_parallel import sharded
from workloads.training.memory.activations import (
    ELEMENT_BYTES,
    Stack,
    held_activations,
    kept_activations,
    stack_of,
    tokens_of,
)
from workloads.training.plan.checks import check_model
from workloads.training.plan.parameters import (
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    Share,
    edge_share,
    kind_shares,
    layer_weight_bytes,
    optimizer_bytes,
    part,
    stage_share,
)
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import schedule_of_chunks
from workloads.training.plan.stage_layers import (
    end_stages,
    layers_by_cost,
    stage_kinds,
    stage_layers,
    unlike_stages,
)

__all__ = ["Memory", "check_memory", "likely", "memory", "stage_layers", "worst"]

ENDS: tuple[Literal["low"], Literal["high"]] = ("low", "high")
"""Ends of the range of a quantity of a stack."""
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
    """Memory of a rank of one stage."""
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
    activations = held_activations(model, plan, stage, stack)
    copied_gradients = stack.gradient_copy_bytes * gradients
    gathered, work = _gathered(model, plan, stage), _work(model, plan, stage, stack)
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
    if plan.recompute == "full":
        kept = kept_activations(model, plan, stack)
        layer += max(kept[kind] for kind in _held(model, plan, stage))
    if stage != end_stages(plan)[1]:
        return layer
    vocabulary = part(model.vocab, plan.tp)
    columns = model.vocab if stack.loss_gathered else vocabulary
    logits = stack.loss_bytes * tokens * columns
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


def _gathered(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Whole parameters of gathered layers, and of embedding and output layer, under ZeRO-3 [B]."""
    if plan.sharding < 3:
        return 0
    layer = _largest(model, plan, stage)
    return WEIGHT_BYTES * (GATHERED_LAYERS * layer + edge_share(model, plan, stage))


def _held(model: Model, plan: ParallelPlan, stage: int) -> list[int]:
    """Numbers of the kinds of layers that a stage holds; of all kinds if it holds no layer."""
    counts = stage_kinds(model, plan, stage)
    return [kind for kind, count in enumerate(counts) if count or not any(counts)]


def _largest(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Parameters of the largest layer of a stage on one rank."""
    shares = kind_shares(model, plan)
    return max(shares[kind].total for kind in _held(model, plan, stage))


@lru_cache(REMEMBERED)
def likely(model: Model, plan: ParallelPlan, catalogue: Catalogue, chip: str) -> Memory:
    """Return the memory of a rank of the stage that needs most, without the range of its sum."""
    # Only the stages that :func:`~workloads.training.plan.stage_layers.unlike_stages` names are
    # computed.
    capacity = usable_hbm_bytes(chip, catalogue) // plan.ranks_per_chip
    plan = _divided(model, plan, catalogue)
    return _with_stack(model, plan, stack_of(catalogue), capacity)


@lru_cache(REMEMBERED)
def worst(model: Model, plan: ParallelPlan, catalogue: Catalogue, chip: str) -> Memory:
    """Return the memory of a rank of the stage that needs most, and the range of its sum."""
    # Stacks differ in each of their quantities by the range that the catalogue states, and in one
    # independently of the others, so that differences add as squares. A variant narrows the range
    # to what is known of one stack.
    need, stack = likely(model, plan, catalogue, chip), stack_of(catalogue)
    plan = _divided(model, plan, catalogue)
    below, above = (
        math.hypot(
            *(
                _with_stack(model, plan, stack._replace(**{name: value}), need.capacity).total
                - need.total
                for name, value in stack_of(catalogue, end)._asdict().items()
                if value != getattr(stack, name)
            )
        )
        for end in ENDS
    )
    return replace(need, below=int(below), above=int(above))


def _with_stack(model: Model, plan: ParallelPlan, stack: Stack, capacity: int) -> Memory:
    """Memory of a rank of the stage that needs most."""
    stages = unlike_stages(model, plan)
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
    remedies = sorted(_remedies(model, plan, catalogue, chip), key=lambda each: each.endswith(")"))
    advice = f"Use {' or '.join(remedies[:SHOWN])}" if remedies else "Use more chips, tp or pp"
    raise InputError(
        f"the plan needs {usual:.1f} GB a rank ({numbers}), {least:.1f} to {most:.1f} by "
        f"training stack, but a rank has {capacity:.1f} GB: it lacks {usual - capacity:.1f} "
        f"GB, and {least - capacity:.1f} GB in the stack that keeps least. {advice}, or "
        "--allow-oversized to run it all the same."
    )


def _remedies(model: Model, plan: ParallelPlan, catalogue: Catalogue, chip: str) -> Iterator[str]:
    """Yield changes that make a plan fit, those that cost least time first, and how sure that is.

    Of each way to save memory it is the smallest change that is likely to fit, or the greatest.
    """
    for ways in _changes(model, plan):
        best = ""
        for change in ways:
            try:
                changed = replace(plan, **change)
                check_model(changed, model)
            except InputError:
                continue
            needed = worst(model, changed, catalogue, chip)
            if needed.fits:
                words = " ".join(f"--{name} {to}" for name, to in change.items())
                best = f"{words} (tight)" if needed.tight else words
            if best and not needed.tight:
                break
        if best:
            yield best


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
    for name in ("tp", "pp"):
        each = getattr(plan, name)
        yield [
            {name: each * times, "dp": plan.dp // times}
            for times in (2, 4, 8)
            if plan.dp % times == 0
        ]
