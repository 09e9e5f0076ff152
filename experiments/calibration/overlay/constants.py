"""Bounded fits of catalogue constants to measured times, as far as the data determine them.

Residuals are logarithms of predicted over measured time, with a soft loss, so that ten per cent of
poor rows do not decide the fit. A constant is fitted if some row depends on it and its effect is
not a combination of the effects of constants chosen before. The others keep their values and are
reported with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import least_squares

from topologies.arrays import BoolArray, FloatArray
from topologies.catalogue.catalogue import Catalogue
from topologies.catalogue.reader import COLUMNS, Entry

Predict = Callable[[Catalogue], FloatArray]

STEP = 0.02
"""Relative change of a constant from which its effect is measured."""
LEAST_EFFECT = 0.02
"""Least elasticity of a row's time for which the row counts as depending on a constant."""
LEAST_APART = 0.05
"""Least share of a constant's effect that combinations of the others must leave unexplained."""
FURTHEST = 20.0
"""Factor by which a fit may change a constant that has no bound of its own."""
NEAR = 1e-3
"""Relative distance from a limit within which the limit counts as having stopped a fit."""
SOFT = 0.1
"""Residual from which a row counts less than its square."""


@dataclass(frozen=True)
class Constant:
    """A constant of the catalogue that a fit may change.

    ``most``: largest physical value in SI units; infinite without a limit.
    """

    part: str
    quantity: str
    most: float = np.inf

    def __str__(self) -> str:
        """Name in the form that ``--variant`` takes."""
        return f"{self.part}.{self.quantity}"


@dataclass(frozen=True, eq=False)
class ConstantsFit:
    """Fitted constants, and the errors of the rows before and after the fit.

    ``entries``: catalogue rows graded measured, with two standard errors as their range.
    ``kept``: constants that were not fitted, with the reason.
    ``before, after`` (rows,): relative errors with the catalogue's constants and with the fitted
        ones.
    """

    entries: tuple[Entry, ...]
    kept: Mapping[str, str]
    before: FloatArray
    after: FloatArray
    stopped: tuple[str, ...] = ()


def fit_constants(
    predict: Predict,
    measured_s: FloatArray,
    constants: Sequence[Constant],
    catalogue: Catalogue,
    *,
    note: str,
) -> ConstantsFit:
    """Fit constants to measured times.

    ``predict``: returns the times of all rows with the constants of the catalogue [s].
    ``measured_s`` (rows,): measured times [s]. ``constants``: constants, the most important first:
    a later one that the data cannot tell from earlier ones keeps its value. ``catalogue``:
    catalogue whose constants the fit starts from. ``note``: note for the rows of the fitted
    constants.
    """
    first = predict(catalogue)
    slopes = {constant: _effect(predict, first, constant, catalogue) for constant in constants}
    chosen, kept = _tell_apart(slopes)
    chosen = chosen[: len(measured_s)]
    kept |= {
        str(constant): f"{len(measured_s)} rows are too few to fit it as well"
        for constant in constants
        if constant not in chosen and str(constant) not in kept
    }
    before = first / measured_s - 1

    def residuals(logs: FloatArray) -> FloatArray:
        changed = with_values(catalogue, dict(zip(chosen, np.exp(logs).tolist(), strict=True)))
        return np.asarray(np.log(predict(changed) / measured_s))

    # A constant may matter at the start and no longer at the best values of the others, as when a
    # step turns from latency-bound to bandwidth-bound. Such constants leave, and the fit is redone.
    while chosen:
        best = _best(residuals, chosen, catalogue)
        unfelt = [constant for constant, felt in zip(chosen, best.felt, strict=True) if not felt]
        if not unfelt:
            break
        # The others may be felt where the one least worth knowing has kept its value.
        kept[str(unfelt[-1])] = "no row depends on it once the others are fitted"
        chosen.remove(unfelt[-1])
    else:
        return ConstantsFit((), kept, before, before)
    entries = tuple(
        _entry(constant, float(value), float(wide), catalogue, note)
        for constant, value, wide in zip(chosen, np.exp(best.logs), best.spread, strict=True)
    )
    after = np.exp(residuals(best.logs)) - 1
    stopped = tuple(str(constant) for constant, at in zip(chosen, best.at_limit, strict=True) if at)
    return ConstantsFit(entries, kept, before, np.asarray(after), stopped)


@dataclass(frozen=True, eq=False)
class _Best:
    """Result of a least-squares fit.

    ``logs, spread`` (constants,): logarithms of the constants, and their relative errors, which are
        infinite at a limit.
    ``felt, at_limit`` (constants,): whether some row depends on the constant at its fitted value,
        and whether a limit stopped the fit.
    """

    logs: FloatArray
    spread: FloatArray
    felt: BoolArray
    at_limit: BoolArray


