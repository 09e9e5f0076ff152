"""Fit of one kind of measurement, and what the fits of all kinds share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.calibration.overlay.constants import Constant, ConstantsFit, with_values
from experiments.validation.predictions.outcome import Outcome
from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue

SMALLEST = 1e-30
"""Value below which a constant counts as zero, which has no logarithm to fit."""
NONE: FloatArray = np.zeros(0)
"""Errors of an empty set of rows."""


@dataclass(frozen=True, eq=False)
class Group:
    """The fit of one kind of measurement.

    Attributes
    ----------
    name : str
        ``kernels``, ``collectives`` or ``training``.
    fit : ConstantsFit
    apart, apart_before : float array (rows,)
        Errors of rows that were left out of the fit, with the fitted constants and with the
        catalogue's.
    """

    name: str
    fit: ConstantsFit
    apart: FloatArray
    apart_before: FloatArray


def with_fit(catalogue: Catalogue, fit: ConstantsFit) -> Catalogue:
    """Return the catalogue with the fitted constants."""
    return with_values(
        catalogue, {Constant(entry.part, entry.quantity): entry.value for entry in fit.entries}
    )


def predicted_s(outcome: Outcome, name: str) -> float:
    """Return a predicted time [s]."""
    return float(outcome.predicted[name])


def column(rows: Sequence[Mapping[str, Any]], name: str) -> FloatArray:
    """Return a column of rows as numbers; (rows,)."""
    return np.array([float(row[name]) for row in rows])
