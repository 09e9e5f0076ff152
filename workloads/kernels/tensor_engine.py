"""Time of a matrix product on the tensor engines of a NeuronCore, instruction by instruction.

One instruction holds 128 x 128 weights in the array and streams up to 512 columns of the other
operand through it. A column takes one cycle in bf16, a fraction of a cycle in fp8, four cycles in
fp32. Each instruction loses some cycles whatever its precision, and none is shorter than the time
of loading the next weights. Sums over the inner dimension accumulate in PSUM at no cost. Either
operand may be the one that is held; the compiler is assumed to choose the shorter way.

Operands that do not fit into SBUF are read from HBM again for every block of the other operand,
beside the arithmetic. The engine starts when its first blocks have arrived. The result of a call of
its own that the DMA queues cannot keep in order drains at a slow rate, which was seen from about
1.3 GB on. No measurement shows it inside a compiled graph, where layers do not pay for it.

Source: Neuron kernel guides for tile sizes; the constants are fitted to the table
``trainium2_kernels`` (median error in docs/how-true.md).
"""

from __future__ import annotations

import numpy as np

from topologies.arrays import FloatArray
from workloads.kernels.chip_share import Rank


def product_s(
    rank: Rank, batch: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray, sustained: float
) -> FloatArray:
    """Return the time of ``batch`` products (m, k) x (k, n) on one rank's tensor engines [s]."""
    arithmetic_s = batch * np.minimum(
        _arithmetic_s(rank, m, n, k, sustained), _arithmetic_s(rank, n, m, k, sustained)
    )
    memory = rank.hbm_bytes_per_s * rank.constant("gemm_memory_efficiency")
    operands = batch * rank.element_bytes * (m * k + n * k)
    first_s = np.minimum(operands, rank.constant("gemm_first_bytes")) / memory
    streamed_s = batch * _traffic_bytes(rank, m, n, k) / memory
    # DMA engines are charged with reading operands once. With repeated reads and writes, LoRA on
    # Trn1, which is predicted too slow already, would be slower still: SBUF holds more of the
    # operands than assumed.
    streamed_s = np.maximum(streamed_s, operands / rank.engine_bytes_per_s)
    slower = np.maximum(arithmetic_s + first_s + _ramp_s(rank), streamed_s)
    return np.asarray(slower + rank.constant("launch"))


def _arithmetic_s(
    rank: Rank, moving: FloatArray, staying: FloatArray, k: FloatArray, sustained: float
) -> FloatArray:
    """Time of the instructions if ``staying`` columns are held and ``moving`` ones stream [s]."""
    rows, columns = rank.own("array_rows"), rank.own("array_columns")
    tiles = np.ceil(k / rows) * np.ceil(staying / columns)
    longest, lost = rank.constant("moving_rows"), rank.constant("issue_columns")
    least = rank.constant("weight_load_columns")
    cycles_a_column = rank.bf16_flops_per_s / rank.peak_flops_per_s
    # Full instructions, and a shorter one for the columns that are left.
    whole, rest = np.divmod(moving, longest)
    cycles = whole * (np.maximum(longest * cycles_a_column, least) + lost)
    cycles = cycles + (rest > 0) * (np.maximum(rest * cycles_a_column, least) + lost)
    cycle_s = 2 * rows * columns / (rank.bf16_flops_per_s * sustained)
    return np.asarray(tiles * cycles * cycle_s)


def _traffic_bytes(rank: Rank, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
    """Bytes that one product reads and writes in HBM [B]."""
    # One operand is held in SBUF block by block, and the other is read again for each block.
    left, right = rank.element_bytes * m * k, rank.element_bytes * n * k
    held = rank.sbuf_bytes * rank.constant("gemm_sbuf_share")
    rows = np.maximum(rank.constant("moving_rows"), held / (rank.element_bytes * k))
    again = np.minimum(left + right * np.ceil(m / rows), right + left * np.ceil(n / rows))
    return np.asarray(again + _result_bytes(rank, m, n))


def _result_bytes(rank: Rank, m: FloatArray, n: FloatArray) -> FloatArray:
    """Size of a result, whose elements have two bytes, or as many as the operands' if more [B]."""
    return np.asarray(max(2.0, rank.element_bytes) * m * n)


def _ramp_s(rank: Rank) -> float:
    """Time that the engine's clock loses at the start of a burst [s]."""
    if not rank.has_own("throttle_ramp"):
        return 0.0
    return rank.own("throttle_ramp") * (1 - rank.own("throttle_start"))


def drain_s(rank: Rank, m: FloatArray, n: FloatArray) -> FloatArray:
    """Return the time that the large result of a call takes to drain, (products,) [s]."""
    # It counts as far as the result (m, n) exceeds the largest one that was seen to be kept in
    # order. The two results that drained were calls of an eager framework with 248,320 columns.
    if not rank.knows("gemm_drain_rate"):
        return np.zeros_like(m)
    beyond = np.maximum(0.0, _result_bytes(rank, m, n) - rank.constant("gemm_orderly_bytes"))
    return np.asarray(beyond / rank.constant("gemm_drain_rate"))