def _best(
    residuals: Callable[[FloatArray], FloatArray], chosen: Sequence[Constant], catalogue: Catalogue
) -> _Best:
    """Return the constants with the least residuals."""
    start = np.log([catalogue.value(constant.part, constant.quantity) for constant in chosen])
    highest = [
        min(at + np.log(FURTHEST), np.log(constant.most))
        for at, constant in zip(start, chosen, strict=True)
    ]
    start = np.minimum(start, np.array(highest) - 1e-9)
    lowest = start - np.log(FURTHEST)
    best = least_squares(
        residuals,
        start,
        bounds=(lowest, highest),
        loss="soft_l1",
        f_scale=SOFT,
        diff_step=np.full(len(chosen), STEP / 2),
    )
    slopes = np.asarray(best.jac, float)
    at_limit = (best.x < lowest + NEAR) | (best.x > np.array(highest) - NEAR)
    there = residuals(best.x)
    lower = best.x - STEP * np.eye(len(chosen))
    effects = [(there - residuals(logs)) / STEP for logs in lower]
    return _Best(
        logs=best.x,
        spread=np.where(at_limit, np.inf, _spread(slopes, float(best.cost), len(best.fun))),
        felt=np.array([np.abs(effect).max() >= LEAST_EFFECT for effect in effects]),
        at_limit=at_limit,
    )


def with_values(catalogue: Catalogue, values: Mapping[Constant, float]) -> Catalogue:
    """Return the catalogue with some constants replaced."""
    rows = [
        catalogue.entry(constant.part, constant.quantity)._replace(
            value=value,
            exact=Fraction(value),
            low=None,
            high=None,
        )
        for constant, value in values.items()
    ]
    return catalogue.with_rows(rows)


def _effect(
    predict: Predict, first: FloatArray, constant: Constant, catalogue: Catalogue
) -> FloatArray:
    """Elasticity of every row's time to a constant; (rows,)."""
    value = catalogue.value(constant.part, constant.quantity)
    down = value * (1 + STEP) > constant.most
    factor = 1 / (1 + STEP) if down else 1 + STEP
    changed = predict(with_values(catalogue, {constant: value * factor}))
    return np.asarray(np.log(changed / first) / np.log(factor))


def _tell_apart(slopes: Mapping[Constant, FloatArray]) -> tuple[list[Constant], dict[str, str]]:
    """Return the constants whose effects are independent, and the reasons against the others."""
    chosen: list[Constant] = []
    kept: dict[str, str] = {}
    for constant, slope in slopes.items():
        if np.abs(slope).max(initial=0.0) < LEAST_EFFECT:
            kept[str(constant)] = "no row depends on it"
            continue
        basis = np.stack([slopes[other] for other in chosen], axis=1) if chosen else None
        left = slope
        if basis is not None:
            weights, *_ = np.linalg.lstsq(basis, slope, rcond=None)
            left = slope - basis @ weights
        if np.linalg.norm(left) < LEAST_APART * np.linalg.norm(slope):
            names = ", ".join(str(other) for other in chosen if _alike(slopes[other], slope))
            kept[str(constant)] = f"the data cannot tell it from {names or 'the constants above'}"
            continue
        chosen.append(constant)
    return chosen, kept


def _alike(one: FloatArray, other: FloatArray) -> bool:
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return size > 0 and abs(float(one @ other)) / size > 1 / 2


def _spread(slopes: FloatArray, cost: float, rows: int) -> FloatArray:
    """Relative standard error of each constant; zero where the rows leave no degree of freedom."""
    freedom = rows - slopes.shape[1]
    if freedom < 1:
        return np.zeros(slopes.shape[1])
    covariance = np.linalg.pinv(slopes.T @ slopes) * 2 * cost / freedom
    return np.sqrt(np.maximum(0.0, np.diag(covariance)))


def _entry(
    constant: Constant, value: float, spread: float, catalogue: Catalogue, note: str
) -> Entry:
    """Return the catalogue row of a fitted constant, with two standard errors as its range."""
    old = catalogue.entry(constant.part, constant.quantity)
    wide = np.exp(min(2 * spread, np.log(FURTHEST)))
    low, high = value / wide, value * wide
    return old._replace(
        variant="",
        value=value,
        exact=Fraction(value),
        grade="measured",
        source="own measurement",
        written="",
        note=f"{note}; was {old.written}",
        low=min(low, value),
        high=max(value, min(high, constant.most)),
    )


def overlay_text(entries: Sequence[Entry]) -> str:
    """Text of a catalogue overlay with some rows, in SI units."""
    lines = [",".join(COLUMNS)]
    for entry in entries:
        low, high = (f"{side:.6g}" if side is not None else "" for side in (entry.low, entry.high))
        number = f"{entry.value:.6g}"
        low, high = _around(number, low, high)
        note = entry.note.replace('"', "'")
        cells = [entry.part, entry.quantity, "", number, entry.unit, entry.grade, entry.source]
        lines.append(",".join([*cells, f'"{note}"', low, high]))
    return "\n".join(lines) + "\n"


def _around(value: str, low: str, high: str) -> tuple[str, str]:
    """Return the ends of a range, widened where rounding has put the value outside."""
    low = value if low and float(low) > float(value) else low
    high = value if high and float(high) < float(value) else high
    return low, high
