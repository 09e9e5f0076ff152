"""Fits of kernel constants, repeated, and their errors on held-out rows.

``python -m tools.fit_kernels`` prints, for each measured chip and precision, the
error of the GEMM interpolation on a third of the (n, k) pairs that were left out; the constants of
the attention kernels fitted again, beside those of the catalogue; and how much of the grid's
compute rate independent GEMM measurements reach, which is the evidence for ``gemm_sustained``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.optimize import least_squares

from experiments.validation.reading.rows import Row, table
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.support.arrays import FloatArray
from workloads.kernels.chip_share import KERNELS, rank_of
from workloads.kernels.gemm import fill, gemm_table, roofline_s
from workloads.kernels.times import gemm

GRIDS = (
    ("a100-80gb", "bf16"),
    ("h100", "bf16"),
    ("h100", "fp8"),
    ("b200", "bf16"),
    ("b200", "fp8"),
)
ATTENTION = {
    "launch": 5e-6,
    "efficiency": 0.6,
    "diagonal": 1.0,
    "tail": 1.0,
    "io": 1.5,
    "cache_io": 0.5,
}
"""Constants of an attention kernel, with the values from which their fit starts."""
BLOCK = 128
SOFT = 0.1


def held_out_errors(chip: str, precision: str) -> dict[str, FloatArray]:
    """Absolute errors on (n, k) pairs left out of the interpolation, by the rows of the product."""
    rank = rank_of(chip, precision, 1, None)
    grid = gemm_table(rank.family.kernels.removeprefix(KERNELS), precision)
    if grid is None:
        raise LookupError(f"no measured GEMMs of {chip} in {precision}")
    mesh = np.meshgrid(grid.m, grid.n, grid.k, indexing="ij")
    factor = np.log(grid.seconds / roofline_s(rank, np.ones(()), *mesh))
    out = np.random.default_rng(0).random(factor.shape[1:]) < 1 / 3
    seen = factor.copy()
    seen[:, out] = np.nan
    error = np.abs(np.exp(fill(seen) - factor) - 1)
    tested = out[None] & ~np.isnan(factor)
    rows = mesh[0]
    return {
        "m < 64": error[tested & (rows < 64)],
        "64 <= m < 512": error[tested & (rows >= 64) & (rows < 512)],
        "m >= 512": error[tested & (rows >= 512)],
    }


def fit_attention(chip: str) -> tuple[dict[str, float], FloatArray]:
    """Fit the constants of fused attention to a chip's shipped rows; return them and the errors."""
    rows = [row for row in table("attention").rows().rows if row.values["chip"] == chip]
    names = ("batch", "seq", "heads", "kv_heads", "head_dim", "kernel_s")
    sides = dict(zip(names, np.array([_numbers(row, names) for row in rows]).T, strict=True))
    rank = rank_of(chip, "bf16", 1, None)
    processors = rank.constant("processors")

    def residuals(logs: FloatArray) -> FloatArray:
        constants = dict(zip(ATTENTION, np.exp(logs), strict=True))
        peak, memory = rank.peak_flops_per_s, rank.hbm_bytes_per_s
        modelled = _attention_s(constants, sides, peak, memory, processors)
        return np.asarray(np.log(modelled / sides["kernel_s"]))

    start = np.log(list(ATTENTION.values()))
    best = least_squares(residuals, start, loss="soft_l1", f_scale=SOFT)
    fitted = dict(zip(ATTENTION, np.exp(best.x).tolist(), strict=True))
    return fitted, np.abs(np.expm1(residuals(best.x)))


def _numbers(row: Row, names: tuple[str, ...]) -> list[float]:
    return [float(str(row.values[name])) for name in names]


def _attention_s(
    constants: Mapping[str, float],
    sides: Mapping[str, FloatArray],
    peak: float,
    memory: float,
    processors: float,
) -> FloatArray:
    """Time of causal attention, forward, by :func:`workloads.kernels.attention.attention` [s]."""
    b, s, h, g, d = (sides[name] for name in ("batch", "seq", "heads", "kv_heads", "head_dim"))
    flops = 2 * d * b * h * s * s * (1 + constants["diagonal"] * BLOCK / s)
    waves = b * h * np.ceil(s / BLOCK) / processors
    compute_s = flops / (peak * constants["efficiency"] * waves / (waves + constants["tail"]))
    moved = constants["io"] * 4 * d * b * s * (h + g) + constants["cache_io"] * 4 * d * b * g * s
    return np.asarray(constants["launch"] + compute_s + moved / memory)


def sustained(chip: str, least_rows: int = 1024) -> float:
    """Median ratio of measured to interpolated compute rate of large products in another table."""
    rows = [
        row
        for row in table("vidur_gemm").rows().rows
        if row.values["chip"] == chip and int(str(row.values["m"])) >= least_rows
    ]
    shape = np.array([_numbers(row, ("m", "n", "k", "kernel_s")) for row in rows]).T
    part = rank_of(chip, "bf16", 1, None).family.kernels
    kept = shipped_catalogue().value(part, "gemm_sustained")
    return float(np.median(gemm(chip, *shape[:3]).seconds * kept / shape[3]))


def main() -> None:
    """Print the errors and the fitted constants."""
    for chip, precision in GRIDS:
        for rows, error in held_out_errors(chip, precision).items():
            median, high = np.quantile(error, [0.5, 0.9])
            print(f"GEMM {chip} {precision} {rows}: median {median:.1%}, p90 {high:.1%} held out")
    for chip in ("a100-80gb", "h100"):
        fitted, error = fit_attention(chip)
        family = rank_of(chip, "bf16", 1, None)
        print(f"attention {chip}: median {np.median(error):.1%}, p90 {np.quantile(error, 0.9):.1%}")
        for name, value in fitted.items():
            print(f"  {name} {value:.4g}, catalogue {family.constant(f'attention_{name}'):.4g}")
    for chip in ("a100-80gb", "h100"):
        print(f"large GEMMs of another source over the grid, {chip}: {sustained(chip):.2f}")


if __name__ == "__main__":
    main()
