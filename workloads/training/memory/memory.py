"""Memory of one rank by part, and the check that a plan fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache

from topologies.catalogue.catalogue import Catalogue
from topologies.catalogue.memory import usable_hbm_bytes
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.layers.adapters import trained_share, whole
from workloads.training.layers.data_parallel import sharded
from workloads.training.memory.activations import (
    ELEMENT_BYTES,
    held_activations,
    kept_activations,
    tokens_of,
)
from workloads.training.plan.parameters import (
    GRADIENT_BYTES,
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
from workloads.training.plan.stage_layers import (
    end_stages,
    stage_kinds,
    stage_layers,
    unlike_stages,
)

__all__ = ["Memory", "check_memory", "memory", "stage_layers", "worst"]

GATHERED_LAYERS = 2
"""Layers whose parameters are whole at once under ZeRO-3: the current one and the next."""
REMEMBERED = 256
"""Plans whose memory is kept, as a plan is checked when it is chosen and again when it is run."""


@dataclass(frozen=True)
class Memory:
    """Memory of one rank at the worst moment of a step, by part.

    Attributes
    ----------
    weights, gradients, optimizer : int
        State that the rank keeps throughout the step [B].
    activations : int
        Activations that wait for their backward pass [B].
    buffers : int
        Tensors that exist only for a moment: gathered inputs, logits, gradients before they are
        accumulated [B].
    fragments : int
        Free memory that the framework's allocator holds in pieces too small to use [B].
    runtime : int
        Memory outside of that allocator: context, program code, buffers of communicators [B].
    capacity : int
        Usable memory of the rank's share of its chip [B].
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    fragments: int
    runtime: int
    capacity: int

    @property
    def total(self) -> int:
        """Sum of all parts, which must fit in the capacity [B]."""
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
        names = [field.name for field in fields(self) if field.name != "capacity"]
        return {name: getattr(self, name) for name in names}


def memory(model: Model, plan: ParallelPlan, stage: int, catalogue: Catalogue, chip: str) -> Memory:
    """Return the memory of a rank of one stage.

    Parameters
    ----------
    model : Model
    plan : ParallelPlan
    stage : int
    catalogue : Catalogue
        Its part ``training`` has the number of tensors and bytes that the framework keeps.
    chip : str
        Catalogue part of the chip.
    """
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
    gated = catalogue.integer("training", "gated_kept")
    activations = held_activations(model, plan, stage, gated=gated)
    copied_gradients = catalogue.integer("training", "gradient_copy_bytes") * gradients
    gathered, work = _gathered(model, plan, stage), _work(model, plan, stage, catalogue)
    buffers = copied_gradients + gathered + work
    return Memory(
        weights=math.ceil(weights) + adapters,
        gradients=GRADIENT_BYTES * gradients,
        optimizer=optimizer_bytes(plan, updated, min(updated, updated_edges)),
        activations=activations,
        buffers=buffers,
        fragments=int(catalogue.value("training", "fragmentation") * (activations + buffers)),
        runtime=catalogue.integer("training", "runtime_bytes") // plan.ranks_per_chip,
        capacity=usable_hbm_bytes(chip, catalogue) // plan.ranks_per_chip,
    )


def _work(model: Model, plan: ParallelPlan, stage: int, catalogue: Catalogue) -> int:
    """Largest sum of buffers that exist at one moment, within a layer or at the loss [B].

    Within a layer they are a gathered input and its gradient, the layer's activations where it is
    recomputed, and gradients that are not accumulated yet.
    """
    tokens = tokens_of(plan)
    layer = 2 * ELEMENT_BYTES * tokens * model.hidden + _gradients(model, plan, stage)
    if plan.recompute == "full":
        gated = catalogue.integer("training", "gated_kept")
        kept = kept_activations(model, plan, gated)
        layer += max(kept[kind] for kind in _held(model, plan, stage))
    if stage != end_stages(plan)[1]:
        return layer
    vocabulary = part(model.vocab, plan.tp)
    logits = catalogue.integer("training", "loss_bytes") * tokens * vocabulary
    return max(layer, logits + WEIGHT_BYTES * vocabulary * model.hidden)


def _gradients(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Gradients of the current layer that are not accumulated yet [B].

    Below ZeRO-2 it is the gradient of its widest product in bf16. Where ranks keep shards of
    gradients, those of the whole layer wait to be reduced, in the precision of the sum.
    """
    if plan.sharding >= 2:
        return GRADIENT_BYTES * _largest(model, plan, stage)
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
def worst(model: Model, plan: ParallelPlan, catalogue: Catalogue, chip: str) -> Memory:
    """Return the memory of a rank of the stage that needs most.

    Only the stages that :func:`~workloads.training.plan.stage_layers.unlike_stages` names are
    computed.
    """
    needs = (memory(model, plan, stage, catalogue, chip) for stage in unlike_stages(model, plan))
    return max(needs, key=lambda need: need.total)


def check_memory(memory: Memory, plan: ParallelPlan) -> None:
    """Refuse a plan that does not fit in memory.

    Raises
    ------
    InputError
        The message has the size of every part.
    """
    if memory.total <= memory.capacity:
        return
    numbers = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in memory.parts().items())
    raise InputError(
        f"the plan needs {memory.total / 1e9:.1f} GB a rank ({numbers}), but a rank has "
        f"{memory.capacity / 1e9:.1f} GB. {_remedy(memory, plan)}"
    )


def _remedy(memory: Memory, plan: ParallelPlan) -> str:
    """Advice that is most likely to make the plan fit."""
    if plan.zero == 0 and plan.dp > 1 and memory.optimizer > memory.activations:
        return "Use --zero 1, or more tp or pp."
    if memory.activations > memory.weights + memory.gradients and plan.recompute != "full":
        return "Use --recompute full, a smaller --microbatch, or more tp."
    return "Use more tp or pp, or --allow-oversized to run it all the same."
