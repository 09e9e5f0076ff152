"""A feed-forward part that all tokens visit, as steps: of a dense layer, or of shared experts."""

from __future__ import annotations

from workloads.training.layers.shapes import TWO, RankShapes
from workloads.training.layers.steps import LayerOp, kernel, prefixed
from workloads.training.layers.tensor_parallel import (
    column_backward,
    gathered_product,
    norm,
    product_scattered,
    residual,
)
from workloads.training.plan.plan import ParallelPlan


def mlp_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's dense feed-forward part for a microbatch's forward pass."""
    return [
        norm(shapes, "mlp.norm"),
        *products(shapes, shapes.model.ffn, "mlp"),
        residual(shapes, "mlp.residual"),
    ]


def fed_again(plan: ParallelPlan, from_tokens: int) -> bool:
    """Return whether selective recomputation runs feed-forward parts again, too.

    ``from_tokens``: length of a sequence from which a stack does so in pipelines; 0 for none.
    """
    return plan.recompute == "selective" and plan.pp > 1 and 0 < from_tokens <= plan.seq


def mlp_again(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps that a backward pass runs again of a part of which it keeps the input."""
    steps = products(shapes, shapes.model.ffn, "mlp")
    last = next(place for place, step in enumerate(steps) if step.name == "mlp.activation")
    return prefixed(steps[: last + 1], "again.")


def mlp_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's dense feed-forward part for a microbatch's backward pass."""
    return products_backward(shapes, shapes.model.ffn, "mlp")


def products(shapes: RankShapes, ffn: int, name: str) -> list[LayerOp]:
    """Return the steps of up-projection, activation and down-projection, with ``ffn`` columns."""
    t, h, inner = shapes.tokens, shapes.model.hidden, ffn // shapes.plan.tp
    wide = up_width(shapes, inner)
    return [
        *gathered_product(shapes, name, f"{name}.up", wide, h),
        kernel(f"{name}.activation", shapes.stream(TWO * t * (wide + inner), "activation")),
        *product_scattered(shapes, name, f"{name}.down", h, inner),
    ]


def products_backward(shapes: RankShapes, ffn: int, name: str) -> list[LayerOp]:
    """Return the steps of the gradients of :func:`products`, and of the norm before them."""
    t, h, inner = shapes.tokens, shapes.model.hidden, ffn // shapes.plan.tp
    wide = up_width(shapes, inner)
    return [
        *gathered_product(shapes, f"{name}.gradient", f"{name}.down.data", inner, h),
        kernel(f"{name}.down.weight", shapes.gemm(inner, h, t)),
        kernel(
            f"{name}.activation.data", shapes.stream(TWO * t * (2 * wide + inner), "activation")
        ),
        *column_backward(shapes, name, f"{name}.up", wide),
    ]


def up_width(shapes: RankShapes, inner: int) -> int:
    """Return the columns of the up-projection: ``inner``, or twice as many where it is gated."""
    return 2 * inner if shapes.model.gated_mlp else inner
