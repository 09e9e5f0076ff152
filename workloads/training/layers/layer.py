"""The steps of one layer, forward and backward, whole or split in two halves.

A layer has a mixer (attention, latent attention, or a recurrent one) and a feed-forward part, or
one of them. Where both work side by side on one input (arXiv 2204.02311, section 2), they share
the gathering before and the reduction after, and with one norm also that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from workloads.training.layers.adapters import trained_backward, with_adapters
from workloads.training.layers.attention import attention_backward, attention_forward
from workloads.training.layers.experts import experts_backward, experts_forward
from workloads.training.layers.latent_attention import latent_backward, latent_forward
from workloads.training.layers.mlp import mlp_backward, mlp_forward
from workloads.training.layers.recurrence import recurrence_backward, recurrence_forward
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import PREVIOUS, LayerOp, kernel, prefixed, without
from workloads.training.layers.tensor_parallel import norm
from workloads.training.plan.parameters import layer_share

__all__ = ["RankShapes", "backward", "data_half", "forward", "weight_half"]

REMEMBERED = 256
"""Kinds of layers whose steps are kept: all stages and microbatches of a plan share a few, and so
do plans that divide a layer alike."""
LAYER_FIELDS = (
    "tp", "cp", "seq", "microbatch", "sequence_parallel", "recompute", "precision", "fp8_recipe",
    "attention", "ranks_per_chip", "overlap", "cp_exchange", "ep", "etp", "routing_skew",
    "capacity_factor", "routed_nodes", "fp8_exchange", "lora_rank", "lora_on", "train_only",
)  # fmt: skip
"""Fields of a plan on which the steps of a layer depend; of ZeRO it matters whether parameters are
sharded, and of the batch whether there are several microbatches."""
ENTERING, LEAVING = ("gather",), ("scatter", "reduce")
"""Beginnings of the names of communications that gather a sequence, and that sum parts of it."""
OF_WEIGHTS = (".weight", ".input.gather")
"""Ends of the names of steps that only gradients of weights need."""


class _Alike:
    """Shapes of a layer, equal to all others whose layers have the same steps."""

    def __init__(self, shapes: RankShapes):
        plan = shapes.plan
        self.shapes = shapes
        self.key = (
            *(type(shapes), shapes.model, shapes.chip, shapes.catalogue),
            *(getattr(plan, name) for name in LAYER_FIELDS),
            *(plan.sharding == 3, plan.microbatches == 1, plan.pipeline.pairs_passes),
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and self.key == other.key


def forward(shapes: RankShapes, *, moe: bool = False) -> tuple[LayerOp, ...]:
    """Steps of one layer's forward pass over one microbatch, with experts or without."""
    return _forward(_Alike(shapes), moe)


def backward(shapes: RankShapes, *, moe: bool = False, again: bool = True) -> tuple[LayerOp, ...]:
    """Steps of one layer's backward pass; ``again``: what is computed again before it."""
    return _backward(_Alike(shapes), moe, again)


@lru_cache(REMEMBERED)
def _forward(alike: _Alike, moe: bool) -> tuple[LayerOp, ...]:
    shapes = alike.shapes
    mix, feed = _mixer_forward(shapes), _feed_forward(shapes, moe=moe)
    if shapes.model.parallel and mix and feed:
        mix, feed = without(mix, "attention.", LEAVING), without(feed, "mlp.", ENTERING)
        mix = [step for step in mix if step.name != "attention.residual"]
        if shapes.model.norms == 1:
            feed = without(feed, "mlp.norm", ("",))
    after = _norms_after(shapes, "after", len([1 for half in (mix, feed) if half]))
    put = _handled(shapes, "layer.unshard", moe=moe)
    return (*put, *with_adapters(shapes, [*mix, *feed]), *after)


def _mixer_forward(shapes: RankShapes) -> list[LayerOp]:
    if shapes.model.mixer == "none":
        return []
    if shapes.model.mixer == "recurrence":
        return recurrence_forward(shapes)
    return latent_forward(shapes) if shapes.model.latent else attention_forward(shapes)


