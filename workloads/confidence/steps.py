"""Intervals of training steps, by chip, framework and regime, and by what the predictor was told.

The score of a measured row is its distance from the hull of the times that unstated fields leave
open (conformalised quantiles, Romano, Patterson and Candès 2019). The quantile of a domain, which
is a chip, a framework and a kind of step, is drawn towards that of the framework on other chips,
and this one towards that of all other frameworks on chips of the same runtime, each framework with
equal weight: what is known of a framework that nobody measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from topologies.catalogue.families import NEURON
from workloads.confidence.domains import LEAST, generation, runtime
from workloads.confidence.interval import LEVEL
from workloads.confidence.kinds import BARE, FAMILY, FRAMEWORK, NAMES, PLAN, RESEARCH, Prediction
from workloads.confidence.quantile import weighted_quantile
from workloads.confidence.residuals import Residual, Residuals

TRAINING = "training"
UNMEASURED = math.log(1.36)
"""Smallest half-width of a Neuron chip, framework and kind without rows of two tables: the median
of the errors of nine steps on Trn2 before any constant had seen them (``trainium2_contest``)."""
TOLD = {
    "": "plan, framework and conditions stated",
    FRAMEWORK: "plan and framework stated",
    PLAN: "plan stated, framework not",
    BARE: "degrees, batch and precision stated",
}
"""Levels in words."""


class Pool(NamedTuple):
    """Measured rows from which a half-width comes."""

    half: float  # quantile of their scores, in logarithms
    rows: int
    tables: int


def step_ends(prediction: Prediction, half: float) -> tuple[float, float]:
    """Return the ends of an interval, as logarithms of their ratio to the prediction."""
    low, high = prediction.below - half, prediction.above + half
    return min(-LEAST, low), max(LEAST, high)


def least_half_width(prediction: Prediction, residuals: Residuals, wider: float = 1.0) -> float:
    """Return the smallest half-width of a step, whatever its domain was drawn towards.

    One table of a Neuron chip and framework does not tell how far the next one is, as constants
    were fitted to it; nor do two where nobody stated which framework they are of. Where there is
    none, the half-width is ``wider`` as well, for degrees and ranks beyond those measured.
    """
    domain = (prediction.chip, prediction.framework, prediction.kind)
    tables = {
        row.table
        for row in residuals.at_level(prediction.stated).rows
        if (row.chip, row.framework, row.kind) == domain
    }
    is_told = len(tables) > 1 and prediction.stated != BARE
    if is_told or runtime(prediction.chip) != NEURON:
        return LEAST
    return UNMEASURED if tables else UNMEASURED * wider


def step_half_width(
    prediction: Prediction, residuals: Residuals, level: float = LEVEL
) -> tuple[float, str]:
    """Return how far an interval reaches beyond its hull, in logarithms, and why so far.

    It is negative where measured times lay well inside their hulls.
    """
    domain, on_other_chips, others = _pools(
        *(prediction.kind, prediction.chip, prediction.framework, prediction.stated),
        residuals,
        level,
    )
    half = _drawn(domain, _drawn(on_other_chips, others.half))
    name = prediction.framework or "no framework"
    level_in_words = TOLD[prediction.stated]
    kind = NAMES[prediction.kind]
    if domain.rows:
        tables = f"{domain.tables} table{'s' * (domain.tables != 1)}"
        basis = f"{domain.rows:,} measured steps of {name} on such chips, {tables}"
    else:
        basis = f"no measured step of {name} on such a chip"
    return half, f"{basis} ({kind}; {level_in_words})"


def _drawn(pool: Pool, towards: float) -> float:
    """Return the half-width of a pool drawn towards another, which counts as one more table."""
    return (pool.tables * pool.half + towards) / (pool.tables + 1)


@lru_cache(256)
def _pools(
    kind: str, chip: str, framework: str, stated: str, residuals: Residuals, level: float
) -> tuple[Pool, Pool, Pool]:
    """Return the pools of the domain, of the framework on any chip, and of other frameworks."""
    every = [row for row in residuals.at_level(stated).rows if FAMILY.get(row.kind) == TRAINING]
    if kind != RESEARCH:
        every = [row for row in every if row.kind != RESEARCH]
    akin = [row for row in every if runtime(row.chip) == runtime(chip)] or every
    of_stack = [row for row in akin if row.framework == framework]
    of_kind = [row for row in of_stack if row.kind == kind]
    domain = [row for row in of_kind if generation(row.chip) == generation(chip)]
    others = [row for row in akin if row.framework != framework] or akin
    return (
        _pool(domain, "table", level),
        _pool(of_stack, "table", level),
        _pool(others, "framework", level),
    )


def _pool(rows: Sequence[Residual], unit: str, level: float) -> Pool:
    """Return the quantile of the scores of rows, where each table or framework has equal weight."""
    if not rows:
        return Pool(math.log(2.0), 0, 0)
    units = [getattr(row, unit) for row in rows]
    counts = {name: units.count(name) for name in set(units)}
    scores = np.array([row.score for row in rows])
    weights = np.array([1 / counts[name] for name in units])
    half = weighted_quantile(scores, weights, level)
    return Pool(half, len(rows), len({row.table for row in rows}))
