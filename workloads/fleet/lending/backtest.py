"""Backtest of lending: the answer on every night of the history, and what happened then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topologies.errors import InputError
from workloads.fleet.lending.calibration import bounded, corrected, margin_log
from workloads.fleet.lending.expectation import FORMS, expectations
from workloads.fleet.lending.nights import Nights

FloatArray = npt.NDArray[np.float64]
FEWEST = 3
"""Errors that a margin is learned from."""
MEMORY = 0.95
"""Weight of what a form cost, a night later."""


@dataclass(frozen=True, eq=False)
class Backtest:
    """Walk through the history: every night is answered from the nights before it alone.

    Attributes
    ----------
    number : int array (answered,)
        Which nights could be answered, counted from the first of the history.
    capacity : float array (answered, windows)
        Units kept for serving.
    violated : bool array (answered,)
        Whether demand exceeded that in more minutes than the SLO allows.
    missed : float array (answered,)
        Share of the night's demand beyond the capacity.
    coming : float array (windows,)
        Units to keep in the coming night.
    form : str
        Expectation that the coming night uses.
    """

    number: npt.NDArray[np.int64]
    capacity: FloatArray
    violated: npt.NDArray[np.bool_]
    missed: FloatArray
    coming: FloatArray
    form: str

    def __len__(self) -> int:
        return len(self.number)


def backtest(nights: Nights, *, share: float, confidence: float, limit: float) -> Backtest:
    """Answer every night from those before it, and the coming night from all.

    Of several forms of the expectation, each night uses the one whose answers kept least in the
    nights before it at the same confidence.

    Parameters
    ----------
    nights : Nights
    share : float
        Share of a night's minutes in which demand has to stay within the capacity.
    confidence : float
        Share of nights in which that has to hold.
    limit : float
        Units that there are; nothing more can be kept.

    Raises
    ------
    InputError
        For a history with too few nights to learn a margin from.
    """
    first = int(np.argmax(nights.known >= 1))
    if len(nights) < first + FEWEST + 1 or not nights.known[first]:
        raise InputError(
            f"the history has {len(nights)} whole nights; at least {first + FEWEST + 1} are needed "
            "to state a confidence. Give a longer history."
        )
    asked = 1 - confidence
    expected = [expectations(nights, number) for number in range(first, len(nights) + 1)]
    errors = np.stack(
        [
            log_errors(nights.need[number], expected[number - first], nights.edges, share)
            for number in range(first, len(nights))
        ]
    )
    risks, kept = np.full(len(FORMS), asked), np.zeros(len(FORMS))
    rows: list[tuple[int, FloatArray]] = []
    form = 0
    for number in range(first + FEWEST, len(nights) + 1):
        known = max(int(nights.known[number]) - first, 2)
        margins = np.array(
            [
                margin_log(errors[:known, each], bounded(float(risks[each]), asked))
                for each in range(len(FORMS))
            ]
        )
        capacities = np.minimum(np.exp(margins)[:, None] * expected[number - first], limit)
        form = int(np.argmin(kept))
        rows.append((number, capacities[form]))
        if number < len(nights):
            risks = corrected(risks, asked, errors[number - first] > margins)
            kept = MEMORY * kept + np.log(capacities.mean(axis=1))
    return _judged(nights, rows, share, limit, FORMS[form])


def log_errors(
    need: FloatArray, expected: FloatArray, edges: npt.NDArray[np.int64], share: float
) -> FloatArray:
    """Logarithm of the least factor that a night needed on each expectation; (forms,).

    With that factor the share of minutes within capacity is at least ``share``.
    """
    ratio = need / np.repeat(expected, np.diff(edges), axis=1)
    result: FloatArray = np.log(np.maximum(_exceeded(ratio, share), 1e-9))
    return result


def _exceeded(ratio: FloatArray, share: float) -> FloatArray:
    """Smallest value that at least a share of the last axis does not exceed."""
    minutes = ratio.shape[-1]
    allowed = min(int((1 - share) * minutes + 1e-9), minutes - 1)
    ordered = np.sort(ratio, axis=-1)
    result: FloatArray = ordered[..., minutes - 1 - allowed]
    return result


def _judged(
    nights: Nights, rows: list[tuple[int, FloatArray]], share: float, limit: float, form: str
) -> Backtest:
    """Compare every answer but the last, which is the coming night's, with what happened."""
    past, (_, coming) = rows[:-1], rows[-1]
    number = np.array([row[0] for row in past], np.int64)
    capacity = np.stack([row[1] for row in past])
    need = nights.need[number]
    by_minute = np.repeat(capacity, np.diff(nights.edges), axis=1)
    # What no fleet of this size could serve is not the loan's doing.
    over = np.minimum(need, limit) - by_minute
    within = (over <= 1e-9).mean(axis=1)
    return Backtest(
        number=number,
        capacity=capacity,
        violated=within < share,
        missed=np.maximum(over, 0.0).sum(axis=1) / np.maximum(need.sum(axis=1), 1e-12),
        coming=coming,
        form=form,
    )
