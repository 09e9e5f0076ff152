"""The steps of one transformer layer, forward and backward, after Megatron-LM.

Column-parallel products come first and row-parallel ones last in attention and in the feed-forward
part (arXiv 1909.08053); with sequence parallelism each pair is framed by an all-gather and a
reduce-scatter, without it by an all-reduce (arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from topologies.catalogue import Catalogue
from workloads import kernel_times
from workloads.kernel_rank import Timing
from workloads.model import Model
from workloads.training.plan import ParallelPlan
from workloads.training.steps import NOTHING, PREVIOUS, Step, collective, kernel, prefixed

TWO = 2
"""Bytes of an activation in bf16."""


@dataclass(frozen=True)
class Shapes:
    """What one rank of a plan works on, and with which kernels.

    Attributes
    ----------
    model : Model
    plan : ParallelPlan
    chip : str
    parts : Catalogue
    """

    model: Model
    plan: ParallelPlan
    chip: str
    parts: Catalogue

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.plan.microbatch * self.plan.seq

    @property
    def wide_bytes(self) -> int:
        """A microbatch's activations of the whole hidden width [B]."""
        return TWO * self.tokens * self.model.hidden

    @property
    def heads(self) -> int:
        """Query heads of this rank."""
        return self.model.heads // self.plan.tp

    @property
    def kv_heads(self) -> int:
        """Key-value heads of this rank; each rank has one at least."""
        return max(1, self.model.kv_heads // self.plan.tp)

    @property
    def inner(self) -> int:
        """Feed-forward columns of this rank."""
        return self.model.ffn // self.plan.tp

    def gemm(self, m: int, n: int, k: int) -> Timing:
        """Time of a matrix product in the plan's precision."""
        how = {"ranks_per_chip": self.plan.ranks_per_chip, "parts": self.parts}
        return kernel_times.gemm(self.chip, m, n, k, self.plan.precision, **how)  # type: ignore[arg-type]

    def stream(self, size_bytes: int) -> Timing:
        """Time of an element-wise kernel over these bytes, reads and writes."""
        per = self.plan.ranks_per_chip
        return kernel_times.elementwise(self.chip, size_bytes, ranks_per_chip=per, parts=self.parts)

    def gather(self, size_bytes: int) -> Timing:
        """Time of a look-up over these bytes."""
        per = self.plan.ranks_per_chip
        return kernel_times.gather(self.chip, size_bytes, ranks_per_chip=per, parts=self.parts)


def forward(shapes: Shapes) -> list[Step]:
    """Steps of one layer's forward pass over one microbatch."""
    return [*_attention_forward(shapes), *_mlp_forward(shapes)]


def backward(shapes: Shapes) -> list[Step]:
    """Steps of one layer's backward pass, with what is computed again before it."""
    again = prefixed(forward(shapes), "again.") if shapes.plan.recompute == "full" else []
    return [*again, *_mlp_backward(shapes), *_attention_backward(shapes)]


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


def _residual(shapes: Shapes, name: str) -> Step:
    """Add to the residual, with dropout's mask where there is one."""
    mask = shapes.tokens * shapes.model.hidden if shapes.model.dropout else 0
    return kernel(name, shapes.stream((3 * shapes.wide_bytes + mask) // shapes.plan.sp))


def _attention_core(shapes: Shapes, direction: str) -> Timing:
    model, plan = shapes.model, shapes.plan
    how = {"ranks_per_chip": plan.ranks_per_chip, "parts": shapes.parts}
    if plan.attention == "unfused":
        run = partial(kernel_times.unfused_attention, shapes.chip, plan.microbatch, plan.seq)
        return run(shapes.heads, model.head_dim, direction, **how)  # type: ignore[arg-type]
    keys = min(plan.seq, model.window or plan.seq)
    causal = keys == plan.seq
    run = partial(kernel_times.attention, shapes.chip, plan.microbatch, plan.seq, shapes.heads)
    sides = (shapes.kv_heads, model.head_dim, causal, direction)
    return run(*sides, kv_seq=keys, **how)  # type: ignore[arg-type]


def _columns(shapes: Shapes) -> int:
    """Columns of queries, keys and values on one rank."""
    return (shapes.heads + 2 * shapes.kv_heads) * shapes.model.head_dim


def _rope(shapes: Shapes) -> list[Step]:
    """Rotate queries and keys, and normalise them where the model does; read and written."""
    if shapes.model.positions:
        return []
    width = (shapes.heads + shapes.kv_heads) * shapes.model.head_dim
    passes = 4 if shapes.model.qk_norm else 2
    return [kernel("attention.rotate", shapes.stream(passes * TWO * shapes.tokens * width))]


def _attention_forward(shapes: Shapes) -> list[Step]:
    t, h = shapes.tokens, shapes.model.hidden
    return [
        norm(shapes, "attention.norm"),
        *enter(shapes, "attention"),
        kernel("attention.qkv", shapes.gemm(t, _columns(shapes), h)),
        *_rope(shapes),
        kernel("attention.core", _attention_core(shapes, "forward")),
        kernel("attention.out", shapes.gemm(t, h, shapes.heads * shapes.model.head_dim)),
        *leave(shapes, "attention"),
        _residual(shapes, "attention.residual"),
    ]


def _mlp_forward(shapes: Shapes) -> list[Step]:
    t, h, inner = shapes.tokens, shapes.model.hidden, shapes.inner
    wide = 2 * inner if shapes.model.gated_mlp else inner
    return [
        norm(shapes, "mlp.norm"),
        *enter(shapes, "mlp"),
        kernel("mlp.up", shapes.gemm(t, wide, h)),
        kernel("mlp.activation", shapes.stream(TWO * t * (wide + inner))),
        kernel("mlp.down", shapes.gemm(t, h, inner)),
        *leave(shapes, "mlp"),
        _residual(shapes, "mlp.residual"),
    ]


def _mlp_backward(shapes: Shapes) -> list[Step]:
    t, h, inner = shapes.tokens, shapes.model.hidden, shapes.inner
    wide = 2 * inner if shapes.model.gated_mlp else inner
    return [
        *enter(shapes, "mlp.gradient"),
        kernel("mlp.down.data", shapes.gemm(t, inner, h)),
        kernel("mlp.down.weight", shapes.gemm(inner, h, t)),
        kernel("mlp.activation.data", shapes.stream(TWO * t * (2 * wide + inner))),
        *column_backward(shapes, "mlp", "mlp.up", wide),
    ]


def _attention_backward(shapes: Shapes) -> list[Step]:
    t, h = shapes.tokens, shapes.model.hidden
    values = shapes.heads * shapes.model.head_dim
    again = []
    if shapes.plan.recompute == "selective" and shapes.plan.attention == "unfused":
        again = [kernel("again.attention.core", _attention_core(shapes, "forward"))]
    return [
        *enter(shapes, "attention.gradient"),
        kernel("attention.out.data", shapes.gemm(t, values, h)),
        kernel("attention.out.weight", shapes.gemm(values, h, t)),
        *again,
        kernel("attention.core.data", _attention_core(shapes, "backward")),
        *prefixed(_rope(shapes), "gradient."),
        *column_backward(shapes, "attention", "attention.qkv", _columns(shapes)),
    ]


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
