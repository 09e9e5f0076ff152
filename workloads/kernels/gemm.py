"""Time of a matrix product on one rank: a roofline with measured factors, or a tensor engine.

Factors describe a chip in a burst; ``gemm_sustained`` is the share of that which it keeps for
hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from topologies.catalogue.catalogue import Catalogue, ChipFamily
from topologies.support.arrays import FloatArray
from topologies.support.files.reading import csv_lines
from workloads.kernels.chip_share import KERNELS, Rank, Timing, plain, rank_of, worst
from workloads.kernels.precision import ELEMENT_BYTES, Format, element_width

How = tuple[str, str, int, Catalogue | None, bool, str]
"""Chip, precision, ranks on the chip, catalogue, whether a product casts its input to fp8, and the
precision of weights that are narrower; empty for none."""


def gemm(
    chip: str,
    m: npt.ArrayLike,
    n: npt.ArrayLike,
    k: npt.ArrayLike,
    precision: str | Format = "bf16",
    *,
    batch: npt.ArrayLike = 1,
    ranks_per_chip: int = 1,
    catalogue: Catalogue | None = None,
) -> Timing:
    """Time of ``batch`` products (m, k) × (k, n) in one kernel, in the arguments' common shape."""
    # A ``Format`` has the precision in which the kernel reads (k, n), which it widens on the chip.
    # A product in fp8 on a GPU includes the kernels that find the scale of its input (m, k) and
    # cast it from bf16, with which the products of the grid were measured, unless the format says
    # otherwise. Results are written in two bytes.
    form = precision if isinstance(precision, Format) else Format(precision, precision)
    weights = form.weights if form.weights != form.products else ""
    how = (chip, form.products, ranks_per_chip, catalogue, form.casts, weights)
    sides = (batch, m, n, k)
    if all(isinstance(side, int) for side in sides):
        return _one(cast(tuple[int, ...], sides), how)
    return _many(sides, how)


def _many(lengths: Sequence[npt.ArrayLike], how: How) -> Timing:
    """Time of products whose lengths (batch, m, n and k) are broadcast."""
    *share, casts, weights = how
    precision, rank = how[1], rank_of(*share)
    weight_bytes = ELEMENT_BYTES[weights] if weights else rank.element_bytes
    sides = np.broadcast_arrays(*(np.asarray(side, float) for side in lengths))
    if rank.family.kernels == f"{KERNELS}trainium":
        sustained = _sustained(rank, precision)
        grade = "interpolated" if rank.grade("gemm_sustained") != "assumed" else "assumed"
        # Where the other input's bytes would count, instructions take longer than both.
        rank = replace(rank, element_bytes=weight_bytes)
        seconds = product_s(rank, sides[0], sides[1], sides[2], sides[3], sustained)
        return Timing(plain(seconds), worst(rank.family.provenance, grade))
    # An instruction in fp8 takes twice the inner length of one in bf16, in the same time and bytes.
    as_bf16 = not casts and element_width(precision) == "fp8"
    grid, factors, grade = _factors(rank.family, "bf16" if as_bf16 else precision)
    grade, inner = ("interpolated", sides[3] / 2) if as_bf16 else (grade, sides[3])
    at = (np.maximum(sides[0] * sides[1], 1), sides[2], inner)
    sustained = _sustained(rank, precision)
    if weights and rank.knows("widened_rate"):
        sustained *= rank.constant("widened_rate")

    def measured_s(batch: FloatArray) -> FloatArray:
        """Return seconds by the measured factors on the roofline."""
        shape = (np.maximum(batch * sides[1], 1), *at[1:])
        factor: FloatArray = np.exp(interpolate(grid, factors, *shape))
        modelled = roofline_s(
            rank, batch, *sides[1:], sustained=sustained, weight_bytes=weight_bytes
        )
        return factor * modelled

    seconds = measured_s(sides[0])
    if (sides[0] > 1).any():
        # Measured times of small shapes scatter, but many products take no less than one.
        seconds = np.maximum(seconds, measured_s(np.minimum(sides[0], 1)))
    return Timing(plain(seconds), worst(rank.family.provenance, grade, place(grid, *at)))


@lru_cache(maxsize=2**16)
def _one(sides: tuple[int, ...], how: How) -> Timing:
    """Time of a product of one shape; cached, as a training step repeats few shapes many times."""
    return _many(sides, how)


def sustained_flops_per_s(chip: str, precision: str, catalogue: Catalogue) -> float:
    """Rate of large matrix products that a chip keeps for hours [FLOP/s]."""
    rank = rank_of(chip, precision, 1, catalogue)
    return rank.peak_flops_per_s * _sustained(rank, precision)


