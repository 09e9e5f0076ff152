"""The part of a layer that mixes tokens, as steps: attention, latent attention, or a recurrence.

The *core* of attention is what lies between the projections: scores, softmax and weighted sums.
With context parallelism each rank has two pieces of every sequence, one from either end, so that
all ranks have equal work under a causal mask (arXiv 2407.21783, section 3.3.2). Keys and values are
passed round a ring beside the core (arXiv 2310.01889), or gathered before it. Where an indexer
selects the keys that the core reads, it scores all of them before (DeepSeek-V3.2-Exp, section 2.1).
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from topologies.catalogue.catalogue import NCCL, chip_family
from workloads.kernels import times as kernel_times
from workloads.kernels.attention import Direction, index_score_s, scattered
from workloads.kernels.chip_share import Timing, rank_of
from workloads.models.model import LatentAttention, Model, Recurrence, keys_scored, keys_seen
from workloads.training.layers.steps import (
    NOTHING,
    PREVIOUS,
    TWO,
    LayerOp,
    RankShapes,
    collective,
    column_backward,
    gathered_product,
    kernel,
    norm,
    prefixed,
    product_scattered,
    residual,
)

SOFTMAX_KERNELS = 3
"""Kernels of a softmax of PyTorch's operations beside the softmax itself, in each direction."""


def attention_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's attention for the forward pass of a microbatch."""
    h = shapes.model.hidden
    return [
        norm(shapes, "attention.norm"),
        *gathered_product(shapes, "attention", "attention.qkv", _columns(shapes), h),
        *_low_rank(shapes, "queries", "forward"),
        *_rotate(shapes),
        *_choice(shapes, "forward"),
        *_core_forward(shapes),
        *_low_rank(shapes, "groups", "forward"),
        *product_scattered(shapes, "attention", "attention.out", h, _result(shapes)),
        residual(shapes, "attention.residual"),
    ]


def attention_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's attention for the backward pass of a microbatch."""
    return [
        *_out_backward(shapes),
        *_low_rank(shapes, "groups", "backward"),
        *_core_backward(shapes),
        *_choice(shapes, "backward"),
        *prefixed(_rotate(shapes), "gradient."),
        *_low_rank(shapes, "queries", "backward"),
        *column_backward(shapes, "attention", "attention.qkv", _columns(shapes)),
    ]


def _out_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of both gradients of the output projection."""
    t, h, rows = shapes.tokens, shapes.model.hidden, _result(shapes)
    return [
        *gathered_product(shapes, "attention.gradient", "attention.out.data", rows, h),
        kernel("attention.out.weight", shapes.gemm(rows, h, t)),
    ]


def _result(shapes: RankShapes) -> int:
    """Columns of what the last product of attention takes, on this rank."""
    low = shapes.model.low_rank
    return low.groups * low.output // shapes.plan.tp if low else shapes.values


def _low_rank(shapes: RankShapes, name: str, direction: Direction) -> list[LayerOp]:
    """Steps of low-rank attention: ``queries`` and summaries before the core, ``groups`` after."""
    # Every rank of a tensor-parallel group makes all keys and summaries, and its heads' queries.
    model, t = shapes.model, shapes.tokens
    if model.low_rank is None:
        return []
    n, k, batch = shapes.heads * model.head_dim, model.low_rank.queries, 1
    if name == "queries" and model.indexer:
        n += model.indexer.heads * model.indexer.dim
    if name == "groups":
        batch = model.low_rank.groups // shapes.plan.tp
        n, k = model.low_rank.output, model.query_width // model.low_rank.groups
    summed = shapes.stream(2 * TWO * t * model.key_columns)
    steps = [kernel("attention.summaries", summed)] * (name == "queries")
    if direction == "forward":
        return [kernel(f"attention.{name}", shapes.gemm(t, n, k, batch)), *steps]
    return [
        *prefixed(steps, "gradient."),
        kernel(f"attention.{name}.data", shapes.gemm(t, k, n, batch)),
        kernel(f"attention.{name}.weight", shapes.gemm(k, n, t, batch)),
    ]


def _columns(shapes: RankShapes) -> int:
    """Columns of queries, keys and values on one rank, of the output gate, and of an indexer."""
    gate, index = shapes.heads * shapes.model.attention_gate, shapes.model.indexer
    if low := shapes.model.low_rank:
        return low.queries + shapes.model.key_columns + (index.columns if index else 0)
    columns = index.heads * index.dim + index.columns if index else 0
    both = shapes.model.kv_products * shapes.kv_heads
    columns += shapes.heads * shapes.model.head_gate
    return (shapes.heads + both + gate) * shapes.model.head_dim + columns


def _rotate(shapes: RankShapes) -> list[LayerOp]:
    """Kernel that rotates queries and keys, and normalises them where the model does."""
    # A model with learned positions rotates nothing.
    if shapes.model.positions:
        return []
    keys = shapes.kv_heads * (shapes.model.kv_products > 0)
    width = (shapes.heads + keys) * shapes.model.head_dim
    element_bytes = shapes.catalogue.integer("training", "rotation_bytes")
    if shapes.model.qk_norm or shapes.model.qk_norm_wide:
        element_bytes += 2 * TWO  # its kernel reads and writes its whole input
    return [kernel("attention.rotate", shapes.stream(element_bytes * shapes.tokens * width))]


def _core_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the forward steps of the scores, softmax and weighted sums."""
    if shapes.plan.cp == 1:
        core = kernel("attention.core", _whole(shapes, "forward"))
        return [*_copies(shapes, "forward"), core, *_softmax(shapes, core.name, "forward")]
    if shapes.plan.cp_exchange == "all-gather":
        gathered = collective("attention.keys", "cp", "all-gather", shapes.plan.cp * _keys(shapes))
        return [gathered, kernel("attention.core", _gathered(shapes, "forward"))]
    return _ring(shapes, "forward", "attention.core")


