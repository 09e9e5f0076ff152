"""Backtest of lending: the answer for every night of the history, compared with its demand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError
from workloads.fleet.lending.calibration import AIM, bounded, corrected, margin_log
from workloads.fleet.lending.expectation import FORMS, expectations
from workloads.fleet.lending.nights import Nights

FEWEST = 3
"""Least number of past errors from which a margin is learned."""
MEMORY = 0.95
"""Factor by which the loss of a form counts less with every night."""
FADING = 0.5
"""Factor by which an excess that is added to the margin shrinks with every night."""


@dataclass(frozen=True, eq=False)
class Backtest:
    """Answers for the nights of a history, each from the nights before it alone.

    Attributes
    ----------
    number : int array (answered,)
        Numbers of the nights that could be answered, counted from the first of the history.
    capacity : float array (answered, windows)
        Units kept for serving.
    violated : bool array (answered,)
        Whether demand exceeded the capacity in more minutes than the SLO allows.
    missed : float array (answered,)
        Share of the night's demand beyond the capacity.
    coming : float array (windows,)
        Units to keep in the coming night. They may exceed the fleet, as expected demand may.
    form : str
        Form of the expectation that the coming night uses.
    """

    number: npt.NDArray[np.int64]
    capacity: FloatArray
    violated: npt.NDArray[np.bool_]
    missed: FloatArray
    coming: FloatArray
    form: str

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, eq=False)
class NightErrors:
    """Expectations for all nights, and the errors of the past ones as logarithms.

    Attributes
    ----------
    nights : Nights
    share : float
        Share of a night's minutes in which demand has to stay within the capacity.
    first : int
        First night that has an earlier one to derive an expectation from.
    expected : list of float array (forms, windows)
        Expected need from night ``first`` on, the coming night last.
    errors : float array (nights - first, forms)
        Logarithm of the least factor that each night needed on each expectation.
    """

    nights: Nights
    share: float
    first: int
    expected: list[FloatArray]
    errors: FloatArray

    def before(self, number: int) -> FloatArray:
        """Errors of the nights that had ended when a night was decided on; (nights, forms)."""
        return self.errors[: max(int(self.nights.ended[number]) - self.first, 2)]


def night_errors(nights: Nights, share: float) -> NightErrors:
    """Return every night's expectation from the nights before it, and its error.

    Raises
    ------
    InputError
        For a history with too few nights to learn a margin from.
    """
    first = int(np.argmax(nights.ended >= 1))
    if len(nights) < first + FEWEST + 1 or not nights.ended[first]:
        raise InputError(
            f"the history has {len(nights)} whole nights; at least {first + FEWEST + 1} are needed "
            "to state a confidence. Give a longer history."
        )
    expected = [expectations(nights, number) for number in range(first, len(nights) + 1)]
    errors = np.stack(
        [
            log_errors(nights.need[number], expected[number - first], nights.edges, share)
            for number in range(first, len(nights))
        ]
    )
    return NightErrors(nights, share, first, expected, errors)


def backtest(nights_errors: NightErrors, confidence: float, fewest: float, most: float) -> Backtest:
    """Answer every night from those before it, and the coming night from all.

    Among the forms of the expectation, each night uses the one with the least loss on the nights
    before. The loss of a night is the capacity kept, plus the excess of demand over it divided by
    the risk (the pinball loss of a quantile), both as logarithms. The risk is corrected after each
    night by whether its answer was exceeded. The excess itself is added to the next margins, half
    as much every night, because demand that has risen once often goes on rising.

    Parameters
    ----------
    nights_errors : NightErrors
    confidence : float
        Share of nights in which demand has to stay within the capacity.
    fewest, most : float
        Fewest units that are kept, and most: the fleet without its reserve.
    """
    nights, wanted_risk = nights_errors.nights, 1 - confidence
    risk, loss, excess = AIM * wanted_risk, np.zeros(len(FORMS)), np.zeros(len(FORMS))
    answers: list[_Answer] = []
    judged = 0
    for number in range(nights_errors.first + FEWEST, len(nights) + 1):
        # Only nights that had ended by then correct the answer.
        while judged < len(answers) and answers[judged].number < nights.ended[number]:
            answer = answers[judged]
            over = nights_errors.errors[answer.number - nights_errors.first] - answer.margins
            risk = corrected(risk, wanted_risk, violated=bool(over[answer.form] > 0))
            night_loss = np.log(answer.kept.mean(axis=1)) + np.maximum(over, 0.0) / wanted_risk
            loss = MEMORY * loss + night_loss
            excess = np.maximum(FADING * excess, over)
            judged += 1
        past, aimed = nights_errors.before(number), bounded(risk, wanted_risk)
        margins = excess + [margin_log(errors, aimed) for errors in past.T]
        kept = np.exp(margins)[:, None] * nights_errors.expected[number - nights_errors.first]
        answers.append(_Answer(number, int(np.argmin(loss)), margins, kept))
    return _judged(nights_errors, answers, fewest, most)


@dataclass(frozen=True, eq=False)
class _Answer:
    """Answer for one night: the form used, and the margin and kept units of every form."""

    number: int
    form: int
    margins: FloatArray
    kept: FloatArray

    def capacity(self, fewest: float, most: float) -> FloatArray:
        """Units kept in each window, within their limits; (windows,)."""
        return np.asarray(np.clip(self.kept[self.form], fewest, most))


def log_errors(need: FloatArray, expected: FloatArray, edges: IntArray, share: float) -> FloatArray:
    """Logarithm of the least factor that a night needed on each expectation; (forms,).

    With that factor the share of minutes within capacity is at least ``share``.
    """
    ratio = need / np.repeat(expected, np.diff(edges), axis=1)
    result: FloatArray = np.log(np.maximum(_exceeded(ratio, share), 1e-9))
    return result


def _exceeded(ratio: FloatArray, share: float) -> FloatArray:
    """Smallest value that at least ``share`` of the entries along the last axis do not exceed."""
    minutes = ratio.shape[-1]
    allowed = min(int((1 - share) * minutes + 1e-9), minutes - 1)
    ordered = np.sort(ratio, axis=-1)
    result: FloatArray = ordered[..., minutes - 1 - allowed]
    return result


def _judged(errors: NightErrors, answers: list[_Answer], fewest: float, most: float) -> Backtest:
    """Compare every answer with the demand of its night; the last night is still to come."""
    nights, past = errors.nights, answers[:-1]
    number = np.array([answer.number for answer in past], np.int64)
    capacity = np.stack([answer.capacity(fewest, most) for answer in past])
    need = nights.need[number]
    by_minute = np.repeat(capacity, np.diff(nights.edges), axis=1)
    # Demand that the whole fleet could not serve is no fault of the answer.
    over = np.minimum(need, most) - by_minute
    within = (over <= 1e-9).mean(axis=1)
    return Backtest(
        number=number,
        capacity=capacity,
        violated=within < errors.share,
        missed=np.maximum(over, 0.0).sum(axis=1) / np.maximum(need.sum(axis=1), 1e-12),
        coming=answers[-1].kept[answers[-1].form],
        form=FORMS[answers[-1].form],
    )