def _sustained(rank: Rank, precision: str) -> float:
    """Share of the compute rate that a chip keeps for hours, by chip or precision where known."""
    # A chip of another power and number of multiprocessors than the measured one keeps another part
    # of its headline (``gemm_power_CHIP``).
    names = [f"gemm_sustained_{name}" for name in (rank.chip, element_width(precision))]
    stated = [name for name in names if rank.knows(name)]
    share = rank.constant(stated[0] if stated else "gemm_sustained")
    return share * rank.constant(f"gemm_power_{rank.chip}", 1.0)


def roofline_s(
    rank: Rank,
    batch: FloatArray,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    *,
    sustained: float = 1.0,
    weight_bytes: float | None = None,
) -> FloatArray:
    """Time of a launch plus the longer of arithmetic and memory traffic [s]."""
    # Each operand is read once, and the result is written once. ``weight_bytes``: size of an
    # element of (k, n), by default as of the other operand.
    compute_s = 2 * batch * m * n * k / (rank.peak_flops_per_s * sustained)
    narrow = rank.element_bytes if weight_bytes is None else weight_bytes
    traffic = batch * (rank.element_bytes * m * k + narrow * n * k + 2 * m * n)
    slower: FloatArray = np.maximum(compute_s, traffic / rank.hbm_bytes_per_s)
    return slower + rank.constant("launch")


@cache
def _factors(family: ChipFamily, precision: str) -> tuple[GemmTable, FloatArray, str]:
    """Grid, logarithms of measured time over roofline time, and provenance for a precision."""
    name = family.kernels.removeprefix(KERNELS)
    table, grade = gemm_table(name, precision), "measured"
    if table is None:
        # Instructions handle the scales of micro-scaled formats, which run as the plain ones do.
        precision, grade = element_width(precision), "interpolated"
        table = gemm_table(name, precision)
    if table is None:
        table, grade, precision = gemm_table(name, "bf16"), "assumed", "bf16"
    if table is None:
        raise LookupError(f"no measured GEMMs of {name}")
    mesh = np.meshgrid(table.m, table.n, table.k, indexing="ij")
    measured_on = rank_of(family.measured_on, precision, 1, None)
    modelled = roofline_s(measured_on, np.ones(()), *mesh)
    return table, fill(np.log(table.seconds / modelled)), grade


# Measured GEMM times on a grid of shapes, and their interpolation as a factor over the roofline.
# The factor (measured time over roofline time) is smooth where the time itself spans six decades.
# Far outside the grid it keeps the value at the edge, which is the asymptotic efficiency. Held-out
# (n, k) pairs are predicted within 2 % at the median on H100 and 5 % on A100 and B200
# (``tools.fit_kernels`` computes that).

GRID = Path(__file__).parent / "data" / "gemm_us.csv"  # file of measured times [µs]