def _choice(shapes: RankShapes, direction: Direction) -> list[LayerOp]:
    """Steps in which an indexer scores all keys and chooses some, or gradients of their scores."""
    # The indexer learns from its own loss and passes no gradient on, so all that is backward is
    # work for gradients of weights (DeepSeek-V3.2-Exp, section 2.1.1). Scores are computed again.
    index, plan = shapes.model.indexer, shapes.plan
    if index is None:
        return []
    backward = direction == "backward"
    products, ending = (3, ".weight") if backward else (1, "")
    precision = "bf16" if plan.precision == "bf16" else "fp8"
    score_s = index_score_s(shapes.chip, index.heads, index.dim, precision, **shapes.rank)
    launch = shapes.stream(0)
    scores = shapes.tokens * keys_scored(shapes.model, plan.context, selected=backward)
    seconds = (1 + products) * launch.seconds + products * scores * score_s
    steps = [kernel(f"attention.index{ending}", launch._replace(seconds=seconds))]
    if plan.cp == 1:
        return steps
    size = plan.cp * TWO * shapes.tokens * index.dim
    summed = [collective("attention.index.sums.weight", "cp", "reduce-scatter", size)] * backward
    return [collective(f"attention.index.keys{ending}", "cp", "all-gather", size), *steps, *summed]


def _core_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of the gradients of queries, keys and values."""
    # The fused kernel recomputes scores within its own time; the unfused ones run again before.
    plan, name = shapes.plan, "attention.core.data"
    if plan.cp == 1:
        scores = plan.recompute == "selective" and plan.attention == "unfused"
        runs_again = scores and not shapes.keeps_projections
        again = prefixed(_core_forward(shapes), "again.") if runs_again else []
        core = kernel(name, _whole(shapes, "backward"))
        softmax, copies = _softmax(shapes, name, "backward"), _copies(shapes, "backward")
        return [*again, core, *softmax, *copies]
    if plan.cp_exchange == "all-gather":
        size = plan.cp * _keys(shapes)
        return [
            collective("attention.keys", "cp", "all-gather", size),
            kernel(name, _gathered(shapes, "backward")),
            collective("attention.keys.gradient", "cp", "reduce-scatter", size),
        ]
    return _ring(shapes, "backward", name)


def _copies(shapes: RankShapes, direction: Direction) -> list[LayerOp]:
    """Copies of queries, keys, values and result between the order of a layer and of its kernel."""
    # Rotated queries and keys of one sequence and its result are in order; gradients are joined.
    numbers, model, several = shapes.catalogue, shapes.model, shapes.plan.microbatch > 1
    moved = numbers.integer("training", "attention_copy_bytes") * shapes.tokens * model.head_dim
    parts = several or model.positions > 0 or direction == "backward"
    heads = shapes.heads * (parts + several) + shapes.kv_heads * (parts + 1)
    copies = [kernel("attention.rotate.copies", shapes.stream(moved * heads))]
    return copies if moved and shapes.plan.attention == "fused" else []


def _softmax(shapes: RankShapes, name: str, direction: Direction) -> list[LayerOp]:
    """Kernels of a softmax of PyTorch's operations, beyond the one for which the core counts it."""
    # Megatron's kernel of masked softmax takes multiples of some heads. Scores of other numbers
    # are cast to fp32, masked, normalised and cast back, each by a kernel of its own. Stacks that
    # have no such kernel, of which the number is zero, always do so. Off NVIDIA's chips, of which
    # the limit is known, a stack with a kernel of its own is taken to use it.
    plan, numbers = shapes.plan, shapes.catalogue
    if plan.attention != "unfused":
        return []
    heads, multiple = plan.microbatch * shapes.heads, numbers.integer("training", "softmax_heads")
    elsewhere = chip_family(shapes.chip, numbers).runtime != NCCL
    if multiple and (elsewhere or heads % multiple == 0):
        return []
    moved = numbers.integer("training", f"softmax_{direction}_bytes")
    apart = kernel(f"{name}.softmax", shapes.passes(moved * heads * plan.seq**2))
    return [apart._replace(issued=SOFTMAX_KERNELS)]


