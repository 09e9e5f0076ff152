"""Time of the attention core on one rank: fused (flash) kernels, or one kernel for each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import FloatArray
from workloads.kernels.chip_share import Part, Rank, Timing, plain, rank_of, worst
from workloads.kernels.gemm import gemm

Direction = Literal["forward", "backward"]

BLOCK = 128
"""Queries of one block of a fused kernel; also the head dimension that constants are fitted at."""
BACKWARD_FLOPS = 2.5
"""FLOPs of fused attention's backward pass over its forward pass: five products, not two (arXiv
2307.08691)."""
FORWARD_PASSES, BACKWARD_PASSES = 9, 11
"""Bytes that softmax and dropout move for each score when every step is a kernel of its own: two
bytes for each read and each write, and one byte of mask (arXiv 2205.05198, section 4.1)."""


@dataclass(frozen=True, eq=False)
class AttentionShape:
    """Sizes of the attention of one rank."""

    batch: npt.ArrayLike  # sequences
    seq: npt.ArrayLike  # queries of each sequence
    # heads, kv_heads: query heads and key-value heads
    heads: npt.ArrayLike
    kv_heads: npt.ArrayLike
    head_dim: npt.ArrayLike  # width of a head
    kv_seq: npt.ArrayLike | None = None  # keys of each sequence; as many as queries by default
    causal: bool = True  # whether only the scores at and below the diagonal are needed

    def sides(self) -> list[FloatArray]:
        """Return batch, queries, keys, heads, key-value heads and width, broadcast to one shape."""
        keys = self.seq if self.kv_seq is None else self.kv_seq
        sizes = (self.batch, self.seq, keys, self.heads, self.kv_heads, self.head_dim)
        return list(np.broadcast_arrays(*(np.asarray(size, float) for size in sizes)))


def attention(
    chip: str,
    shape: AttentionShape,
    direction: Direction = "forward",
    *,
    writes_cache: bool = False,
    fused: bool = True,
    **part: Unpack[Part],
) -> Timing:
    """Time of one fused attention kernel: scores, softmax and weighted sum, in bf16."""
    # ``direction``: ``forward`` or ``backward``. ``fused``: whether there is a kernel to be used.
    rank = rank_of(chip, **part)
    b, s, t, h, g, d = shape.sides()
    sides = (b * h, s, t, d)
    compute_s = _core_s(rank, sides, causal=shape.causal, direction=direction, fused=fused)
    moved = 2 * d * b * (2 * h * s + 2 * g * t) * (2 if direction == "backward" else 1)
    if writes_cache:
        stored = 4 * d * b * g * t
        moved = rank.constant("attention_io") * moved
        moved = moved + rank.constant("attention_cache_io") * stored
    seconds = rank.constant("attention_launch") + compute_s + moved / rank.hbm_bytes_per_s
    fitted = direction == "forward" and bool((d == BLOCK).all())
    graded = rank.grade("attention_efficiency") != "assumed"
    provenance = "interpolated" if fitted and graded else "assumed"
    return Timing(plain(seconds), worst(rank.family.provenance, provenance))


Sides = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
"""Heads of all sequences, queries and keys of a sequence, and the width of a head."""


def _core_s(
    rank: Rank, sides: Sides, *, causal: bool, direction: Direction, fused: bool = True
) -> FloatArray:
    """Time of the arithmetic in one direction; heads too wide to be fused run unfused [s]."""
    heads, seq, keys, width = sides
    compute_s = _compute_s(rank, sides, causal)
    if direction == "backward":
        compute_s = compute_s * BACKWARD_FLOPS / rank.constant("attention_backward_efficiency")
    if not rank.knows("attention_largest_head_dim"):
        return compute_s
    fits = fused & (width <= rank.constant("attention_largest_head_dim"))
    scores = heads * seq * keys
    # Without one the whole square of scores is computed and goes through memory, a block of queries
    # at a time. A backward pass takes both twice, as steps of heads of 256 do on one chip of Trn2.
    ways = 1 if direction == "forward" else 2
    products_s = 4 * width * scores / (rank.peak_flops_per_s * rank.constant("gemm_sustained"))
    memory = rank.hbm_bytes_per_s * rank.constant("elementwise_efficiency")
    moved_s = rank.constant("unfused_score_bytes") * scores / memory
    wide_s = np.asarray(ways * (products_s + moved_s))
    return np.where(fits, compute_s, wide_s)


def _compute_s(rank: Rank, sides: Sides, causal: bool) -> FloatArray:
    """Time of the forward kernel's arithmetic [s]."""
    # It is FLOPs · (1 + blocks lost at the diagonal) / (peak · efficiency · filling · width), with
    # six constants for each family that are fitted to measured context attention (median error 3 %
    # over A100 and H100).
    heads, seq, keys, width = sides
    flops = 4 * width * heads * seq * keys
    if causal:
        flops = flops / 2 * (1 + rank.constant("attention_diagonal") * BLOCK / keys)
    waves = heads * np.ceil(seq / BLOCK) / rank.constant("processors")
    filling = waves / (waves + rank.constant("attention_tail"))
    half = rank.constant("attention_head_dim_half")
    # Narrow heads use less of the matrix units: half at this width, as much as the fits' at BLOCK.
    wide = np.minimum(1.0, width / (width + half) * (BLOCK + half) / BLOCK)
    rate = rank.peak_flops_per_s * rank.constant("attention_efficiency")
    seconds: FloatArray = flops / (rate * filling * wide)
    return seconds


