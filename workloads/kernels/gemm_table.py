"""Measured GEMM times on a grid of shapes, and their interpolation as a factor over the roofline.

The factor (measured time over roofline time) is smooth where the time itself spans six decades.
Far outside the grid it keeps the value at the edge, which is the asymptotic efficiency. Held-out
(n, k) pairs are predicted within 2 % at the median on H100 and 5 % on A100 and B200
(``tools.fit_kernels`` computes that).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from topologies.arrays import FloatArray
from topologies.files.reading import csv_lines

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
    """Return the measured grid of a family in a precision; None if there is none.

    Source: kernel measurements of NVIDIA's aiconfigurator (Apache-2.0): CUDA graphs, medians.
    """
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
    """Interpolate trilinearly in log2 of (m, n, k); shapes outside take the value at the edge.

    ``values`` (m, n, k): values on the grid of the table.
    """
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