def _feed_forward(shapes: RankShapes, *, moe: bool) -> list[LayerOp]:
    if moe and shapes.model.experts:
        return experts_forward(shapes)
    return mlp_forward(shapes) if shapes.model.ffn else []


def _norms_after(shapes: RankShapes, name: str, halves: int, passes: int = 2) -> list[LayerOp]:
    """Norms of what each half adds, where a model has them before and after."""
    count = halves if shapes.model.norms > 2 else 0
    return [norm(shapes, f"norm.{name}.{number}", passes=passes) for number in range(count)]


@lru_cache(REMEMBERED)
def _backward(alike: _Alike, moe: bool, again: bool) -> tuple[LayerOp, ...]:
    shapes = alike.shapes
    before: list[LayerOp] = []
    if again and shapes.plan.recompute == "full":
        before = prefixed(forward(shapes, moe=moe), "again.")
    mix, feed = _mixer_backward(shapes), _feed_backward(shapes, moe=moe)
    if shapes.model.parallel and mix and feed:
        mix = without(mix, "attention.gradient.", ENTERING)
        mix = without(mix, "attention.input.", ENTERING)
        feed = without(feed, "mlp.input.", LEAVING)
        if shapes.model.norms == 1:
            feed = without(feed, "mlp.norm", ("",))
    halves = len([1 for half in (mix, feed) if half])
    after = _norms_after(shapes, "after.data", halves, passes=4)
    put = [] if before else _handled(shapes, "layer.unshard", moe=moe)
    taken = _handled(shapes, "layer.shard", moe=moe)
    steps = [*put, *before, *after, *feed, *mix, *_accumulation(shapes, moe=moe), *taken]
    if shapes.plan.train_only == "output":
        return ()
    return tuple(trained_backward(shapes, steps))


def _mixer_backward(shapes: RankShapes) -> list[LayerOp]:
    if shapes.model.mixer == "none":
        return []
    if shapes.model.mixer == "recurrence":
        return recurrence_backward(shapes)
    return latent_backward(shapes) if shapes.model.latent else attention_backward(shapes)


def _feed_backward(shapes: RankShapes, *, moe: bool) -> list[LayerOp]:
    if moe and shapes.model.experts:
        return experts_backward(shapes)
    return mlp_backward(shapes) if shapes.model.ffn else []


def _accumulation(shapes: RankShapes, *, moe: bool) -> list[LayerOp]:
    """Add gradients to those of microbatches before, where the products do not do it in passing."""
    each = shapes.catalogue.integer("training", "accumulation_bytes")
    if not each or shapes.plan.microbatches == 1:
        return []
    held = layer_share(shapes.model, shapes.plan, moe=moe).total
    return [kernel("layer.sum.weight", shapes.passes(each * held))]


def _handled(shapes: RankShapes, name: str, *, moe: bool) -> list[LayerOp]:
    """Handle parameters that were gathered, or gradients that leave, where nothing hides it.

    A framework that limits how far ahead it gathers makes the host wait for the chip at each layer,
    so what the host does there is not hidden, and neither are copies, casts and divisions.
    """
    if shapes.plan.sharding < 3:
        return []
    start_s = shapes.catalogue.value("training", "sharded_start")
    each = shapes.catalogue.integer("training", "sharded_copy_bytes")
    if not (start_s or each):
        return []
    copied = shapes.passes(each * layer_share(shapes.model, shapes.plan, moe=moe).total)
    return [kernel(name, replace(copied, seconds=copied.seconds + start_s))]


def data_half(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Part of a backward pass that the stage before waits for: gradients of inputs."""
    return [step for step in steps if not step.name.endswith(OF_WEIGHTS)]


def weight_half(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Steps of the other half of a backward pass: gradients of weights, one after the other."""
    return [replace(step, after=PREVIOUS) for step in steps if step.name.endswith(OF_WEIGHTS)]
