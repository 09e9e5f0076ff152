"""Fit of the constants of training steps to measured steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.calibration.overlay.constants import Constant, ConstantsFit, fit_constants
from experiments.calibration.overlay.group import (
    NONE,
    SMALLEST,
    Group,
    column,
    predicted_s,
    with_fit,
)
from experiments.validation.predictions.training import predict
from experiments.validation.reading.machines import machines_for
from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue
from workloads.kernels.chip_share import family

TRAINING_CONSTANTS = ("scheduling", "sharded_rate")
HOST_CONSTANTS = ("host_layer_pass", "host_adapter_pass")


def fit_training(
    rows: Sequence[Mapping[str, Any]], catalogue: Catalogue, shipped: Catalogue
) -> Group:
    """Fit the constants of steps to the rows that are not held out, if there are any.

    ``catalogue`` has the constants fitted so far, ``shipped`` those before any fit.
    """

    def times(steps: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> FloatArray:
        return np.array([predicted_s(predict(row, catalogue), "iteration_s") for row in steps])

    def errors(steps: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> FloatArray:
        return times(steps, catalogue) / column(steps, "iteration_s") - 1 if steps else NONE

    apart = [row for row in rows if _held_out(row)]
    fitted = [row for row in rows if not _held_out(row)]
    fit = ConstantsFit((), {}, NONE, NONE)
    if fitted:
        chip = machines_for(str(fitted[0]["cluster"]), 1).chip
        fit = fit_constants(
            lambda varied: times(fitted, varied),
            column(fitted, "iteration_s"),
            training_constants(chip, catalogue),
            catalogue,
            note=f"fitted to {len(fitted)} training steps on {chip}",
        )
    return Group("training", fit, errors(apart, with_fit(catalogue, fit)), errors(apart, shipped))


def _held_out(row: Mapping[str, Any]) -> bool:
    """Return whether a row is marked as a test of the fit, as the steps of a kit are."""
    return bool(row.get("held_out"))


def training_constants(chip: str, catalogue: Catalogue) -> list[Constant]:
    """Constants of training steps on a chip, the most important first."""
    part = f"kernels.{family(chip, catalogue).name}"
    names = [("training", f"{name}_{chip}") for name in TRAINING_CONSTANTS]
    names += [(part, name) for name in HOST_CONSTANTS]
    names += [(part, "gemm_sustained"), (part, "host_dispatch")]
    return [
        Constant(where, quantity, 1.0 if quantity == "gemm_sustained" else np.inf)
        for where, quantity in names
        if catalogue.has(where, quantity) and catalogue.value(where, quantity) > SMALLEST
    ]
