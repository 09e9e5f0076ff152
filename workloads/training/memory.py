"""Memory of one rank by part, and the refusal of a plan that does not fit.

Activations are counted tensor by tensor as the backward pass needs them; for a GPT layer with
dropout their sum is ``s b h (34 + 5 a s / h)`` bytes, formula (1) of arXiv 2205.05198, and with
tensor and sequence parallelism that over t (formula 4).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from topologies.catalogue import Catalogue
from topologies.errors import InputError
from workloads.model import Model, layer_parameters
from workloads.training.plan import ParallelPlan

WEIGHT_BYTES = 2
"""Of a parameter in bf16, in mixed precision (arXiv 1710.03740)."""
GRADIENT_BYTES = 4
"""Of a gradient, accumulated in fp32."""
OPTIMIZER_BYTES = 12
"""Of Adam's master copy, mean and variance in fp32 (arXiv 1910.02054, section 3.1)."""
ELEMENT_BYTES = 2
"""Of an activation."""


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


def stage_layers(model: Model, plan: ParallelPlan) -> int:
    """Layers of one pipeline stage."""
    return model.layers // plan.pp


def stage_parameters(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Parameters that a rank of a stage holds, its share of tensor parallelism.

    Key-value heads are replicated where tp exceeds them; norms are on every rank.
    """
    layers = stage_layers(model, plan) * rank_layer_parameters(model, plan)
    first, last = stage == 0, stage == plan.pp - 1
    edges = 0
    if first:
        edges += _share(model.embedding_parameters, plan.tp)
    if last:
        own = not model.tied_embeddings
        copied = model.tied_embeddings and plan.pp > 1
        edges += model.norm_parameters
        edges += _share(model.vocab * model.hidden, plan.tp) * (own or copied)
    return layers + edges


def rank_layer_parameters(model: Model, plan: ParallelPlan) -> int:
    """Parameters of one layer on one rank."""
    norms = 2 * model.norm_parameters
    split = _share(layer_parameters(model, moe=False) - norms, plan.tp)
    copies = max(0, plan.tp - model.kv_heads)
    replicated = 2 * copies * model.head_dim * model.hidden // plan.tp
    return split + norms + replicated


def _share(size: int, parts: int) -> int:
    return -(-size // parts)


def layer_activations(model: Model, plan: ParallelPlan) -> int:
    """What the backward pass needs of one layer and one microbatch, on one rank [B].

    Under full recomputation only the layer's input is kept.
    """
    tokens = plan.microbatch * plan.seq
    wide = ELEMENT_BYTES * tokens * model.hidden // plan.sp
    if plan.recompute == "full":
        return wide
    masks = tokens * model.hidden // plan.sp if model.dropout else 0
    kv = max(model.kv_heads // plan.tp, 1) * model.head_dim
    queries = model.query_width // plan.tp
    values = model.value_width // plan.tp
    inner = model.ffn // plan.tp
    heads = ELEMENT_BYTES * tokens * (queries + 2 * kv + values)
    hidden = ELEMENT_BYTES * tokens * inner * (3 if model.gated_mlp else 2)
    # Inputs of both norms, of the projections of attention and of the feed-forward part.
    return 4 * wide + 2 * masks + heads + hidden + _scores(model, plan, tokens)


def _scores(model: Model, plan: ParallelPlan, tokens: int) -> int:
    """Softmax and dropout of every score [B], or, of a fused kernel, one sum a query."""
    heads = model.heads // plan.tp
    if plan.attention == "fused" or plan.recompute != "none":
        return 4 * tokens * heads
    each = 2 * ELEMENT_BYTES + 1 if model.dropout else 2 * ELEMENT_BYTES
    return each * heads * tokens * plan.seq


def in_flight(plan: ParallelPlan, stage: int) -> int:
    """Microbatches whose activations a stage holds at once.

    GPipe keeps all; 1F1B as many as there are stages from this one on (arXiv 2104.04473).
    """
    if plan.schedule == "gpipe":
        return plan.microbatches
    return min(plan.microbatches, plan.pp - stage)


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
    owned = stage_parameters(model, plan, stage)
    sharded = plan.dp if plan.zero >= 1 else 1
    usable = "hbm_usable_bytes" if parts.has(chip, "hbm_usable_bytes") else "hbm_bytes"
    capacity = parts.integer(chip, usable) // plan.ranks_per_chip
    kept = stage_layers(model, plan) * layer_activations(model, plan)
    return Memory(
        weights=WEIGHT_BYTES * owned,
        gradients=GRADIENT_BYTES * owned,
        optimizer=OPTIMIZER_BYTES * _share(owned, sharded),
        activations=in_flight(plan, stage) * (kept + _edge_activations(model, plan, stage)),
        buffers=_buffers(model, plan, stage),
        margin=int(parts.value("training", "memory_margin") * capacity),
        capacity=capacity,
    )


def _edge_activations(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Input and output of the final norm, on the last stage [B]."""
    wide = ELEMENT_BYTES * plan.microbatch * plan.seq * model.hidden // plan.sp
    return 2 * wide if stage == plan.pp - 1 else 0


def _buffers(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Live for a moment: a gathered input and its gradient, one recomputed layer, logits [B]."""
    tokens = plan.microbatch * plan.seq
    gathered = 2 * ELEMENT_BYTES * tokens * model.hidden
    again = 0
    if plan.recompute == "full":
        from dataclasses import replace

        again = layer_activations(model, replace(plan, recompute="selective"))
    # Logits and their gradient in fp32, after the layers' buffers are free.
    logits = 8 * tokens * _share(model.vocab, plan.tp) if stage == plan.pp - 1 else 0
    return max(gathered + again, logits)


def worst(model: Model, plan: ParallelPlan, parts: Catalogue, chip: str) -> Memory:
    """Memory of the stage that needs most."""
    stages = sorted({0, plan.pp - 1})
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
