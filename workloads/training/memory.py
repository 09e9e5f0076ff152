"""Memory of one rank by part, and the refusal of a plan that does not fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from topologies.catalogue import Catalogue
from topologies.errors import InputError
from workloads.model import Model
from workloads.training.activations import (
    ELEMENT_BYTES,
    held_activations,
    layer_activations,
    tokens_of,
)
from workloads.training.chunks import chunk_layers, is_moe, stage_layers
from workloads.training.plan import ParallelPlan
from workloads.training.shares import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    edge_share,
    layer_share,
    part,
    stage_share,
)
from workloads.training.states import sharded

__all__ = ["Memory", "check_memory", "memory", "stage_layers", "worst"]

GATHERED_LAYERS = 2
"""Under ZeRO-3 the layer at work and the next; under ZeRO-2 and 3 the gradients on their way."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank's share of its chip.

    Attributes
    ----------
    weights, gradients, optimizer, activations, buffers, margin : int
        ``buffers``: gathered inputs, logits and collectives; ``margin``: set aside for
        fragmentation and the runtime.
    capacity : int
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    margin: int
    capacity: int

    @property
    def total(self) -> int:
        """Sum of the parts [B]."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """The parts by name [B]."""
        return {name: size for name, size in asdict(self).items() if name != "capacity"}


def memory(model: Model, plan: ParallelPlan, stage: int, parts: Catalogue, chip: str) -> Memory:
    """Memory of a rank of one stage.

    Parameters
    ----------
    model : Model
    plan : ParallelPlan
    stage : int
    parts : Catalogue
    chip : str
        Catalogue part.
    """
    owned = stage_share(model, plan, stage)
    kept = [
        sharded(plan.sharding >= level, owned, plan.replicas, plan.expert_replicas)
        for level in (3, 2, 1)
    ]
    usable = "hbm_usable_bytes" if parts.has(chip, "hbm_usable_bytes") else "hbm_bytes"
    capacity = parts.integer(chip, usable) // plan.ranks_per_chip
    return Memory(
        weights=WEIGHT_BYTES * kept[0],
        gradients=GRADIENT_BYTES * kept[1],
        optimizer=OPTIMIZER_BYTES * kept[2],
        activations=held_activations(model, plan, stage),
        buffers=_buffers(model, plan, stage),
        margin=int(parts.value("training", "memory_margin") * capacity),
        capacity=capacity,
    )


def _buffers(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Live for a moment: a gathered input and its gradient, one recomputed layer, logits [B]."""
    tokens = tokens_of(plan)
    moe = any(is_moe(model, layers).any() for layers in chunk_layers(model, plan, stage))
    gathered = 2 * ELEMENT_BYTES * tokens * model.hidden
    again = 0
    if plan.recompute == "full":
        again = layer_activations(model, replace(plan, recompute="selective"), moe=moe)
    # Logits and their gradient in fp32, after the layers' buffers are free.
    logits = 8 * tokens * part(model.vocab, plan.tp) if stage == plan.pp - 1 else 0
    return max(gathered + again, logits) + _units(model, plan, stage, moe)


def _units(model: Model, plan: ParallelPlan, stage: int, moe: bool) -> int:
    """Whole parameters and gradients of the layers at work where ranks keep only parts [B]."""
    layer = layer_share(model, plan, moe=moe).total
    edges = edge_share(model, plan, stage)
    parameters = WEIGHT_BYTES * (GATHERED_LAYERS * layer + edges) if plan.sharding == 3 else 0
    gradients = GRADIENT_BYTES * (layer + edges) if plan.sharding >= 2 else 0
    return parameters + gradients


def worst(model: Model, plan: ParallelPlan, parts: Catalogue, chip: str) -> Memory:
    """Memory of the stage that needs most: one of the ends where layers are alike."""
    even = model.layers % (plan.pp * plan.vpp) == 0 and not plan.stage_layers
    ends = even and not model.experts
    stages = sorted({0, plan.pp - 1}) if ends else range(plan.pp)
    return max((memory(model, plan, s, parts, chip) for s in stages), key=lambda m: m.total)


def check_memory(found: Memory, plan: ParallelPlan) -> None:
    """Refuse what does not fit.

    Raises
    ------
    InputError
        With the numbers by part.
    """
    if found.total <= found.capacity:
        return
    numbers = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in found.parts().items())
    raise InputError(
        f"the plan needs {found.total / 1e9:.1f} GB a rank ({numbers}), but a rank has "
        f"{found.capacity / 1e9:.1f} GB. {_remedy(found, plan)}"
    )


def _remedy(found: Memory, plan: ParallelPlan) -> str:
    if plan.zero == 0 and plan.dp > 1 and found.optimizer > found.activations:
        return "Use --zero 1, or more tp or pp."
    if found.activations > found.weights + found.gradients and plan.recompute != "full":
        return "Use --recompute full, a smaller --microbatch, or more tp."
    return "Use more tp or pp, or --allow-oversized to run it all the same."
