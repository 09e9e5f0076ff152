"""Multi-head latent attention of one layer as steps (arXiv 2405.04434, section 2.1).

Every rank of a tensor-parallel group has the whole down-projections and applies them to its part of
the sequence. What is then gathered for the up-projections is the narrow compressed state, as in
Megatron-LM.
"""

from __future__ import annotations

from typing import cast

from workloads.kernels.chip_share import Timing
from workloads.models.model import LatentAttention
from workloads.training.layers.attention import core_backward, core_forward, out_backward
from workloads.training.layers.shapes import TWO, RankShapes
from workloads.training.layers.steps import LayerOp, collective, kernel, prefixed
from workloads.training.layers.tensor_parallel import norm, product_scattered, residual


def latent_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's latent attention for the forward pass of a microbatch."""
    t, h = shapes.tokens, shapes.model.hidden
    return [
        norm(shapes, "attention.norm"),
        kernel("attention.down", shapes.gemm(t // shapes.plan.sp, _down(shapes), h)),
        kernel("attention.compressed.norm", _compressed(shapes, passes=2)),
        *_gather(shapes, "attention.compressed"),
        *_up(shapes),
        *_rotate(shapes),
        *core_forward(shapes),
        *product_scattered(shapes, "attention", "attention.out", h, shapes.values),
        residual(shapes, "attention.residual"),
    ]


def latent_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's latent attention for the backward pass of a microbatch."""
    h, down, local = shapes.model.hidden, _down(shapes), shapes.tokens // shapes.plan.sp
    return [
        *out_backward(shapes),
        *core_backward(shapes),
        *prefixed(_rotate(shapes), "gradient."),
        *_gather(shapes, "attention.compressed.input"),
        *_up_backward(shapes),
        *_sum(shapes),
        kernel("attention.compressed.norm.data", _compressed(shapes, passes=4)),
        kernel("attention.down.data", shapes.gemm(local, h, down)),
        kernel("attention.down.weight", shapes.gemm(h, down, local)),
        norm(shapes, "attention.norm.data", passes=4),
    ]


def _latent(shapes: RankShapes) -> LatentAttention:
    return cast("LatentAttention", shapes.model.latent)


def _down(shapes: RankShapes) -> int:
    """Columns of the compressed queries, keys and values, and of the position that heads share."""
    latent = _latent(shapes)
    return latent.query_rank + latent.kv_rank + latent.rope_dim


def _products(shapes: RankShapes) -> list[tuple[str, int, int]]:
    """Up-projections: the name of each, its columns on this rank, and its rows."""
    latent, h = _latent(shapes), shapes.model.hidden
    key_value_columns = shapes.heads * (latent.nope_dim + latent.value_dim)
    return [
        ("attention.queries", shapes.heads * shapes.model.head_dim, latent.query_rank or h),
        ("attention.keys-values", key_value_columns, latent.kv_rank),
    ]


def _up(shapes: RankShapes) -> list[LayerOp]:
    """Steps of the up-projections forward."""
    products = _products(shapes)
    return [kernel(name, shapes.gemm(shapes.tokens, n, k)) for name, n, k in products]


def _up_backward(shapes: RankShapes) -> list[LayerOp]:
    """Steps of both gradients of each up-projection."""
    t = shapes.tokens
    steps = []
    for name, columns, rows in _products(shapes):
        steps.append(kernel(f"{name}.data", shapes.gemm(t, rows, columns)))
        steps.append(kernel(f"{name}.weight", shapes.gemm(rows, columns, t)))
    return steps


def _compressed(shapes: RankShapes, *, passes: int) -> Timing:
    """Time of reading or writing a rank's part of the compressed state ``passes`` times."""
    return shapes.stream(passes * _compressed_bytes(shapes) // shapes.plan.sp)


def _compressed_bytes(shapes: RankShapes) -> int:
    """Size of the state that all ranks of a tensor-parallel group need of the whole sequence [B].

    Queries that the model does not compress need the hidden state itself.
    """
    uncompressed = 0 if _latent(shapes).query_rank else shapes.model.hidden
    return TWO * shapes.tokens * (_down(shapes) + uncompressed)


def _gather(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Gather the compressed state of a sequence that sequence parallelism divides."""
    if shapes.plan.tp == 1 or not shapes.plan.sequence_parallel:
        return []
    return [collective(f"{name}.gather", "tp", "all-gather", _compressed_bytes(shapes))]


def _sum(shapes: RankShapes) -> list[LayerOp]:
    """Sum the gradient of the compressed state over the heads of all ranks."""
    if shapes.plan.tp == 1:
        return []
    op = "reduce-scatter" if shapes.plan.sequence_parallel else "all-reduce"
    return [collective("attention.compressed.sum", "tp", op, _compressed_bytes(shapes))]


def _rotate(shapes: RankShapes) -> list[LayerOp]:
    """Kernel that rotates the positional part of queries and keys, and writes all heads' keys."""
    width = shapes.heads * (2 * _latent(shapes).rope_dim + shapes.model.head_dim)
    return [kernel("attention.rotate", shapes.stream(2 * TWO * shapes.tokens * width))]
