"""Intervals of predicted times, and margins of comparisons of two predictions.

A half-width is a quantile of the scores of measured rows (split conformal prediction, Vovk,
Gammerman and Shafer 2005; Lei et al. 2018). Rows of a table share machine, framework and authors,
so every table has the same weight. Steps that differ from all measured ones have wider ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from topologies.catalogue.catalogue import NEURON, chip_family
from topologies.support.arrays import FloatArray
from topologies.support.units import format_seconds
from workloads.confidence.interval import LEVEL, Interval
from workloads.confidence.kinds import (
    BARE,
    EXPERTS,
    FAMILY,
    FRAMEWORK,
    NAMES,
    PLAN,
    RESEARCH,
    Prediction,
    mixture_ends,
)
from workloads.confidence.residuals import (
    Residual,
    Residuals,
    grouped,
    shipped_residuals,
    weighted_quantile,
)

# Intervals of collectives, serving and kernels, by how far off the nearest measurements were. Pools
# of rows nest: all of a family of kinds; those of the kind; on chips of the same runtime; of the
# same tool, which timed a collective or kernel, or engine of a replica; on the same generation of
# chips. The quantile of each is drawn towards that of the pool around it, the less the more tables
# it has. The next source is exchangeable with the n tables of the family, of which it will be one,
# so quantiles are at (n + 1)/n of the level (Dunn, Wasserman and Ramdas 2022). Each family of
# models, or width of products, has the same weight in a table. No factor is assumed.

PREDICTIONS = 256  # predictions whose half-widths and widenings are remembered
LEAST = 0.03  # smallest half-width, in logarithms: runs of one configuration differ by so much
HIGHEST = 0.9  # highest quantile of few tables, beyond which single rows would decide
SERVED = ("serving", "first_token")
AHEAD = 0.84
"""Level of their quantiles, as the next source is less like the others than these are like one
another: tables in order, each by those before it, are covered to 71 % at 0.8 and 75 % at this."""
MANY = 5  # rows from which a group of a table has its full weight
RANKS_DOUBLED = 1.15
"""Widening for each doubling of the ranks of a collective beyond those measured: with numbers of
ranks left out, it covers more of them to 81 %."""


class Pool(NamedTuple):
    """Measured rows from which a half-width comes."""

    half: float  # quantile of their scores, in logarithms
    rows: int
    tables: int
    evidence: float = 0.0  # tables, of which those of few rows count in part

    def drawn(self, towards: float) -> float:
        """Return the half-width drawn towards another, which counts as one more table."""
        share = self.evidence / (self.evidence + 1)
        return math.exp(share * math.log(self.half) + (1 - share) * math.log(towards))


@lru_cache(PREDICTIONS)
def domain_half_width(prediction: Prediction, residuals: Residuals) -> tuple[float, str]:
    """Return half of an interval's width, in logarithms, and the measurements behind it."""
    nested = _nested(prediction, residuals)
    tables = len({row.table for row in nested[0]})
    aimed = AHEAD if FAMILY[prediction.kind] in SERVED else LEVEL
    level = min(HIGHEST, aimed * (tables + 1) / max(1, tables))
    pools = [_pool(rows, level) for rows in nested if rows]
    half = pools[0].half if pools else math.log(2.0)
    for pool in pools[1:]:
        half = pool.drawn(half)
    near = next((rows for rows in reversed(nested[1:]) if rows), [])
    nearest = pools[-1] if pools else Pool(half, 0, 0)
    is_open = not prediction.tool and any(row.tool for row in nested[2])
    basis = _domain_basis(prediction, nearest, measured=bool(nested[-1]), is_open=is_open)
    if FAMILY[prediction.kind] == "collective" and near:
        beyond = prediction.ranks / max(row.ranks for row in near)
        half *= RANKS_DOUBLED ** max(0.0, math.log2(beyond))
    return half, basis


def _nested(prediction: Prediction, residuals: Residuals) -> list[list[Residual]]:
    """Rows of the prediction's family, and ever fewer that are more like it."""
    # Where no tool is stated, any may be meant.
    features: list[Callable[[Prediction], Hashable]] = [
        lambda row: FAMILY.get(row.kind),
        lambda row: row.kind,
        lambda row: runtime(row.chip),
        lambda row: (row.tool, row.crosses) if prediction.tool else row.crosses,
        lambda row: generation(row.chip),
    ]
    rows, nested = list(residuals.rows), []
    for feature in features:
        sought = feature(prediction)
        rows = [row for row in rows if feature(row) == sought]
        nested.append(rows)
    return nested


