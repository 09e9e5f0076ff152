"""Frame of the products of a layer: tensor parallelism, norms and residuals.

Column-parallel products come first and row-parallel ones last in attention and in the feed-forward
part (arXiv 1909.08053); with sequence parallelism each pair is framed by an all-gather and a
reduce-scatter, without it by an all-reduce (arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import NOTHING, PREVIOUS, LayerOp, collective, kernel
from workloads.training.plan.parameters import part

PIECES = 4
"""Most pieces of one overlapped product: splits of Transformer Engine's pipelined user buffers."""
LEAST_PIECE_BYTES = 2**23
"""Piece below which what collectives cost at any size would outweigh what is hidden [B]."""


def enter(shapes: RankShapes, name: str, after: str = PREVIOUS) -> list[LayerOp]:
    """Steps that gather the sequence before a column-parallel product."""
    if shapes.plan.tp == 1 or not shapes.plan.sequence_parallel:
        return []
    return [collective(f"{name}.gather", "tp", "all-gather", shapes.gathered_bytes, after=after)]


def leave(shapes: RankShapes, name: str, after: str = PREVIOUS) -> list[LayerOp]:
    """Steps that sum the partial results of a row-parallel product."""
    if shapes.plan.tp == 1:
        return []
    if shapes.plan.sequence_parallel:
        return [
            collective(f"{name}.scatter", "tp", "reduce-scatter", shapes.wide_bytes, after=after)
        ]
    return [collective(f"{name}.reduce", "tp", "all-reduce", shapes.wide_bytes, after=after)]


def gathered_product(shapes: RankShapes, block: str, name: str, n: int, k: int) -> list[LayerOp]:
    """Steps that gather the sequence and multiply it, (t, k) × (k, n); see ``pieces``."""
    parts = pieces(shapes)
    if parts == 1:
        return [*enter(shapes, block), kernel(name, shapes.gemm(shapes.tokens, n, k))]
    size = part(shapes.gathered_bytes, parts)
    product = shapes.gemm(part(shapes.tokens, parts), n, k)
    gathers = [
        collective(f"{block}.gather{suffix}", "tp", "all-gather", size, after=after)
        for suffix, after in zip(_suffixes(parts), [PREVIOUS] + [NOTHING] * parts, strict=False)
    ]
    products = [
        kernel(f"{name}{suffix}", product, after=gather.name)
        for suffix, gather in zip(_suffixes(parts), gathers, strict=True)
    ]
    return [*_with_first(gathers), *_with_first(products)]


def product_scattered(shapes: RankShapes, block: str, name: str, n: int, k: int) -> list[LayerOp]:
    """Steps that multiply, (t, k) × (k, n), and sum the ranks' partial results; see ``pieces``."""
    parts = pieces(shapes)
    if parts == 1:
        return [kernel(name, shapes.gemm(shapes.tokens, n, k)), *leave(shapes, block)]
    size, product = part(shapes.wide_bytes, parts), shapes.gemm(part(shapes.tokens, parts), n, k)
    steps = [product] + [shapes.beside(product)] * (parts - 1)
    afters = [PREVIOUS] + [NOTHING] * (parts - 1)
    products = [
        kernel(f"{name}{suffix}", step, after=after)
        for suffix, step, after in zip(_suffixes(parts), steps, afters, strict=True)
    ]
    sums = [
        collective(f"{block}.scatter{suffix}", "tp", "reduce-scatter", size)
        for suffix in _suffixes(parts)
    ]
    pairs = zip(_with_first(products), _with_first(sums), strict=True)
    return [step for pair in pairs for step in pair]


def pieces(shapes: RankShapes) -> int:
    """Pieces of the sequence in which a product runs beside its gathering or reduction.

    With ``overlap all`` and sequence parallelism all but one of them are hidden (Megatron-LM's
    ``tp_comm_overlap``).
    """
    plan = shapes.plan
    overlapped = plan.overlap == "all" and plan.tp > 1 and plan.sequence_parallel
    return max(1, min(PIECES, shapes.wide_bytes // LEAST_PIECE_BYTES)) if overlapped else 1


def _with_first(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Pieces of one step, which the host issues together."""
    return [steps[0], *(replace(step, issued=0.0) for step in steps[1:])]


def _suffixes(parts: int) -> list[str]:
    """Ends of the names of pieces: the first has the name of the whole."""
    return ["", *(f".{number}" for number in range(2, parts + 1))]


def norm(shapes: RankShapes, name: str, *, passes: int = 2) -> LayerOp:
    """Step of a norm, with so many reads and writes of the hidden state."""
    return kernel(name, shapes.stream(passes * shapes.wide_bytes // shapes.plan.sp, "norm"))


def residual(shapes: RankShapes, name: str) -> LayerOp:
    """Step that adds to the residual, with dropout's mask where there is one."""
    mask = shapes.tokens * shapes.model.hidden if shapes.model.dropout else 0
    return kernel(name, shapes.stream((3 * shapes.wide_bytes + mask) // shapes.plan.sp))


def column_backward(shapes: RankShapes, block: str, name: str, columns: int) -> list[LayerOp]:
    """Steps of both gradients of a column-parallel product, and of the norm before it.

    Its input is gathered again for the weight's gradient. With ``overlap all`` the gathering runs
    beside the data gradient and the reduction beside the weight gradient; the norm waits for the
    reduction.
    """
    t, h = shapes.tokens, shapes.model.hidden
    data = shapes.gemm(t, h, columns)
    weight = shapes.gemm(h, columns, t)
    before = norm(shapes, f"{block}.norm.data", passes=4)
    gathered = enter(shapes, f"{block}.input")
    if shapes.plan.overlap != "all" or shapes.plan.tp == 1:
        return [
            *gathered,
            kernel(f"{name}.data", data),
            *leave(shapes, f"{block}.input"),
            kernel(f"{name}.weight", weight),
            before,
        ]
    reduced = leave(shapes, f"{block}.input", after=f"{name}.data")
    return [
        *gathered,
        kernel(f"{name}.data", data, after=NOTHING),
        *reduced,
        kernel(
            f"{name}.weight",
            shapes.beside(weight),
            after=gathered[0].name if gathered else NOTHING,
        ),
        replace(before, after=reduced[0].name),
    ]
