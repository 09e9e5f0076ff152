"""Night question for a cluster, a model and a history of demand."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from topologies.errors import InputError
from workloads.confidence.interval import Interval
from workloads.confidence.poisson import fewest_of_sizes
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.lending.answer import (
    Loan,
    Night,
    Terms,
    at_capacity,
    batch_need,
    largest_return,
    lend,
    lendable_units,
)
from workloads.fleet.lending.backtest import backtest, cut_nights, night_errors
from workloads.fleet.scenario import Scenario
from workloads.fleet.setup.sureness import capacity_interval
from workloads.fleet.state.services import to_serving_s, units_needed

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

    Returns ``lead_hours, confidence, chips, violated_share, nights``. ``chips`` is the mean over
    the night, and over the nights that every lead time could answer. Lead times for which the
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


def lend_on(scenario: Scenario, question: Night) -> Loan:
    """Answer the night question for a scenario whose demand is the history."""
    scenario.fleet.limits.check(scenario.cluster.domains)
    need = units_needed(scenario.demand, scenario.services).sum(axis=0)
    terms = terms_on(scenario, confidence=question.confidence)
    loan = lend(need, scenario.demand.start, question, terms)
    costs, services = scenario.fleet.change_costs, scenario.services
    answered = with_shared_return(loan, lambda units: to_serving_s(costs, services, units))
    if scenario.batch is None:
        return answered
    days_back = len(loan.nights) - loan.tested.number
    lent, _ = answered.lent_and_hindsight()
    return replace(answered, batch=batch_need(scenario.batch, days_back, lent))


def with_shared_return(loan: Loan, reclaim_s: Callable[[int], float]) -> Loan:
    """Return a loan whose units come back as late as the number that returns together allows.

    The units of a loan share the store from which they load weights. The more of them return at the
    same time, the longer that takes, and the more short loans are left out, which leaves fewer that
    return. The number for which all this agrees is the smallest that no fewer units than return
    need; units that are left out for it are not counted in the time of the others.

    Of 100 units 70 are free for seven hours, and 29 more for the last two of them. Back after a
    minute each, all would take 99 of these 120 minutes. After 1.5 minutes each they would be late,
    so that the 70 are lent alone:

    >>> from workloads.fleet.lending.answer import lend
    >>> day = np.repeat([30.0, 0.0, 100.0], [300, 120, 1020])
    >>> loan = lend(np.tile(day, 14), "2024-01-01T00:00", Night("07:00"), Terms(100))
    >>> for each_s in (60.0, 90.0):
    ...     shared = with_shared_return(loan, lambda units: units * each_s)
    ...     print([window.units for window in shared.windows], shared.terms.reclaim_s)
    [70, 99] 5940.0
    [70] 6300.0
    """

    def for_units(units: int) -> Loan:
        return replace(loan, terms=replace(loan.terms, reclaim_s=reclaim_s(units)))

    def returning(answered: Loan) -> int:
        return max(largest_return(answered.runs), 1)

    counts = range(1, returning(for_units(1)) + 1)
    enough = bisect_left(counts, True, key=lambda units: returning(for_units(units)) <= units)
    answered = for_units(counts[enough])
    exact_s = reclaim_s(returning(answered))
    shortest_s = answered.terms.least_minutes * 60.0
    terms = replace(answered.terms, reclaim_s=exact_s, shortest_s=shortest_s)
    return replace(answered, terms=terms)


def lent_interval(loan: Loan, scenario: Scenario) -> Interval:
    """Interval of the lent unit-hours, from the interval of a unit's capacity."""
    capacity = capacity_interval(scenario.services, 1.0)
    hours = np.diff(loan.nights.edges) / 60.0
    low, high = (
        float(at_capacity(loan, factor) @ hours) for factor in (capacity.low, capacity.high)
    )
    return replace(capacity, low=low, high=high)


def lead_times_on(scenario: Scenario, loan: Loan) -> pd.DataFrame:
    """Chips that can be lent on a scenario's fleet by lead time and confidence, on a loan's terms.

    See :func:`workloads.fleet.lending.on_cluster.lead_times`.
    """
    need = units_needed(scenario.demand, scenario.services).sum(axis=0)
    return lead_times(need, scenario.demand.start, loan.question, loan.terms)


def terms_on(scenario: Scenario, *, confidence: float = 0.95) -> Terms:
    """Return the costs and earnings of lending on a scenario's fleet.

    The reserve has two parts: the units that the limits keep back, and the number of units under
    repair that is not exceeded with the stated confidence. Failures are independent, so that the
    number of parts of each size under repair is Poisson; servers count as parts of a unit.
    """
    cluster, fleet = scenario.cluster, scenario.fleet
    failures, costs = fleet.failures, fleet.change_costs
    means = {} if failures is None else failures.units_out(cluster.domains)
    reserve = min(fewest_of_sizes(confidence, means), cluster.domains)
    rates = [job.rate(job.units) / job.units for job in scenario.jobs if not job.evaluation]
    start_s = costs.to_training_s
    return Terms(
        units=cluster.domains,
        chips_per_unit=cluster.chips_per_domain,
        reserve_units=min(reserve + fleet.limits.reserve, cluster.domains),
        start_s=start_s if math.isfinite(start_s) else 0.0,
        reclaim_s=to_serving_s(costs, scenario.services, 1),
        tokens_per_unit_s=max(rates, default=0.0),
        usd_per_chip_s=scenario.economics.usd_per_chip_s,
        floor_units=fleet.limits.floor,
        block=fleet.limits.block,
    )
