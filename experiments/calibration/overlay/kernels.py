"""Fit of the constants of kernels to measured kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.calibration.overlay.constants import Constant, fit_constants
from experiments.calibration.overlay.group import (
    NONE,
    SMALLEST,
    Group,
    column,
    predicted_s,
    with_fit,
)
from experiments.calibration.overlay.measurements import Measurements
from experiments.validation.predictions.kernels import predict
from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue
from topologies.catalogue.families import chip_family
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.kernels.chip_share import family

KERNEL_CONSTANTS = (
    *("gemm_sustained", "gemm_memory_efficiency", "elementwise_efficiency", "launch"),
    *("activation_efficiency", "norm_efficiency", "softmax_efficiency", "gather_efficiency"),
    *("attention_efficiency", "attention_backward_efficiency", "attention_diagonal"),
    *("attention_launch", "issue_columns", "gemm_first_bytes", "gather_descriptor"),
    *("activation_efficiency_fp32", "norm_efficiency_fp32", "softmax_efficiency_fp32"),
    *("decode_attention_efficiency", "decode_attention_pair", "unfused_score_bytes"),
)
"""Constants of a family of kernels, the most important first."""
RUNTIME = "runtime.neuron"
UNFITTED = ("layer",)
"""Kernels whose rows stay out of the fit, as a test of it."""


def fit_kernels(measured: Measurements, catalogue: Catalogue, machine: str | None) -> Group:
    """Fit the constants of kernels to measured kernels of one chip."""
    rows = [_kernel_row(row, measured, machine, catalogue) for row in measured.kernels]
    rows = _one_load(rows)
    fitted = [row for row in rows if row["kernel"] not in UNFITTED and _known(row, catalogue)]
    apart = [row for row in rows if row["kernel"] in UNFITTED]
    if not fitted:
        raise InputError("no kernel row is of a kind that can be fitted. Run the kit's scripts.")
    constants = kernel_constants(fitted, catalogue)
    fit = fit_constants(
        lambda varied: _kernel_times(fitted, varied),
        column(fitted, "kernel_s"),
        constants,
        catalogue,
        note=f"fitted to {len(fitted)} kernels of {fitted[0]['chip']}",
    )
    return Group(
        "kernels",
        fit,
        _kernel_errors(apart, with_fit(catalogue, fit)),
        _kernel_errors(apart, catalogue),
    )


def _kernel_errors(rows: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> FloatArray:
    """Relative errors of the predicted times of rows; (rows,)."""
    if not rows:
        return NONE
    return _kernel_times(rows, catalogue) / column(rows, "kernel_s") - 1


def _kernel_row(
    row: Mapping[str, Any], measured: Measurements, machine: str | None, catalogue: Catalogue
) -> dict[str, Any]:
    """Return a row with its chip and cores, from its file, the kit or the machine."""
    chip = row.get("chip")
    cores = row.get("cores")
    if not chip and measured.manifest:
        chip, cores = measured.manifest.chip, cores or measured.manifest.cores
    if not chip and machine:
        chip = cluster(machine).chip
    if not chip:
        raise InputError(
            "a profile does not name its chip. Add --cluster, or give the kit's folder."
        )
    if not chip_family(str(chip), catalogue).is_neuron:
        cores = None  # kernels of a GPU run on the whole chip
    return {**row, "chip": chip, "cores": cores}


def _one_load(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop products on an otherwise idle chip where loaded ones were measured as well."""
    loaded = any(row["kernel"] == "gemm" and row.get("load") == "loaded" for row in rows)
    kept = [
        row
        for row in rows
        if not (loaded and row["kernel"] == "gemm" and row.get("load") != "loaded")
    ]
    return [{**row, "load": None} for row in kept]


def _known(row: Mapping[str, Any], catalogue: Catalogue) -> bool:
    """Return whether the model of kernels can predict a row."""
    try:
        return predict(row, catalogue).status == "ok"
    except InputError:
        return False


def kernel_constants(rows: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> list[Constant]:
    """Constants of the kernels of the rows' chip, the most important first."""
    chip = str(rows[0]["chip"])
    part = f"kernels.{family(chip, catalogue).name}"
    constants = []
    for name in KERNEL_CONSTANTS:
        of_chip = f"{name}_{chip}"
        quantity = of_chip if catalogue.has(part, of_chip) else name
        if catalogue.has(part, quantity) and catalogue.value(part, quantity) > SMALLEST:
            most = 1.0 if "efficiency" in name or name == "gemm_sustained" else np.inf
            constants.append(Constant(part, quantity, most))
    neuron = chip_family(chip, catalogue).is_neuron
    runtimes = sorted({str(row["runtime"]) for row in rows if row.get("runtime") and neuron})
    return constants + [
        Constant(RUNTIME, f"{runtime}_{name}")
        for runtime in runtimes
        for name in ("added", "least")
        if catalogue.has(RUNTIME, f"{runtime}_{name}")
    ]


def _kernel_times(rows: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> FloatArray:
    return np.array([predicted_s(predict(row, catalogue), "kernel_s") for row in rows])
