"""Attention of one layer as steps: projections, the core, and context parallelism.

The *core* is what lies between the projections: scores, softmax and weighted sums. With context
parallelism each rank has two pieces of every sequence, one from either end, so that all ranks have
equal work under a causal mask (arXiv 2407.21783, section 3.3.2). Keys and values are passed round a
ring beside the core (arXiv 2310.01889), or gathered before it.
"""

from __future__ import annotations

from workloads.kernels import times as kernel_times
from workloads.kernels.attention import Direction
from workloads.kernels.chip_share import Timing
from workloads.models.flops import keys_seen
from workloads.training.layers.shapes import TWO, RankShapes
from workloads.training.layers.steps import NOTHING, PREVIOUS, LayerOp, collective, kernel, prefixed
from workloads.training.layers.tensor_parallel import (
    column_backward,
    gathered_product,
    norm,
    product_scattered,
    residual,
)


def attention_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's attention for the forward pass of a microbatch."""
    h = shapes.model.hidden
    return [
        norm(shapes, "attention.norm"),
        *gathered_product(shapes, "attention", "attention.qkv", _columns(shapes), h),
        *_rotate(shapes),
        *core_forward(shapes),
        *product_scattered(shapes, "attention", "attention.out", h, shapes.values),
        residual(shapes, "attention.residual"),
    ]


def attention_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's attention for the backward pass of a microbatch."""
    return [
        *out_backward(shapes),
        *core_backward(shapes),
        *prefixed(_rotate(shapes), "gradient."),
        *column_backward(shapes, "attention", "attention.qkv", _columns(shapes)),
    ]


def out_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of both gradients of the output projection."""
    t, h = shapes.tokens, shapes.model.hidden
    return [
        *gathered_product(shapes, "attention.gradient", "attention.out.data", shapes.values, h),
        kernel("attention.out.weight", shapes.gemm(shapes.values, h, t)),
    ]


def _columns(shapes: RankShapes) -> int:
    """Columns of queries, keys and values on one rank, and of the output gate if there is one."""
    gate = shapes.heads * shapes.model.attention_gate
    return (shapes.heads + 2 * shapes.kv_heads + gate) * shapes.model.head_dim


def _rotate(shapes: RankShapes) -> list[LayerOp]:
    """Kernel that rotates queries and keys, and normalises them where the model does."""
    # A model with learned positions rotates nothing.
    if shapes.model.positions:
        return []
    width = (shapes.heads + shapes.kv_heads) * shapes.model.head_dim
    element_bytes = shapes.catalogue.integer("training", "rotation_bytes")
    if shapes.model.qk_norm or shapes.model.qk_norm_wide:
        element_bytes += 2 * TWO  # its kernel reads and writes its whole input
    return [kernel("attention.rotate", shapes.stream(element_bytes * shapes.tokens * width))]


def core_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the forward steps of the scores, softmax and weighted sums."""
    if shapes.plan.cp == 1:
        return [kernel("attention.core", _whole(shapes, "forward"))]
    if shapes.plan.cp_exchange == "all-gather":
        gathered = collective("attention.keys", "cp", "all-gather", shapes.plan.cp * keys(shapes))
        return [gathered, kernel("attention.core", _gathered(shapes, "forward"))]
    return _ring(shapes, "forward", "attention.core")


def core_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of the gradients of queries, keys and values."""
    # The fused kernel recomputes scores within its own time; the unfused ones run again before.
    plan, name = shapes.plan, "attention.core.data"
    if plan.cp == 1:
        again = []
        if plan.recompute == "selective" and plan.attention == "unfused":
            again = [kernel("again.attention.core", _whole(shapes, "forward"))]
        return [*again, kernel(name, _whole(shapes, "backward"))]
    if plan.cp_exchange == "all-gather":
        size = plan.cp * keys(shapes)
        return [
            collective("attention.keys", "cp", "all-gather", size),
            kernel(name, _gathered(shapes, "backward")),
            collective("attention.keys.gradient", "cp", "reduce-scatter", size),
        ]
    return _ring(shapes, "backward", name)


def keys(shapes: RankShapes) -> int:
    """Size of the keys and values of one rank's part of the sequences [B]."""
    model = shapes.model
    width = 2 * shapes.kv_heads * model.head_dim
    if model.latent:
        width = shapes.heads * (model.head_dim + model.latent.value_dim)
    return TWO * shapes.tokens * width