def _pool(rows: Sequence[Residual], level: float) -> Pool:
    """Quantile of the scores of rows, with equal weight for each group of many rows."""
    of_rows = [(row.table, row.family) for row in rows]
    counts = Counter(of_rows)
    weights = np.array([1 / max(MANY, counts[name]) for name in of_rows])
    half = weighted_quantile(np.array([row.score for row in rows]), weights, level)
    tables = Counter(row.table for row in rows)
    evidence = sum(min(1.0, count / MANY) for count in tables.values())
    return Pool(max(LEAST, half), len(rows), len(tables), evidence)


def _domain_basis(prediction: Prediction, pool: Pool, *, measured: bool, is_open: bool) -> str:
    serves = FAMILY[prediction.kind] in SERVED
    what = f" of {prediction.tool}" if prediction.tool else ""
    what += " between servers" * prediction.crosses + " on such chips"
    name = NAMES[prediction.kind]
    note = f" ({'engine' if serves else 'tool'} not stated)" if is_open else ""
    tables = f"{pool.tables} table{'s' * (pool.tables != 1)}"
    if measured:
        return f"{name}: {pool.rows:,} measured rows{what}, {tables}{note}"
    return (
        f"{name}: no measured row{what}{note}, so it is as sure as {pool.rows:,} others "
        f"({tables}) were"
    )


@lru_cache(256)
def runtime(chip: str) -> str:
    """Return the collective runtime of a chip."""
    return chip_family(chip).runtime


@lru_cache(256)
def generation(chip: str) -> str:
    """Return the family of a chip; a Neuron chip itself, as each has its own rates."""
    family = chip_family(chip)
    return chip if family.is_neuron else family.name


DOUBLED = {"tp": 1.4, "cp": 1.4, "ranks": 1.15}
"""Widening for each doubling of a degree, or of the ranks, beyond the largest measured on the chip.
A degree changes the shapes of kernels and the fabric of its group: with tp 16 and 32 left out, 1.15
covered 65 and 58 % of the rows of research code, and of the 17 steps of Trn1 at tp 32, from tp 8,
ten; 1.4 covers 82 and 67 %, and 16 of the 17. 1.15 covers more ranks to 81 %, two from one 70."""
ASSUMED = 1.25  # widening where kernels or links rest on assumed numbers
MOST = 2.0  # largest product of all widenings


def interval(value: float, prediction: Prediction, residuals: Residuals | None = None) -> Interval:
    """Interval of a predicted time, in its unit."""
    # Where nodes may be slow, its ends are the quantiles of the mixture of usual and slowed runs.
    measured = shipped_residuals() if residuals is None else residuals
    slow, basis = prediction.slow, _basis(prediction, measured)
    if slow.share and slow.seconds:
        low, high = mixture_ends(value, slow, max(LEAST, half_width(prediction, measured)))
        more = f"a slow node in {slow.share:.0%} of runs adds {slow.seconds:,.3g} s"
        return Interval(low, high, basis=f"{basis}; {more}", value=value)
    low, high = (value * math.exp(end) for end in ends(prediction, measured))
    if FAMILY[prediction.kind] != TRAINING:
        hull = (prediction.below, prediction.above)
        least, most = (format_seconds(value * math.exp(end)) for end in hull)
        basis += f"; {least} to {most} by the tool that times it" * (least != most)
    return Interval(low, high, basis=basis, value=value)


def ends(prediction: Prediction, residuals: Residuals) -> tuple[float, float]:
    """Ends of an interval, as logarithms of their ratio to the prediction."""
    below, above = prediction.below, prediction.above
    down, up = _reaches(prediction, residuals)
    if FAMILY[prediction.kind] != TRAINING:
        return below - down, above + up
    # What nobody stated and what no model knows are independent, so their squares add.
    return -math.hypot(below, down), math.hypot(above, up)


