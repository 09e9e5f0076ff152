"""A recurrent mixer of one layer as steps: a state-space model, or linear attention.

Projections are products as in attention, divided over tensor-parallel ranks by heads. Mamba-2 and
linear attention update their state chunk by chunk with products whose cost is linear in the
sequence (arXiv 2405.21060, section 6). A selective scan (Mamba) instead streams its inputs while
its states stay in fast memory (arXiv 2312.00752, section 3.3.2).
"""

from __future__ import annotations

from typing import cast

from workloads.models.model import Recurrence
from workloads.training.layers.shapes import TWO, RankShapes
from workloads.training.layers.steps import LayerOp, kernel
from workloads.training.layers.tensor_parallel import (
    column_backward,
    gathered_product,
    norm,
    product_scattered,
    residual,
)

BY_PRODUCTS = ("mamba2", "lightning", "gated-delta")
"""Mixers that update their state with matrix products on chunks of the sequence."""


def recurrence_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's recurrent mixer for the forward pass of a microbatch."""
    mixer, hidden = _mixer(shapes), shapes.model.hidden
    columns, inner = _part(shapes, mixer.columns), _part(shapes, mixer.inner)
    return [
        norm(shapes, "attention.norm"),
        *gathered_product(shapes, "attention", "recurrence.in", columns, hidden),
        *_state(shapes, "recurrence", passes=1),
        *product_scattered(shapes, "attention", "recurrence.out", hidden, inner),
        residual(shapes, "attention.residual"),
    ]


def recurrence_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's recurrent mixer for the backward pass of a microbatch."""
    # States are recomputed on the way.
    mixer, tokens, hidden = _mixer(shapes), shapes.tokens, shapes.model.hidden
    columns, inner = _part(shapes, mixer.columns), _part(shapes, mixer.inner)
    return [
        *gathered_product(shapes, "attention.gradient", "recurrence.out.data", inner, hidden),
        kernel("recurrence.out.weight", shapes.gemm(inner, hidden, tokens)),
        *_state(shapes, "recurrence.gradient", passes=2),
        *column_backward(shapes, "attention", "recurrence.in", columns),
    ]


def _mixer(shapes: RankShapes) -> Recurrence:
    return cast("Recurrence", shapes.model.recurrence)


def _part(shapes: RankShapes, size: int) -> int:
    """Part of a width that one rank of a tensor-parallel group has."""
    return max(1, size // shapes.plan.tp)


def _state(shapes: RankShapes, name: str, passes: int) -> list[LayerOp]:
    """Steps of the convolution and scan, of products within the mixer, and of state updates."""
    mixer, tokens = _mixer(shapes), shapes.tokens
    columns, inner = _part(shapes, mixer.columns), _part(shapes, mixer.inner)
    moved = TWO * tokens * (2 * columns + inner) * passes
    steps = [kernel(f"{name}.scan", shapes.stream(moved))]
    if mixer.products:
        product = shapes.gemm(tokens, max(1, mixer.products // mixer.inner), inner)
        steps += [kernel(f"{name}.product.{turn}", product) for turn in range(passes)]
    if mixer.name in BY_PRODUCTS:
        width = max(1, mixer.state // mixer.inner)
        product = shapes.gemm(tokens, width, width, max(1, inner // width))
        steps += [kernel(f"{name}.state.{turn}", product) for turn in range(2 * passes)]
    return steps