def _keys(shapes: RankShapes) -> int:
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
    plan, local = shapes.plan, _queries(shapes)
    # Keys of other ranks that a query sees, in the mean over the sequence and over the turns.
    model = _as_fast(shapes, direction)
    seen = keys_seen(model, plan.context) - keys_seen(model, local)
    seen_a_turn = max(1, round(seen / (plan.cp - 1)))
    # Keys of its own that a query sees at most; selected ones may all be among them.
    first = min(local, model.window or local) if model.keys == "last" else local
    first_turn = _core(shapes, direction, first, causal=first == local)
    # A turn on keys of another rank has a lower rate.
    later_turn = _core(shapes, direction, seen_a_turn, causal=False)
    efficiency = shapes.catalogue.value("training", "ring_turn_efficiency")
    later_turn = later_turn._replace(seconds=later_turn.seconds / efficiency)
    # What is merged are outputs and their sums of exponentials, in the backward pass gradients of
    # queries, keys and values. The catalogue has the bytes for each value, counted from what each
    # operation of the framework reads and writes.
    bytes_a_value = shapes.catalogue.value("training", f"ring_merge_{direction}")
    values = shapes.tokens * shapes.heads * _width(shapes)
    merge = shapes.passes(round(bytes_a_value * values))
    steps = []
    for turn in range(plan.cp):
        here = f"attention.keys.{turn}" if turn else NOTHING
        if turn < plan.cp - 1:
            # The next keys are sent before the core runs, so that they travel beside it.
            sent = f"attention.keys.{turn + 1}"
            before = here if turn else PREVIOUS
            steps.append(collective(sent, "cp", "permute", _keys(shapes), after=before))
        steps.append(kernel(name, later_turn if turn else first_turn, after=here))
        if turn:
            steps.append(kernel(f"{name}.merge", merge))
        if direction == "backward":
            steps.append(collective(f"{name}.home", "cp", "permute", _keys(shapes)))
    return steps


def _whole(shapes: RankShapes, direction: Direction) -> Timing:
    """Time of the core on whole sequences."""
    model, plan = _as_fast(shapes, direction), shapes.plan
    if plan.attention == "unfused":
        return kernel_times.unfused_attention(
            shapes.chip, plan.microbatch, plan.seq, shapes.heads, _width(shapes), direction,
            **shapes.rank,
        )  # fmt: skip
    window = min(plan.context, model.window or plan.context)
    if (model.keys != "last" or model.summaries) and window < plan.context:
        return _gathered(shapes, direction)
    return _core(shapes, direction, window, causal=window == plan.context)


def _gathered(shapes: RankShapes, direction: Direction) -> Timing:
    """Time of the core on a rank's queries and all keys, of which a query sees half on average."""
    seen = round(keys_seen(_as_fast(shapes, direction), shapes.plan.context))
    return _core(shapes, direction, seen, causal=False)


