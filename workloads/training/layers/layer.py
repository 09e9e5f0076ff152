"""The steps of one transformer layer, forward and backward, whole or split in two halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from workloads.training.layers.attention import attention_backward, attention_forward
from workloads.training.layers.experts import experts_backward, experts_forward
from workloads.training.layers.latent_attention import latent_backward, latent_forward
from workloads.training.layers.mlp import mlp_backward, mlp_forward
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import PREVIOUS, LayerOp, kernel, prefixed
from workloads.training.plan.parameters import layer_share

__all__ = ["RankShapes", "backward", "data_half", "forward", "weight_half"]

REMEMBERED = 64
"""Kinds of layers whose steps are kept: all stages and microbatches of a plan share a few."""
OF_WEIGHTS = (".weight", ".input.gather")
"""How the names of steps end that only gradients of weights need."""


@lru_cache(REMEMBERED)
def forward(shapes: RankShapes, *, moe: bool = False) -> tuple[LayerOp, ...]:
    """Steps of one layer's forward pass over one microbatch, with experts or without."""
    attend = latent_forward if shapes.model.latent else attention_forward
    feed = experts_forward if moe and shapes.model.experts else mlp_forward
    return (*attend(shapes), *feed(shapes))


@lru_cache(REMEMBERED)
def backward(shapes: RankShapes, *, moe: bool = False, again: bool = True) -> tuple[LayerOp, ...]:
    """Steps of one layer's backward pass; ``again``: what is computed again before it."""
    before: list[LayerOp] = []
    if again and shapes.plan.recompute == "full":
        before = prefixed(forward(shapes, moe=moe), "again.")
    attend = latent_backward if shapes.model.latent else attention_backward
    feed = experts_backward if moe and shapes.model.experts else mlp_backward
    return (*before, *feed(shapes), *attend(shapes), *_accumulation(shapes, moe=moe))


def _accumulation(shapes: RankShapes, *, moe: bool) -> list[LayerOp]:
    """Add gradients to those of microbatches before, where the products do not do it in passing."""
    each = shapes.parts.integer("training", "accumulation_bytes")
    if not each or shapes.plan.microbatches == 1:
        return []
    held = layer_share(shapes.model, shapes.plan, moe=moe).total
    return [kernel("layer.sum.weight", shapes.passes(each * held))]


def data_half(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Of a backward pass what the stage before waits for: gradients of inputs."""
    return [step for step in steps if not step.name.endswith(OF_WEIGHTS)]


def weight_half(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """The rest of it: gradients of weights, one after the other."""
    return [replace(step, after=PREVIOUS) for step in steps if step.name.endswith(OF_WEIGHTS)]