def _ring(shapes: RankShapes, direction: Direction, name: str) -> list[LayerOp]:
    """Steps of ring attention: each turn works on one rank's keys while the next ones arrive."""
    # A rank computes half of the square of its scores with its own keys, and half with the keys of
    # every other rank: all of its queries with half of the keys, or the other way round. Each
    # turn's results are kept in fp32 and merged with those of earlier turns by kernels of their
    # own. In the backward pass the gradients of keys travel along.
    plan, local = shapes.plan, shapes.plan.local_seq
    # Keys of other ranks that a query sees, in the mean over the sequence and over the turns.
    seen = keys_seen(shapes.model, plan.seq) - keys_seen(shapes.model, local)
    seen_a_turn = max(1, round(seen / (plan.cp - 1)))
    first_turn = _core(shapes, direction, local, causal=True)
    later_turn = _turn(shapes, direction, seen_a_turn)
    merge = _merge(shapes, direction)
    steps = []
    for turn in range(plan.cp):
        here = f"attention.keys.{turn}" if turn else NOTHING
        if turn < plan.cp - 1:
            # The next keys are sent before the core runs, so that they travel beside it.
            sent = f"attention.keys.{turn + 1}"
            before = here if turn else PREVIOUS
            steps.append(collective(sent, "cp", "permute", keys(shapes), after=before))
        steps.append(kernel(name, later_turn if turn else first_turn, after=here))
        if turn:
            steps.append(kernel(f"{name}.merge", merge))
        if direction == "backward":
            steps.append(collective(f"{name}.home", "cp", "permute", keys(shapes)))
    return steps


def _turn(shapes: RankShapes, direction: Direction, key_count: int) -> Timing:
    """Time of the core on keys of another rank, at the lower rate of a turn of a ring."""
    timing = _core(shapes, direction, key_count, causal=False)
    efficiency = shapes.catalogue.value("training", "ring_turn_efficiency")
    return timing._replace(seconds=timing.seconds / efficiency)


def _merge(shapes: RankShapes, direction: Direction) -> Timing:
    """Time of the kernels that merge a turn's results with those of earlier turns."""
    # In the forward pass the results are outputs and their sums of exponentials, in the backward
    # pass gradients of queries, keys and values. The catalogue has the bytes for each value,
    # counted from what each operation of the framework reads and writes.
    bytes_a_value = shapes.catalogue.value("training", f"ring_merge_{direction}")
    values = shapes.tokens * shapes.heads * _width(shapes)
    return shapes.passes(round(bytes_a_value * values))


def _whole(shapes: RankShapes, direction: Direction) -> Timing:
    """Time of the core on whole sequences."""
    model, plan = shapes.model, shapes.plan
    if plan.attention == "unfused":
        return kernel_times.unfused_attention(
            shapes.chip, plan.microbatch, plan.seq, shapes.heads, _width(shapes), direction,
            ranks_per_chip=plan.ranks_per_chip, catalogue=shapes.catalogue,
        )  # fmt: skip
    window = min(plan.seq, model.window or plan.seq)
    return _core(shapes, direction, window, causal=window == plan.seq)


def _gathered(shapes: RankShapes, direction: Direction) -> Timing:
    """Time of the core on a rank's queries and all keys, of which a query sees half on average."""
    seen = round(keys_seen(shapes.model, shapes.plan.seq))
    return _core(shapes, direction, seen, causal=False)


def _core(shapes: RankShapes, direction: Direction, key_count: int, *, causal: bool) -> Timing:
    """Time of the fused core on a rank's queries and ``key_count`` keys of each sequence."""
    plan = shapes.plan
    shape = kernel_times.AttentionShape(
        plan.microbatch, plan.local_seq, shapes.heads, shapes.kv_heads, _width(shapes),
        kv_seq=key_count, causal=causal,
    )  # fmt: skip
    core = kernel_times.attention(
        shapes.chip,
        shape,
        direction,
        ranks_per_chip=plan.ranks_per_chip,
        catalogue=shapes.catalogue,
    )
    # Queries and results, keys and values; backward these and the gradients of each.
    rows = shapes.heads * plan.local_seq + shapes.kv_heads * key_count
    moved = 2 * TWO * plan.microbatch * rows * _width(shapes) * (1 + (direction == "backward"))
    return core._replace(size_bytes=moved)


def _width(shapes: RankShapes) -> int:
    """Width of a head: the mean of keys and values where they differ."""
    latent = shapes.model.latent
    width = shapes.model.head_dim
    return (width + latent.value_dim) // 2 if latent else width
