"""Night question for a cluster, a model and a history of demand."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from topologies.errors import InputError
from workloads.confidence.interval import Interval
from workloads.confidence.poisson import fewest_of_sizes
from workloads.confidence.propagation import ENDS, between, ends_of, lattice, sampled
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.intervals import causes_of, more_failures
from workloads.fleet.lending.answer import (
    Loan,
    Night,
    Terms,
    batch_need,
    errors_of,
    largest_return,
    lendable_units,
    loan_from,
)
from workloads.fleet.lending.backtest import (
    backtest,
    borne_out,
    cut_nights,
    night_errors,
    surest,
)
from workloads.fleet.scenario import Scenario
from workloads.fleet.setup.night_work import gang_goodput
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
                start=moment,
                lead=lead * 60,
                minutes=length,
                window=question.window_minutes,
                holidays=question.holidays,
            )
            errors = night_errors(nights, question.share)
        except InputError:
            continue
        for level in (level for level in levels if level <= surest(errors.known)):
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
    errors = errors_of(need, scenario.demand.start, question)
    confidence = borne_out(question.confidence, errors.known)
    terms = terms_on(scenario, confidence=confidence)
    end = pd.Timestamp(scenario.demand.start) + pd.Timedelta(minutes=len(need))
    loan = loan_from(errors, end, question, terms, confidence)
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
    low, high = (loan.at_speed(factor).unit_hours for factor in (capacity.low, capacity.high))
    return replace(capacity, low=low, high=high)


def lent_intervals(loan: Loan, scenario: Scenario) -> dict[str, Any]:
    """Return intervals of what a loan trains, costs and draws, from all its uncertain inputs.

    What demand takes back of lent unit-time is drawn from the nights of the backtest; a unit that
    serves more leaves more to lend; steps take their time; and failures come at the rates by which
    clusters differ.
    """
    causes = causes_of(scenario)
    demand, speed, steps, failures = lattice()
    factors = (causes.capacity.low, 1.0, causes.capacity.high)
    loans = [loan.at_speed(factor) for factor in factors]
    kept = 1.0 - np.clip(sampled(loan.taken_back.tolist(), demand), 0.0, 1.0)
    hours = np.maximum(between([each.unit_hours for each in loans], ENDS, speed), 0.0)
    rates = (causes.failures.low, 1.0, causes.failures.high)
    goodputs = [goodput_at(scenario, rate) for rate in rates]
    goodput = np.clip(between(goodputs, ENDS, failures), 0.0, 1.0)
    tokens = np.maximum(between([each.training_tokens for each in loans], ENDS, speed), 0.0)
    tokens = tokens * kept * goodput / max(goodputs[1], 1e-12) / causes.step_time.factors(steps)
    drawn = {
        "lent_unit_hours": hours * kept,
        "training_tokens": tokens,
        "training_goodput": goodput,
    }
    if loan.unit_hours:
        each = {"usd": loan.usd, "energy_joules": loan.energy_joules}
        drawn |= {
            name: hours * kept * value / loan.unit_hours for name, value in each.items() if value
        }
    if loan.usd_per_million_tokens:
        never = np.full(len(tokens), math.inf)
        drawn["usd_per_million_trained_tokens"] = np.divide(
            drawn["usd"] * 1e6, tokens, out=never, where=tokens > 0
        )
    summary = loan.summary()
    ends = {name: ends_of(values, summary[name]) for name, values in drawn.items()}
    finite = {name: each for name, each in ends.items() if math.isfinite(each["high"])}
    return {**finite, "inputs": causes.document()}


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
    fastest = fastest_job(scenario)
    start_s = costs.to_training_s
    return Terms(
        units=cluster.domains,
        chips_per_unit=cluster.chips_per_domain,
        reserve_units=min(reserve + fleet.limits.reserve, cluster.domains),
        start_s=start_s if math.isfinite(start_s) else 0.0,
        reclaim_s=to_serving_s(costs, scenario.services, 1),
        tokens_per_unit_s=fastest.rate(fastest.units) / fastest.units if fastest else 0.0,
        usd_per_chip_s=scenario.economics.usd_per_chip_s,
        watts_per_chip=scenario.economics.busy_w * scenario.economics.pue,
        goodput=goodput_at(scenario, 1.0),
        floor_units=fleet.limits.floor,
        block=fleet.limits.block,
    )


def fastest_job(scenario: Scenario) -> TrainingJob | None:
    """Return the job that trains most tokens on a unit; None without a job that trains."""
    jobs = [job for job in scenario.jobs if not job.evaluation]
    return max(jobs, key=lambda job: job.rate(job.units) / job.units, default=None)


def goodput_at(scenario: Scenario, factor: float) -> float:
    """Share of its time that lent work computes for at ``factor`` times the failures."""
    job, fleet = fastest_job(scenario), scenario.fleet
    if job is None or fleet.failures is None or not job.rated:
        return 1.0
    failing = replace(fleet, failures=more_failures(fleet.failures, factor))
    return gang_goodput(job, job.units, failing)
