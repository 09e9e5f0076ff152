"""Intervals of predicted times, and the quantiles of ratios of two predictions.

The half-width of a step follows from :mod:`workloads.confidence.steps`, any other from
:mod:`workloads.confidence.domains`: quantiles of scores of measured rows (split conformal
prediction, Vovk, Gammerman and Shafer 2005; Lei et al. 2018). Rows of one table share their
machine, framework and authors, so a thousand of them say less about the next table than ten rows of
each of ten. Every table therefore has the same weight. The interval of a step is wider where it
differs from all measured ones, by a factor for each difference.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from workloads.confidence.domains import LEAST, domain_half_width
from workloads.confidence.interval import LEVEL, Interval
from workloads.confidence.kinds import FAMILY, Prediction
from workloads.confidence.mixture import mixture_ends
from workloads.confidence.quantile import weighted_quantile
from workloads.confidence.residuals import Residuals, shipped_residuals
from workloads.confidence.steps import TRAINING, least_half_width, step_ends, step_half_width

BORROWED_TABLES = 1  # weight of the family's quantile, in tables, beside those of the kind itself
DOUBLED = {"tp": 1.4, "cp": 1.4, "ranks": 1.15}
"""Widening for each doubling of a degree, or of the ranks, beyond the largest measured on the chip.
A degree changes the shapes of kernels and the fabric of its group: with tp 16 and 32 left out, 1.15
covered 65 and 58 % of the rows of research code, and of the 17 steps of Trn1 at tp 32, from tp 8,
ten; 1.4 covers 82 and 67 %, and 16 of the 17. 1.15 covers more ranks to 81 %, two from one 70."""
ASSUMED = 1.25  # widening where kernels or links rest on assumed numbers
MOST = 2.0  # largest product of all widenings
PREDICTIONS = 256  # predictions whose widenings are remembered; rows of one table share a few


def interval(
    value: float, prediction: Prediction, residuals: Residuals | None = None, level: float = LEVEL
) -> Interval:
    """Interval of a predicted time, in its unit: divided and multiplied by the same factor.

    Where nodes may be slow, its ends are the quantiles of the mixture of usual and slowed runs.
    """
    measured = shipped_residuals() if residuals is None else residuals
    half, slow = half_width(prediction, measured, level), prediction.slow
    basis = _basis(prediction, measured)
    if FAMILY[prediction.kind] == TRAINING and not slow.share:
        low, high = (value * math.exp(end) for end in step_ends(prediction, half))
        return Interval(low, high, level, basis, value)
    if slow.share and slow.seconds:
        low, high = mixture_ends(value, slow, max(LEAST, half), level)
        more = f"a slow node in {slow.share:.0%} of runs adds {slow.seconds:,.3g} s"
        return Interval(low, high, level, f"{basis}; {more}", value)
    low, high = (value * math.exp(end) for end in (prediction.below, prediction.above))
    if low < high:
        basis += f"; {low * 1e6:,.3g} to {high * 1e6:,.3g} us by the tool that times it"
    return Interval(low / math.exp(half), high * math.exp(half), level, basis, value)


def half_width(prediction: Prediction, residuals: Residuals, level: float = LEVEL) -> float:
    """Half of an interval's width, in logarithms: the ends are value · exp(± half_width)."""
    if FAMILY[prediction.kind] != TRAINING:
        return domain_half_width(prediction, residuals, level)[0]
    half, _ = step_half_width(prediction, residuals, level)
    wider = widening(prediction, residuals)
    # What unstated fields leave open counts towards the least that an interval reaches.
    open_by = min(-prediction.below, prediction.above)
    least = least_half_width(prediction, residuals, wider) - open_by
    return max(half * wider if half > 0 else half, least)


def widening(prediction: Prediction, residuals: Residuals) -> float:
    """Factor by which a step's interval is wider than those of measured rows of its kind."""
    return min(MOST, math.prod(factor for factor, _ in _factors(prediction, residuals)))


@lru_cache(PREDICTIONS)
def _factors(prediction: Prediction, residuals: Residuals) -> tuple[tuple[float, str], ...]:
    """Differences between a prediction and the measurements, each with its factor and reason."""
    of_kind, factors = residuals.of(prediction.kind), []
    for degree, doubled in DOUBLED.items():
        size, largest = getattr(prediction, degree), of_kind.largest(degree, prediction.chip)
        if of_kind.rows and size > largest:
            doublings = math.log2(size / largest)
            factors.append((doubled**doublings, f"{degree} {size:,} beyond {largest:,}"))
    if prediction.assumed:
        factors.append((ASSUMED, "assumed numbers"))
    return tuple(factors)


def _basis(prediction: Prediction, residuals: Residuals) -> str:
    """Sentence with the measurements behind an interval and the reasons for its widening."""
    if FAMILY[prediction.kind] != TRAINING:
        return domain_half_width(prediction, residuals)[1]
    factors = _factors(prediction, residuals)
    reasons = (f"; ×{factor:.2f} for {reason}" for factor, reason in factors)
    return step_half_width(prediction, residuals)[1] + "".join(reasons)


@lru_cache(maxsize=256)
def score_quantile(kind: str, residuals: Residuals, level: float = LEVEL) -> float:
    """Quantile of the scores of a kind, drawn towards that of its family if it has few tables.

    Scores are those of predictions that were told all that a row states.
    """
    of_kind, tables_of_kind = _quantile(residuals.of(kind), level)
    told_all = residuals.at_level("").rows
    relatives = Residuals(tuple(row for row in told_all if FAMILY.get(row.kind) == FAMILY[kind]))
    shared, _ = _quantile(relatives, level)
    if not tables_of_kind:
        return shared
    weight = tables_of_kind / (tables_of_kind + BORROWED_TABLES)
    return math.exp(weight * math.log(of_kind) + (1 - weight) * math.log(shared))


def _quantile(rows: Residuals, level: float) -> tuple[float, int]:
    """Quantile of the scores with equal weight for every table, and the number of tables."""
    scores, weights = [], []
    for table in rows.by_table.values():
        for row in table:
            scores.append(abs(row.log_residual) / (ASSUMED if row.assumed else 1.0))
            weights.append(1 / len(table))
    if not scores:
        return math.log(2.0), 0
    return weighted_quantile(np.array(scores), np.array(weights), level), len(rows.by_table)
