"""What frames the products of a layer: tensor parallelism, norms and residuals.

Column-parallel products come first and row-parallel ones last in attention and in the feed-forward
part (arXiv 1909.08053); with sequence parallelism each pair is framed by an all-gather and a
reduce-scatter, without it by an all-reduce (arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

from dataclasses import replace

from workloads.training.shapes import Shapes
from workloads.training.steps import NOTHING, PREVIOUS, Step, collective, kernel


def enter(shapes: Shapes, name: str, after: str = PREVIOUS) -> list[Step]:
    """Gather the sequence before a column-parallel product."""
    if shapes.plan.tp == 1 or not shapes.plan.sequence_parallel:
        return []
    return [collective(f"{name}.gather", "tp", "all-gather", shapes.wide_bytes, after=after)]


def leave(shapes: Shapes, name: str, after: str = PREVIOUS) -> list[Step]:
    """Sum what a row-parallel product leaves in parts."""
    if shapes.plan.tp == 1:
        return []
    if shapes.plan.sequence_parallel:
        return [
            collective(f"{name}.scatter", "tp", "reduce-scatter", shapes.wide_bytes, after=after)
        ]
    return [collective(f"{name}.reduce", "tp", "all-reduce", shapes.wide_bytes, after=after)]


def norm(shapes: Shapes, name: str, *, passes: int = 2) -> Step:
    """A norm: so many reads and writes of the hidden state."""
    return kernel(name, shapes.stream(passes * shapes.wide_bytes // shapes.plan.sp))


def residual(shapes: Shapes, name: str) -> Step:
    """Add to the residual, with dropout's mask where there is one."""
    mask = shapes.tokens * shapes.model.hidden if shapes.model.dropout else 0
    return kernel(name, shapes.stream((3 * shapes.wide_bytes + mask) // shapes.plan.sp))


def column_backward(shapes: Shapes, block: str, name: str, columns: int) -> list[Step]:
    """Both gradients of a column-parallel product, and of the norm before it.

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
        kernel(f"{name}.weight", weight, after=gathered[0].name if gathered else NOTHING),
        replace(before, after=reduced[0].name),
    ]