def half_width(prediction: Prediction, residuals: Residuals) -> float:
    """Logarithm of how far an interval reaches beyond its hull, on the side where it is farther."""
    return max(_reaches(prediction, residuals))


def _reaches(prediction: Prediction, residuals: Residuals) -> tuple[float, float]:
    """Return how far an interval reaches beyond either end of its hull, in logarithms."""
    if FAMILY[prediction.kind] != TRAINING:
        half, _ = domain_half_width(prediction, residuals)
        return half, half
    down, up = step_tails(prediction, residuals)
    wider = widening(prediction, residuals)
    least = least_half_width(prediction, residuals, wider)
    return max(least, down * wider), max(least, up * wider)


def widening(prediction: Prediction, residuals: Residuals) -> float:
    """Factor by which a step's interval is wider than those of measured rows of its kind."""
    return min(MOST, math.prod(factor for factor, _ in _factors(prediction, residuals)))


@lru_cache(PREDICTIONS)
def _factors(prediction: Prediction, residuals: Residuals) -> tuple[tuple[float, str], ...]:
    """Differences between a prediction and the measurements, each with its factor and reason."""
    of_kind, factors = residuals.of(prediction.kind), []
    for degree, doubled in DOUBLED.items():
        size, largest = (
            getattr(prediction, degree),
            _largest(degree, prediction, of_kind, residuals),
        )
        if of_kind.rows and size > largest:
            doublings = math.log2(size / largest)
            factors.append((doubled**doublings, f"{degree} {size:,} beyond {largest:,}"))
    if prediction.assumed:
        factors.append((ASSUMED, "assumed numbers"))
    return tuple(factors)


def _largest(degree: str, prediction: Prediction, of_kind: Residuals, residuals: Residuals) -> int:
    """Largest measured degree on the chip: of a kind, of all steps, or of a named framework."""
    largest, every = of_kind.largest(degree, prediction.chip), residuals.of_family(prediction.kind)
    # Groups of more ranks wait for the same network, whatever the kind of the step is.
    if degree == "ranks":
        return max(largest, every.largest(degree, prediction.chip))
    # A group of Neuron cores spans the 16 chips of a server on any generation.
    if runtime(prediction.chip) == NEURON:
        chips = {row.chip for row in every.rows if runtime(row.chip) == NEURON}
        return max([largest, *(every.largest(degree, chip) for chip in chips)])
    # What a degree changes, shapes and groups, is the same for dense layers and layers of experts.
    if prediction.stated not in ("", FRAMEWORK):
        return largest
    named = residuals.under(prediction.chip, prediction.framework)
    return max(largest, named.largest(degree, prediction.chip)) if named.rows else largest


def _basis(prediction: Prediction, residuals: Residuals) -> str:
    if FAMILY[prediction.kind] != TRAINING:
        return domain_half_width(prediction, residuals)[1]
    factors = _factors(prediction, residuals)
    reasons = (f"; ×{factor:.2f} for {reason}" for factor, reason in factors)
    return _step_basis(prediction, residuals) + "".join(reasons)


# Intervals of training steps, by how far measured steps like them were off. The score of a measured
# row is how far it lies beyond the hull of the times that unstated fields leave open (conformalised
# quantiles, Romano, Patterson and Candès 2019), as the root of a difference of squares, on either
# side by itself: many untuned steps are far slower than predicted, few faster. Rows count by how
# much they are like the question (localised, Guan 2023). Who leaves memory free has rarely tuned a
# step, and such steps are farther off.

TRAINING = "training"
OTHER_KIND, OF_EXPERTS = 0.5, 0.03
"""Weights of rows of another kind; of rows of experts for other steps, or the other way round."""
OTHER_FRAMEWORK, OTHER_WIDTH = 0.25, 0.5
"""Weights of rows of another framework than the named one, and of products of another width."""
MEMORY = 0.2  # difference of filled shares of memory at which rows count 0.6 times as much
HIGHEST_OF_TAIL = 0.95  # highest quantile of few tables on one side
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