def _as_fast(shapes: RankShapes, direction: Direction) -> Model:
    """Return the model with a window of last keys that takes as long as its selected keys do."""
    # Up to as many keys as a selected one takes longer, all of them behind a mask are faster.
    model = shapes.model
    if model.keys == "last" or not model.latent:
        return model
    shape = kernel_times.AttentionShape(
        _samples(shapes), _queries(shapes), shapes.heads, shapes.kv_heads, _width(shapes),
        kv_seq=model.window, causal=False,
    )  # fmt: skip
    how = {"direction": direction, **shapes.rank}
    longer = scattered(shapes.chip, shape, shapes.heads, model.latent_width, **how)
    return replace(model, window=round(model.window * longer))


def _core(shapes: RankShapes, direction: Direction, key_count: int, *, causal: bool) -> Timing:
    """Time of the fused core on a rank's queries and ``key_count`` keys of each sample."""
    samples, queries, numbers = _samples(shapes), _queries(shapes), shapes.catalogue
    # Kernels of TPUs pad heads to whole lanes.
    lanes = numbers.integer(shapes.chip, LANES) if numbers.has(shapes.chip, LANES) else 1
    shape = kernel_times.AttentionShape(
        samples, queries, shapes.heads, shapes.kv_heads, _width(shapes, lanes),
        kv_seq=key_count, causal=causal,
    )  # fmt: skip
    core = kernel_times.attention(shapes.chip, shape, direction, **shapes.rank)
    # Queries and results, keys and values; backward these and the gradients of each.
    rows = shapes.heads * queries + shapes.kv_heads * key_count
    moved = 2 * TWO * samples * rows * _width(shapes) * (1 + (direction == "backward"))
    return core._replace(size_bytes=round(moved))


def _samples(shapes: RankShapes) -> float:
    """Number of samples of a microbatch: its sequences, or as many as are packed into them."""
    return shapes.plan.microbatch * shapes.plan.seq / shapes.plan.context