def decode_attention(
    chip: str,
    batch: npt.ArrayLike,
    cached: npt.ArrayLike,
    kv_heads: npt.ArrayLike,
    head_dim: npt.ArrayLike,
    *,
    element_bytes: float = 2.0,
    **part: Unpack[Part],
) -> Timing:
    """Time of attention of one new token of each sequence, which reads the cache once."""
    # It is a cost for each sequence and key-value head, plus the time of reading the cache at a
    # share of the memory's rate.
    rank = rank_of(chip, **part)
    sides = (np.asarray(side, float) for side in (batch, cached, kv_heads, head_dim))
    b, t, g, d = np.broadcast_arrays(*sides)
    measured = rank.knows("decode_attention_efficiency")
    share = rank.constant("decode_attention_efficiency" if measured else "elementwise_efficiency")
    pair_s = rank.constant("decode_attention_pair") if measured else 0.0
    read_s = 2 * element_bytes * b * t * g * d / (rank.hbm_bytes_per_s * share)
    seconds = rank.constant("launch") + pair_s * b * g + read_s
    return Timing(
        plain(seconds), worst(rank.family.provenance, "interpolated" if measured else "assumed")
    )


HEADS_A_BLOCK = 64
"""Query heads that FlashMLA's kernels for selected keys compute at once."""


def decode_key_s(
    chip: str, heads: int, dim: float, *, selected: bool = True, **part: Unpack[Part]
) -> float:
    """Least time of a decoding query and one latent or selected key, beside streaming it [s]."""
    # Selected keys are scattered: where transfers have DMA descriptors, each takes one.
    rank = rank_of(chip, **part)
    computed = "selected_decode_efficiency" if selected else "latent_decode_efficiency"
    issue_s = rank.constant("gather_descriptor", 0.0) if selected else 0.0
    if not rank.knows(computed):
        return issue_s
    flops = 4 * dim * (whole_blocks(heads) if selected else heads)
    return max(issue_s, flops / (rank.peak_flops_per_s * rank.constant(computed)))


def whole_blocks(heads: int) -> int:
    """Return the query heads that a kernel for selected keys computes: whole blocks of them."""
    return -(-heads // HEADS_A_BLOCK) * HEADS_A_BLOCK


def scattered(chip: str, shape: AttentionShape, heads: int, dim: float, **how: Any) -> float:
    """Return how much longer attention takes to keys that were selected, each read by itself."""
    # Heads of latent attention read such keys as the cache has them, ``dim`` columns wide.
    apart = replace(shape, heads=whole_blocks(heads), kv_heads=1, head_dim=dim)
    times = [attention(chip, each, **how).seconds for each in (apart, shape)]
    return max(1.0, float(times[0] / times[1]))


def index_score_s(
    chip: str, heads: int, dim: int, precision: str = "fp8", **part: Unpack[Part]
) -> float:
    """Time of the score of one query and key by an indexer, and of choosing among scores [s]."""
    # The products of all heads run in ``precision`` where the chip does. A score is written in
    # fp32, and the choice of the largest ones reads all of them.
    rank = rank_of(chip, **part)
    if rank.has_own(f"{precision}_peak"):
        rank = rank_of(chip, precision, **part)
    products_s = 2 * heads * dim / (rank.peak_flops_per_s * rank.constant("index_efficiency"))
    return products_s + rank.constant("index_score_bytes") / rank.hbm_bytes_per_s


def unfused_attention(
    chip: str,
    batch: int,
    seq: int,
    heads: int,
    head_dim: int,
    direction: Direction = "forward",
    **part: Unpack[Part],
) -> Timing:
    """Time of attention as separate kernels: two batched products, softmax, dropout."""
    # The whole square of scores is computed and goes through memory, as in Megatron-LM before fused
    # attention (arXiv 2205.05198). Every query head has keys of its own, and there are as many keys
    # as queries. On Trainium it was measured (``unfused_score_bytes``).
    # ``direction``: ``forward`` or ``backward``.
    rank, product = rank_of(chip, **part), partial(gemm, chip, batch=batch * heads, **part)
    if rank.knows("unfused_score_bytes"):
        shape = AttentionShape(batch, seq, heads, heads, head_dim, causal=False)
        return attention(chip, shape, direction, fused=False, **part)
    score, value = product(seq, seq, head_dim), product(seq, head_dim, seq)
    scores = batch * heads * seq * seq
    rate = rank.hbm_bytes_per_s * rank.constant("elementwise_efficiency")
    forward = direction == "forward"
    passes = FORWARD_PASSES if forward else BACKWARD_PASSES
    products = score.seconds + value.seconds
    seconds = (1 if forward else 2) * products + passes * scores / rate
    seconds += 2 * rank.constant("launch")
    return Timing(seconds, worst(score.provenance, value.provenance))
