"""Margins of comparisons: the ratio of two predictions is known better than either of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from topologies.arrays import FloatArray
from workloads.confidence.interval import LEVEL
from workloads.confidence.kinds import FAMILY, Prediction
from workloads.confidence.residuals import Residual, Residuals, shipped_residuals, weighted_quantile
from workloads.confidence.split_conformal import half_width, score_quantile, widening

MOST_PAIRS = 2_000  # pairs of rows of a group that are looked at; neighbours first


def margin(one: Prediction, other: Prediction, residuals: Residuals | None = None) -> float:
    """Difference of the logarithms of two predicted times within which they count as equal."""
    # For two times of one kind, the margin of measured pairs is widened as the interval of either
    # time is: for a job that nothing was fitted to, a chip without rows, larger degrees. How much
    # of their errors times of different kinds share, such as with and without sharded parameters,
    # is not known; their margin is the interval of the less certain one.
    shipped = shipped_residuals() if residuals is None else residuals
    alone = max(half_width(each, shipped) for each in (one, other))
    if one.kind != other.kind:
        return alone
    wider = max(widening(each, shipped) for each in (one, other))
    return min(alone, wider * ratio_half_width(one.kind, shipped))


def ratio_ends(
    one: tuple[float, float, float], other: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Return the low end, the value and the high end of a ratio of two independent predictions."""
    # Two machines share few errors of kernels and networks, so logarithms of the ends add as
    # squares.
    (low, value, high), (least, base, most) = one, other
    down = math.hypot(math.log(value / low), math.log(most / base))
    up = math.hypot(math.log(high / value), math.log(base / least))
    ratio = value / base
    return ratio * math.exp(-down), ratio, ratio * math.exp(up)


@lru_cache(maxsize=64)
def ratio_half_width(kind: str, residuals: Residuals | None = None) -> float:
    """Half-width of ln(time of one plan / time of another) among measured pairs of a kind."""
    # Two rows of a table with the same model and machine share the error of machine, framework and
    # kernels, which cancels in the difference of their residuals. Every table has the same weight.
    # ``residuals``: shipped ones by default.
    shipped = shipped_residuals() if residuals is None else residuals
    of_family = [row for row in shipped.at_level("").rows if FAMILY.get(row.kind) == FAMILY[kind]]
    differences, weights = [], []
    for table in Residuals(tuple(of_family)).by_table.values():
        pairs = _pairs(table)
        if not pairs:
            continue
        differences += pairs
        weights += [1 / len(pairs)] * len(pairs)
    alone = score_quantile(kind, shipped)
    if not differences:
        return math.sqrt(2) * alone
    return min(alone, weighted_quantile(np.array(differences), np.array(weights), LEVEL))


def _pairs(table: tuple[Residual, ...]) -> list[float]:
    """Absolute differences of the residuals of rows of the same job."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in table:
        groups.setdefault((row.kind, row.group), []).append(row.log_residual)
    pairs = [
        abs(group[first] - group[first + apart])
        for group in groups.values()
        for apart in range(1, len(group))
        for first in range(len(group) - apart)
    ]
    return pairs[:MOST_PAIRS]


def rank_correlation(
    left: Sequence[float] | FloatArray, right: Sequence[float] | FloatArray
) -> float | None:
    """Kendall's tau-b of two lists of values, None for fewer than two distinct values of either."""
    from scipy.stats import kendalltau

    if len(left) < 2:
        return None
    tau = float(kendalltau(left, right).statistic)
    return tau if math.isfinite(tau) else None