def _queries(shapes: RankShapes) -> int:
    """Tokens of a sample on one rank."""
    return max(1, shapes.plan.context // shapes.plan.cp)


LANES = "attention_lanes"


def _width(shapes: RankShapes, lanes: int = 1) -> int:
    """Width of a head in whole lanes: the mean of keys and values where they differ."""
    latent, keys = shapes.model.latent, shapes.model.head_dim
    values = latent.value_dim if latent else keys
    return sum(-(-width // lanes) * lanes for width in (keys, values)) // 2


# Multi-head latent attention of one layer as steps (arXiv 2405.04434, section 2.1).
#
# Every rank of a tensor-parallel group has the whole down-projections and applies them to its part
# of the sequence. What is then gathered for the up-projections is the narrow compressed state, as
# in Megatron-LM.


def latent_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's latent attention for the forward pass of a microbatch."""
    t, h = shapes.tokens, shapes.model.hidden
    return [
        norm(shapes, "attention.norm"),
        kernel("attention.down", shapes.gemm(t // shapes.plan.sp, _down(shapes), h)),
        kernel("attention.compressed.norm", _compressed(shapes, passes=2)),
        *_gather_compressed(shapes, "attention.compressed"),
        *(kernel(name, shapes.gemm(t, n, k)) for name, n, k in _up_products(shapes)),
        *_rotate_shared(shapes),
        *_choice(shapes, "forward"),
        *_core_forward(shapes),
        *product_scattered(shapes, "attention", "attention.out", h, shapes.values),
        residual(shapes, "attention.residual"),
    ]


def latent_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's latent attention for the backward pass of a microbatch."""
    plan, h, down, t = shapes.plan, shapes.model.hidden, _down(shapes), shapes.tokens
    local, both_gradients, summed = t // plan.sp, [], []
    for name, columns, rows in _up_products(shapes):
        both_gradients.append(kernel(f"{name}.data", shapes.gemm(t, rows, columns)))
        both_gradients.append(kernel(f"{name}.weight", shapes.gemm(rows, columns, t)))
    if plan.tp > 1:
        # The gradient of the compressed state is summed over the heads of all ranks.
        op = "reduce-scatter" if plan.sequence_parallel else "all-reduce"
        summed = [collective("attention.compressed.sum", "tp", op, _compressed_bytes(shapes))]
    return [
        *_out_backward(shapes),
        *_core_backward(shapes),
        *_choice(shapes, "backward"),
        *prefixed(_rotate_shared(shapes), "gradient."),
        *_gather_compressed(shapes, "attention.compressed.input"),
        *both_gradients,
        *summed,
        kernel("attention.compressed.norm.data", _compressed(shapes, passes=4)),
        kernel("attention.down.data", shapes.gemm(local, h, down)),
        kernel("attention.down.weight", shapes.gemm(h, down, local)),
        norm(shapes, "attention.norm.data", backward=True),
    ]


def _latent(shapes: RankShapes) -> LatentAttention:
    return cast("LatentAttention", shapes.model.latent)


def _down(shapes: RankShapes) -> int:
    """Columns of compressed queries, keys and values, of the shared position, and of an indexer."""
    latent, index = _latent(shapes), shapes.model.indexer
    columns = latent.query_rank + latent.kv_rank + latent.rope_dim
    return columns + (index.columns if index else 0)


def _up_products(shapes: RankShapes) -> list[tuple[str, int, int]]:
    """Up-projections: the name of each, its columns on this rank, and its rows."""
    latent, h, index = _latent(shapes), shapes.model.hidden, shapes.model.indexer
    key_value_columns = shapes.heads * (latent.nope_dim + latent.value_dim)
    # Every rank has all heads of an indexer, whose scores are summed over them.
    rank, scored = latent.query_rank or h, index.heads * index.dim if index else 0
    return [
        *[("attention.index.queries", scored, rank)] * (scored > 0),
        ("attention.queries", shapes.heads * shapes.model.head_dim, rank),
        ("attention.keys-values", key_value_columns, latent.kv_rank),
        *(("attention.gate", shapes.values, h) for _ in range(shapes.model.attention_gate)),
    ]


def _compressed(shapes: RankShapes, *, passes: int) -> Timing:
    """Time of reading or writing a rank's part of the compressed state ``passes`` times."""
    return shapes.stream(passes * _compressed_bytes(shapes) // shapes.plan.sp)


def _compressed_bytes(shapes: RankShapes) -> int:
    """Size of the state that all ranks of a tensor-parallel group need of a sequence [B]."""
    # Queries that the model does not compress need the hidden state itself, as does a gate.
    uncompressed = shapes.model.attention_gate or not _latent(shapes).query_rank
    return TWO * shapes.tokens * (_down(shapes) + shapes.model.hidden * uncompressed)


def _gather_compressed(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Gather the compressed state of a sequence that sequence parallelism divides."""
    if shapes.plan.tp == 1 or not shapes.plan.sequence_parallel:
        return []
    return [collective(f"{name}.gather", "tp", "all-gather", _compressed_bytes(shapes))]


def _rotate_shared(shapes: RankShapes) -> list[LayerOp]:
    """Kernel that rotates the positional part of queries and keys, and writes all heads' keys."""
    width = shapes.heads * (2 * _latent(shapes).rope_dim + shapes.model.head_dim)
    return [kernel("attention.rotate", shapes.stream(2 * TWO * shapes.tokens * width))]


# A recurrent mixer of one layer as steps: a state-space model, or linear attention.
#
# Projections are products as in attention, divided over tensor-parallel ranks by heads. Mamba-2 and
# linear attention update their state chunk by chunk with products whose cost is linear in the
# sequence (arXiv 2405.21060, section 6). A selective scan (Mamba) instead streams its inputs while
# its states stay in fast memory (arXiv 2312.00752, section 3.3.2).

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
    steps = [kernel(f"{name}.scan", shapes.stream(TWO * tokens * (2 * columns + inner) * passes))]
    if mixer.products:
        product = shapes.gemm(tokens, max(1, mixer.products // mixer.inner), inner)
        steps += [kernel(f"{name}.product.{turn}", product) for turn in range(passes)]
    if mixer.name in BY_PRODUCTS:
        half = _half_of_state(shapes)
        steps += [kernel(f"{name}.state.{turn}", half) for turn in range(2 * passes)]
    return steps


SCANNED = 128**3  # tokens, times values of a state, that ``state_scan`` is the time of


def _half_of_state(shapes: RankShapes) -> Timing:
    """Time of one of the two steps of a pass over the state: as measured, or as a product."""
    mixer, rank = _mixer(shapes), rank_of(shapes.chip, **shapes.rank)
    measured = rank.knows("state_scan") and rank.family.provenance != "assumed"
    if mixer.name == "mamba2" and measured:
        scans = shapes.tokens * _part(shapes, mixer.state) / SCANNED
        return Timing(scans * rank.constant("state_scan") / 2, rank.grade("state_scan"))
    width = max(1, mixer.state // mixer.inner)
    return shapes.gemm(shapes.tokens, width, width, max(1, _part(shapes, mixer.inner) // width))
