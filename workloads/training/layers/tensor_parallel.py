"""Tensor parallelism of a layer's products, and the norms and residuals around them.

Attention and the feed-forward part begin with a column-parallel and end with a row-parallel
product (arXiv 1909.08053). With sequence parallelism an all-gather comes before and a
reduce-scatter after such a pair; without it an all-reduce comes after it (arXiv 2205.05198, section
4.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import NOTHING, PREVIOUS, LayerOp, collective, kernel
from workloads.training.plan.stages import part

PIECES = 4
"""Largest number of pieces of an overlapped product: the splits of Transformer Engine's pipelined
user buffers."""
LEAST_PIECE_BYTES = 2**23
"""Smallest piece of an overlapped product [B]; below it the latency of further collectives would
exceed the time that they hide."""


def enter(shapes: RankShapes, name: str, after: str = PREVIOUS) -> list[LayerOp]:
    """Return the steps that gather the sequence before a column-parallel product."""
    if shapes.plan.tp == 1 or not shapes.plan.sequence_parallel:
        return []
    gather = collective(f"{name}.gather", "tp", "all-gather", shapes.gathered_bytes, after=after)
    return [gather, *_reordered(shapes, gather.name, shapes.gathered_bytes)]


def leave(shapes: RankShapes, name: str, after: str = PREVIOUS) -> list[LayerOp]:
    """Return the steps that sum the partial results of a row-parallel product."""
    if shapes.plan.tp == 1:
        return []
    if not shapes.plan.sequence_parallel:
        return [collective(f"{name}.reduce", "tp", "all-reduce", shapes.wide_bytes, after=after)]
    scatter = collective(f"{name}.scatter", "tp", "reduce-scatter", shapes.wide_bytes, after=after)
    return [*_reordered(shapes, scatter.name, shapes.wide_bytes), scatter]


def _reordered(shapes: RankShapes, name: str, size_bytes: int) -> list[LayerOp]:
    """Kernel that copies what is gathered or scattered, where its parts are not consecutive."""
    copies = shapes.catalogue.integer("training", "sequence_copies")
    if not copies or overlaps(shapes):
        return []
    return [kernel(f"{name}.copy", shapes.passes(2 * copies * size_bytes))]


def gathered_product(shapes: RankShapes, block: str, name: str, n: int, k: int) -> list[LayerOp]:
    """Return the steps that gather the sequence and multiply it, (t, k) × (k, n), in pieces."""
    parts = pieces(shapes)
    if parts == 1:
        return [*enter(shapes, block), kernel(name, shapes.gemm(shapes.tokens, n, k))]
    size = part(shapes.gathered_bytes, parts)
    product = shapes.gemm(part(shapes.tokens, parts), n, k)
    # Gathers follow each other on their stream, and each piece of the product waits for its gather.
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
    """Return the steps that multiply, (t, k) × (k, n), and sum partial results, in pieces."""
    parts = pieces(shapes)
    if parts == 1:
        return [kernel(name, shapes.gemm(shapes.tokens, n, k)), *leave(shapes, block)]
    size, product = part(shapes.wide_bytes, parts), shapes.gemm(part(shapes.tokens, parts), n, k)
    # Only the first piece has nothing to be reduced beside it.
    timings = [product] + [shapes.beside(product)] * (parts - 1)
    afters = [PREVIOUS] + [NOTHING] * (parts - 1)
    products = [
        kernel(f"{name}{suffix}", timing, after=after)
        for suffix, timing, after in zip(_suffixes(parts), timings, afters, strict=True)
    ]
    sums = [
        collective(f"{block}.scatter{suffix}", "tp", "reduce-scatter", size)
        for suffix in _suffixes(parts)
    ]
    pairs = zip(_with_first(products), _with_first(sums), strict=True)
    return [step for pair in pairs for step in pair]


def pieces(shapes: RankShapes) -> int:
    """Return the number of pieces in which a product runs beside its gathering or reduction."""
    # With ``overlap all`` and sequence parallelism the communication of all pieces but one is
    # hidden (Megatron-LM's ``tp_comm_overlap``). Otherwise there is one piece.
    overlapped = overlaps(shapes) and shapes.plan.sequence_parallel
    return max(1, min(PIECES, shapes.wide_bytes // LEAST_PIECE_BYTES)) if overlapped else 1


def overlaps(shapes: RankShapes) -> bool:
    """Return whether products run beside what tensor-parallel ranks exchange."""
    return shapes.plan.overlap == "all" and shapes.plan.tp > 1 and shapes.beside_tp


def _with_first(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Return the pieces of a step so that the host issues all of them together with the first."""
    return [steps[0], *(step._replace(issued=0.0) for step in steps[1:])]


def _suffixes(parts: int) -> list[str]:
    """Endings of the names of pieces; the first piece has the name of the whole step."""
    return ["", *(f".{number}" for number in range(2, parts + 1))]


def norm(shapes: RankShapes, name: str, *, backward: bool = False) -> LayerOp:
    """Return the step of a norm, which reads or writes the hidden state in two passes or four."""
    # Where a framework writes it out, each of its operations is a kernel, and so are the casts and
    # sums for the products that read its result.
    direction, numbers = "backward" if backward else "forward", shapes.catalogue
    readers = {"attention": 3, "mlp": 1 + shapes.model.gated_mlp}.get(name.partition(".")[0], 1)
    moved = numbers.integer("training", f"norm_{direction}_bytes")
    moved += readers * numbers.integer("training", f"reader_{direction}_bytes")
    if moved:
        elements = shapes.tokens * shapes.model.hidden // shapes.plan.sp
        return kernel(name, shapes.passes(moved * elements))
    passes = 4 if backward else 2
    return kernel(name, shapes.stream(passes * shapes.wide_bytes // shapes.plan.sp, "norm"))


def residual(shapes: RankShapes, name: str) -> LayerOp:
    """Return the step that adds to the residual, with the mask of dropout if there is one."""
    mask = shapes.tokens * shapes.model.hidden if shapes.model.dropout else 0
    return kernel(name, shapes.stream((3 * shapes.wide_bytes + mask) // shapes.plan.sp))


def column_backward(shapes: RankShapes, block: str, name: str, columns: int) -> list[LayerOp]:
    """Return the steps of both gradients of a column-parallel product and of its norm."""
    # The product's input is gathered again for the gradient of the weight, if only a part was kept.
    # With ``overlap all`` it runs beside the gradient of the input, whose reduction runs beside the
    # gradient of the weight; the norm waits for the reduction.
    t, h = shapes.tokens, shapes.model.hidden
    data, weight = shapes.gemm(t, h, columns), shapes.gemm(h, columns, t)
    norm_backward = norm(shapes, f"{block}.norm.data", backward=True)
    gathers = shapes.plan.sp > 1 and shapes.catalogue.integer("training", "input_gathers")
    gathered = enter(shapes, f"{block}.input") * gathers
    if not overlaps(shapes):
        return [
            *gathered,
            kernel(f"{name}.data", data),
            *leave(shapes, f"{block}.input"),
            kernel(f"{name}.weight", weight),
            norm_backward,
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
        norm_backward._replace(after=reduced[0].name),
    ]
