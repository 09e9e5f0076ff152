"""Bounded fits of catalogue constants to measured times, as far as the data tell them apart.

Residuals are logarithms of predicted over measured time, with a soft loss, so that a tenth of poor
rows does not decide. A constant is fitted where some row depends on it and its effect is not a
combination of the effects of constants that are fitted already; the others keep their value and are
named with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
"""Elasticity of some row's time below which no row depends on a constant."""
LEAST_APART = 0.05
"""Share of a constant's effect that no combination of the others may explain."""
FURTHEST = 20.0
"""Factor by which a fit may change a constant that has no bound of its own."""
NEAR = 1e-3
"""Relative distance from a limit at which a fit has been stopped by it."""
SOFT = 0.1
"""Residual from which a row counts less than its square."""


@dataclass(frozen=True)
class Constant:
    """One constant that a fit may change.

    Attributes
    ----------
    part, quantity : str
        Row of the catalogue.
    most : float
        Largest physical value in SI units, infinite where there is none.
    """

    part: str
    quantity: str
    most: float = np.inf

    def __str__(self) -> str:
        """Name as ``--variant`` takes it."""
        return f"{self.part}.{self.quantity}"


@dataclass(frozen=True, eq=False)
class ConstantsFit:
    """Fitted constants and how well they meet the rows.

    Attributes
    ----------
    entries : tuple of Entry
        Catalogue rows graded measured, with two standard errors as their range.
    kept : mapping of str to str
        Constants that were not fitted, and why.
    stopped : tuple of str
        Fitted constants that ended at the limit of what a fit tries.
    before, after : float array (rows,)
        Relative errors with the constants in force and with the fitted ones.
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

    Parameters
    ----------
    predict : function of a catalogue
        Times of all rows with its constants [s].
    measured_s : float array (rows,)
    constants : sequence of Constant
        Constants, those most worth knowing first: a later one that the data cannot tell from
        earlier ones keeps its value.
    catalogue : Catalogue
        Catalogue whose constants are the start.
    note : str
        Note of the fitted rows.
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

    while chosen:
        best = _best(residuals, chosen, catalogue)
        unfelt = [constant for constant, felt in zip(chosen, best.felt, strict=True) if not felt]
        if not unfelt:
            break
        kept |= {
            str(constant): "no row depends on it once the others are fitted" for constant in unfelt
        }
        chosen = [constant for constant in chosen if constant not in unfelt]
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
    """The end of a least-squares fit.

    Attributes
    ----------
    logs, spread : float array (constants,)
        Logarithms of the constants, and their relative errors: infinite at a limit.
    felt, at_limit : bool array (constants,)
        Whether some row depends on a constant there, and whether its limit stopped the fit.
    """

    logs: FloatArray
    spread: FloatArray
    felt: BoolArray
    at_limit: BoolArray


def _best(
    residuals: Callable[[FloatArray], FloatArray], chosen: Sequence[Constant], catalogue: Catalogue
) -> _Best:
    """Constants with the least residuals."""
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
        replace(
            catalogue.entry(constant.part, constant.quantity),
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
    """Elasticity of every row's time to a constant."""
    value = catalogue.value(constant.part, constant.quantity)
    down = value * (1 + STEP) > constant.most
    factor = 1 / (1 + STEP) if down else 1 + STEP
    changed = predict(with_values(catalogue, {constant: value * factor}))
    return np.asarray(np.log(changed / first) / np.log(factor))


def _tell_apart(slopes: Mapping[Constant, FloatArray]) -> tuple[list[Constant], dict[str, str]]:
    """Constants whose effects are independent, and why the others are not fitted."""
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
    """Return whether two effects are nearly proportional."""
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return size > 0 and abs(float(one @ other)) / size > 1 / 2


def _spread(slopes: FloatArray, cost: float, rows: int) -> FloatArray:
    """Relative standard error of each constant; none where no row is left over to show it."""
    freedom = rows - slopes.shape[1]
    if freedom < 1:
        return np.zeros(slopes.shape[1])
    covariance = np.linalg.pinv(slopes.T @ slopes) * 2 * cost / freedom
    return np.sqrt(np.maximum(0.0, np.diag(covariance)))


def _entry(
    constant: Constant, value: float, spread: float, catalogue: Catalogue, note: str
) -> Entry:
    old = catalogue.entry(constant.part, constant.quantity)
    wide = np.exp(min(2 * spread, np.log(FURTHEST)))
    low, high = value / wide, value * wide
    return replace(
        old,
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
    """Rows as the text of a catalogue overlay, in SI units."""
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
    """Ends of a range that still hold the value after rounding."""
    low = value if low and float(low) > float(value) else low
    high = value if high and float(high) < float(value) else high
    return low, high
