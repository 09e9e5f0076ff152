"""Lendable chips by the lead time of the answer and its confidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.lending.answer import Night, Terms, lendable_units
from workloads.fleet.lending.backtest import backtest, night_errors
from workloads.fleet.lending.nights import cut_nights

HOURS = (0, 1, 3, 6, 12, 24, 48)
"""Lead times that are compared [h]."""
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Confidences that are compared."""


def lead_times(
    need: npt.ArrayLike,
    start: str,
    question: Night,
    terms: Terms,
    *,
    hours: Sequence[int] = HOURS,
    levels: Sequence[float] = LEVELS,
) -> pd.DataFrame:
    """Answer every night of the history several hours before it begins, at several confidences.

    Parameters
    ----------
    need, start, question, terms
        As in :func:`workloads.fleet.lending.answer.lend`.
    hours : sequence of int
        Hours from the decision to the beginning of the night.
    levels : sequence of float
        Confidences.

    Returns
    -------
    DataFrame
        ``lead_hours, confidence, chips, violated_share, nights``. ``chips`` is the mean over the
        night, and over the nights that every lead time could answer. Lead times for which the
        history is too short are left out.
    """
    history = np.asarray(need, float)
    moment = pd.Timestamp(start)
    begin = moment + pd.Timedelta(minutes=len(history))
    ahead, length = question.span(begin)
    tests = []
    for lead in hours:
        # Cutting the last hours off the history puts the same night further ahead.
        cut = (lead * 60 - ahead) % MINUTES_PER_DAY
        try:
            nights = cut_nights(
                history[: len(history) - cut],
                first_minute_of_week=moment.weekday() * MINUTES_PER_DAY
                + moment.hour * 60
                + moment.minute,
                lead=lead * 60,
                minutes=length,
                window=question.window_minutes,
            )
            errors = night_errors(nights, question.share)
        except InputError:
            continue
        for level in levels:
            tested = backtest(errors, level, terms.fewest_units, terms.most_units)
            tests.append((lead, level, nights.edges, tested))
    fewest = min((len(tested) for *_, tested in tests), default=0)
    rows = []
    for lead, level, edges, tested in tests:
        lent = lendable_units(terms, tested.capacity[-fewest:], edges) @ (np.diff(edges) / length)
        chips = float(lent.mean()) * terms.chips_per_unit
        rows.append((lead, level, chips, float(tested.violated[-fewest:].mean()), fewest))
    columns = ["lead_hours", "confidence", "chips", "violated_share", "nights"]
    return pd.DataFrame(rows, columns=columns)