def least_half_width(prediction: Prediction, residuals: Residuals, wider: float = 1.0) -> float:
    """Return the smallest half-width of a step, whatever its domain was drawn towards."""
    # One table of a Neuron chip and framework does not tell how far the next one is, as constants
    # were fitted to it; nor do two where nobody stated which framework they are of. Where there is
    # none, the half-width is ``wider`` as well, for degrees and ranks beyond those measured.
    domain = (prediction.chip, prediction.framework, prediction.kind)
    tables = {
        row.table
        for row in residuals.at_level(FRAMEWORK).rows
        if (row.chip, row.framework, row.kind) == domain
    }
    is_told = len(tables) > 1 and prediction.stated != BARE
    if is_told or runtime(prediction.chip) != NEURON:
        return LEAST
    return UNMEASURED if tables else UNMEASURED * wider


def likeness(row: Residual, question: Prediction) -> float:
    """Return how much a measured step counts for a question: 1 where it is like it in all."""
    weight = math.exp(-(((min(row.filled, 1.0) - min(question.filled, 1.0)) / MEMORY) ** 2) / 2)
    if row.kind != question.kind:
        of_experts = EXPERTS in (row.kind, question.kind)
        weight *= 0.0 if row.kind == RESEARCH else OF_EXPERTS if of_experts else OTHER_KIND
    if row.framework != question.framework and question.stated in ("", FRAMEWORK):
        weight *= OTHER_FRAMEWORK
    return weight if row.family == question.family else weight * OTHER_WIDTH


@lru_cache(64)
def _steps(stated: str, residuals: Residuals) -> tuple[list[Residual], FloatArray]:
    """Return steps that were told as much, and how far each is below and above its hull."""
    rows = [row for row in residuals.at_level(stated).rows if row.family_of_kind == TRAINING]
    return rows, np.array([[row.beyond(side) for row in rows] for side in (-1, 1)])


@lru_cache(PREDICTIONS)
def step_tails(question: Prediction, residuals: Residuals) -> tuple[float, float]:
    """Return how far steps like a question reach beyond either end of its hull, in logarithms."""
    rows, beyond = _steps(question.stated, residuals)
    counts, of_tables = Counter(row.table for row in rows), Counter[str]()
    shares = np.array([likeness(row, question) / counts[row.table] for row in rows])
    if not shares.any():
        return math.log(2.0), math.log(2.0)
    for row, share in zip(rows, shares, strict=True):
        of_tables[row.table] += share
    # Either tail holds half of what may lie outside. The next table is exchangeable with these, of
    # which those that count less are fewer (Kish's effective number).
    tables = shares.sum() ** 2 / sum(share**2 for share in of_tables.values())
    level = min(HIGHEST_OF_TAIL, (1 + LEVEL) / 2 * (1 + 1 / tables))
    down, up = (weighted_quantile(each, shares, level) for each in beyond)
    return down, up


def _step_basis(prediction: Prediction, residuals: Residuals) -> str:
    """Say which steps the interval comes from, and how many of them are of such chips."""
    kind, stated, name = prediction.kind, prediction.stated, prediction.framework
    every = [row for row in _steps(stated, residuals)[0] if likeness(row, prediction)]
    rows = [row for row in every if row.kind == kind]
    domain = (name, generation(prediction.chip))
    alike = sum((row.framework, generation(row.chip)) == domain for row in rows)
    kinds, rows = (NAMES[kind], rows) if rows else ("training of all kinds", every)
    here = f"{alike:,} of {name} on such chips" if alike else f"none of {name} on such a chip"
    count = len({row.table for row in rows})
    tables = f"{count} table{'s' * (count != 1)}"
    return (
        f"{len(rows):,} measured steps, {tables}, {here} ({kinds}; {TOLD[stated]}; those that fill "
        "as much memory count most)"
    )


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
    """Half-width of ln(time of one plan / time of another) among measured pairs of a family."""
    # Two rows of a table with the same model and machine share the error of machine, framework and
    # kernels, which cancels in the difference of their residuals. Every table has the same weight.
    # ``residuals``: shipped ones by default. Without pairs nothing is known of a ratio.
    shipped = shipped_residuals() if residuals is None else residuals
    differences, weights = [], []
    for table in grouped(shipped.of_family(kind), "table").values():
        pairs = _pairs(table.rows)
        if not pairs:
            continue
        differences += pairs
        weights += [1 / len(pairs)] * len(pairs)
    if not differences:
        return math.inf
    return weighted_quantile(np.array(differences), np.array(weights), LEVEL)


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