@dataclass(frozen=True, eq=False)
class GemmTable:
    """Measured GEMM times of one family of chips in one precision."""

    # m, n, k: sides of the grid of shapes, ascending
    m: FloatArray
    n: FloatArray
    k: FloatArray
    seconds: FloatArray  # (m, n, k): measured times [s]; NaN for a shape that was not measured.

    @cached_property
    def logs(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Logarithms of the grid to base 2 along m, n and k."""
        return np.log2(self.m), np.log2(self.n), np.log2(self.k)


@cache
def gemm_table(family: str, precision: str) -> GemmTable | None:
    """Return the measured grid of a family in a precision; None if there is none."""
    # Source: kernel measurements of NVIDIA's aiconfigurator (Apache-2.0): CUDA graphs, medians.
    text = GRID.read_text(encoding="utf-8")
    lines = csv_lines(text, "gemm_us.csv")
    k = np.array([float(name) for name in next(lines)[1][4:]])
    rows = [row for _, row in lines if row[0] == family and row[1] == precision]
    if not rows:
        return None
    shape = np.array([[float(row[2]), float(row[3])] for row in rows])
    times = np.array([[float(cell) if cell else np.nan for cell in row[4:]] for row in rows])
    m, n = np.unique(shape[:, 0]), np.unique(shape[:, 1])
    seconds = np.full((len(m), len(n), len(k)), np.nan)
    seconds[np.searchsorted(m, shape[:, 0]), np.searchsorted(n, shape[:, 1])] = times * 1e-6
    return GemmTable(m, n, k, seconds)


def fill(factor: FloatArray) -> FloatArray:
    """Replace NaN by the mean of known neighbours in n and k, outwards from measured shapes."""
    filled = factor.copy()
    while np.isnan(filled).any():
        padded = np.pad(filled, ((0, 0), (1, 1), (1, 1)), constant_values=np.nan)
        around = np.stack(
            [padded[:, :-2, 1:-1], padded[:, 2:, 1:-1], padded[:, 1:-1, :-2], padded[:, 1:-1, 2:]]
        )
        measured = ~np.isnan(around)
        mean = np.where(measured, around, 0).sum(0) / np.maximum(measured.sum(0), 1)
        hole = np.isnan(filled) & measured.any(0)
        if not hole.any():
            break
        filled[hole] = mean[hole]
    return filled


def interpolate(table: GemmTable, values: FloatArray, *shape: FloatArray) -> FloatArray:
    """Interpolate trilinearly in log2 of (m, n, k); shapes outside take the value at the edge."""
    # ``values`` (m, n, k): values on the grid of the table.
    axes = zip((table.m, table.n, table.k), table.logs, shape, strict=True)
    (low_m, m), (low_n, n), (low_k, k) = (_cell(*axis) for axis in axes)
    _, columns, depth = values.shape
    lowest = (low_m * columns + low_n) * depth + low_k
    flat = values.reshape(-1)
    interpolated = np.zeros(shape[0].shape)
    for up_m, part_m in enumerate(m):
        for up_n, part_n in enumerate(n):
            weight = part_m * part_n
            corner = lowest + (up_m * columns + up_n) * depth
            for up_k, part_k in enumerate(k):
                interpolated += weight * part_k * flat[corner + up_k]
    return interpolated


def _cell(
    axis: FloatArray, logs: FloatArray, along: FloatArray
) -> tuple[npt.NDArray[np.intp], tuple[FloatArray, FloatArray]]:
    """Lower grid point along an axis, and the weights of this point and the next, in log2."""
    at = np.log2(np.clip(along, axis[0], axis[-1]))
    low = np.clip(np.searchsorted(logs, at, side="right") - 1, 0, len(axis) - 2)
    further = (at - logs[low]) / (logs[low + 1] - logs[low])
    return low, (1 - further, further)


def place(table: GemmTable, *shape: FloatArray) -> str:
    """Return the provenance of shapes: on the grid, within it (interpolated), or outside."""
    on, inside = True, True
    for axis, along in zip((table.m, table.n, table.k), shape, strict=True):
        next_up = np.minimum(np.searchsorted(axis, along), len(axis) - 1)
        on &= bool((axis[next_up] == along).all())
        inside &= bool((along >= axis[0]).all() and (along <= axis[-1]).all())
    return "measured" if on else "interpolated" if inside else "extrapolated"


# Time of a matrix product on the tensor engines of a NeuronCore, instruction by instruction.
#
# One instruction holds 128 x 128 weights in the array and streams up to 512 columns of the other
# operand through it. A column takes one cycle in bf16, a fraction of a cycle in fp8, four cycles in
# fp32. Each instruction loses some cycles whatever its precision, and none is shorter than the time
# of loading the next weights. Sums over the inner dimension accumulate in PSUM at no cost. Either
# operand may be the one that is held; the compiler is assumed to choose the shorter way.
#
# Operands that do not fit into SBUF are read from HBM again for every block of the other operand,
# beside the arithmetic. The engine starts when its first blocks have arrived. The result of a call
# of its own that the DMA queues cannot keep in order drains at a slow rate, which was seen from
# about 1.3 GB on. No measurement shows it inside a compiled graph, where layers do not pay for it.
#
# Source: Neuron kernel guides for tile sizes; the constants are fitted to the table
# ``trainium2_kernels`` (median error in docs/how-true.md).


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
    ramp_s = 0.0  # time that the engine's clock loses at the start of a burst
    if rank.has_own("throttle_ramp"):
        ramp_s = rank.own("throttle_ramp") * (1 - rank.own("throttle_start"))
    slower = np.maximum(arithmetic_s + first_s + ramp_s, streamed_s)
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


def drain_s(rank: Rank, m: FloatArray, n: FloatArray) -> FloatArray:
    """Return the time that the large result of a call takes to drain, (products,) [s]."""
    # It counts as far as the result (m, n) exceeds the largest one that was seen to be kept in
    # order. The two results that drained were calls of an eager framework with 248,320 columns.
    if not rank.knows("gemm_drain_rate"):
        return np.zeros_like(m)
    beyond = np.maximum(0.0, _result_bytes(rank, m, n) - rank.constant("gemm_orderly_bytes"))
    return np.asarray(beyond / rank.constant("gemm_drain_rate"))
