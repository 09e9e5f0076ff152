"""Night question in one call: from cluster and history to the units that can be lent tonight."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, FILES, GRAPHS, as_cluster
from topologies.support import display
from topologies.support.arguments import checked
from topologies.support.errors import InputError, shown
from topologies.support.files.reading import read_text
from topologies.support.options import described
from topologies.support.units import parse_seconds, parse_share
from workloads.confidence.interval import Interval
from workloads.confidence.poisson import fewest_of_sizes
from workloads.confidence.sensitivity import ENDS, between, each_of, finite_ends, lattice, sampled
from workloads.demand import Demand
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.intervals import causes_of, more_failures
from workloads.fleet.lending import answer
from workloads.fleet.lending.answer import (
    Loan,
    Night,
    Terms,
    batch_need,
    largest_return,
    lendable_units,
)
from workloads.fleet.lending.backtest import backtest, surest
from workloads.fleet.scenario import (
    Scenario,
    check_question,
    fleet_options,
    read_demand,
    read_models,
    scenario,
)
from workloads.fleet.setup.night_work import gang_goodput
from workloads.fleet.setup.serving import capacity_interval
from workloads.fleet.state.services import to_serving_s, units_needed
from workloads.models.huggingface import MODEL_REMEDY
from workloads.models.model import Model
from workloads.options.fleet import (
    FleetInputs,
    FleetOptions,
    HistoryInputs,
    LimitInputs,
    NightInputs,
    PolicyInputs,
)
from workloads.options.keywords import read_options
from workloads.serving import parse_slo

HOURS = (0, 1, 3, 6, 12, 24, 48)  # lead times that are compared [h]
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # confidences that are compared


def lead_times(
    need: npt.ArrayLike, start: str, question: Night, terms: Terms, *, hours: Sequence[int] = HOURS
) -> pd.DataFrame:
    """Answer every night of the history several hours before it begins, at several confidences."""
    # Returns ``lead_hours, confidence, chips, violated_share, nights``. ``chips`` is the mean over
    # the night, and over the nights that every lead time could answer. Lead times for which the
    # history is too short are left out.
    history = np.asarray(need, float)
    moment = pd.Timestamp(start)
    begin = moment + pd.Timedelta(minutes=len(history))
    ahead, length = question.span(begin)
    tests = []
    for lead in hours:
        # Cutting the last hours off the history puts the same night further ahead.
        cut = (lead * 60 - ahead) % MINUTES_PER_DAY
        try:
            shortened = history[: len(history) - cut]
            errors = question.errors(shortened, moment, lead * 60, length)
        except InputError:
            continue
        for level in (level for level in LEVELS if level <= surest(errors.known)):
            tested = backtest(errors, level, terms.fewest_units, terms.most_units)
            tests.append((lead, level, errors.nights.edges, tested))
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
    loan = answer.lend(need, scenario.demand.start, question, partial(terms_on, scenario))
    costs, services = scenario.fleet.costs, scenario.services
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


def terms_on(scenario: Scenario, confidence: float) -> Terms:
    """Return the costs and earnings of lending on a scenario's fleet."""
    # The reserve has two parts: the units that the limits keep back, and the number of units under
    # repair that is not exceeded with the stated confidence. Failures are independent, so that the
    # number of parts of each size under repair is Poisson; servers count as parts of a unit.
    cluster, fleet = scenario.cluster, scenario.fleet
    failures, costs = fleet.failures, fleet.costs
    means = {} if failures is None else failures.units_out(cluster.domains)
    reserve = min(fewest_of_sizes(confidence, means), cluster.domains)
    fastest = fastest_job(scenario)
    start_s, economics = costs.to_training_s, scenario.kinds[0].economics
    return Terms(
        units=cluster.domains,
        chips_per_unit=cluster.chips_per_domain,
        reserve_units=min(reserve + fleet.limits.reserve, cluster.domains),
        start_s=start_s if math.isfinite(start_s) else 0.0,
        reclaim_s=to_serving_s(costs, scenario.services, 1),
        tokens_per_unit_s=fastest.rate(fastest.units) / fastest.units if fastest else 0.0,
        usd_per_chip_s=economics.usd_per_chip_s,
        watts_per_chip=economics.busy_w * economics.pue,
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


USUAL_SHARE = 0.999
"""Default share of a night's minutes in which demand stays within the kept units."""
LIMIT_NAMES = ("ttft", "tpot")


def night_from(inputs: NightInputs, slo: str) -> Night:
    """Return the night question from the options of a night."""
    window_s = parse_seconds(inputs.window, "--window")
    if window_s % 60 or window_s < 60:
        raise InputError(
            f"--window {inputs.window} is not a whole number of minutes; write 30min or 1h."
        )
    level = inputs.confidence
    return Night(
        until=inputs.until,
        begin=inputs.begin or "",
        share=parse_slo(slo, share=USUAL_SHARE).share,
        confidence=None if level is None else parse_share(level, "--confidence"),
        window_minutes=int(window_s // 60),
        holidays=() if inputs.holidays is None else read_calendar(inputs.holidays),
    )


MOST_BYTES = 10**6  # largest file of a calendar [B]


def read_calendar(file: Path) -> tuple[str, ...]:
    """Read the dates of a calendar, one a line."""
    dates = []
    for number, line in enumerate(read_text(file, limit_bytes=MOST_BYTES).split(), 1):
        try:
            dates.append(date.fromisoformat(line).isoformat())
        except ValueError:
            raise InputError(
                f"calendar {file}, date {number}: {shown(repr(line))} is no date; write 2024-12-25."
            ) from None
    if not dates:
        raise InputError(f"calendar {file} has no date; write one a line, such as 2024-12-25.")
    return tuple(dates)


def for_lending(options: FleetOptions) -> FleetOptions:
    """Return options with all days of a history, and an SLO without its share."""
    check_one_kind(options.fleet.cluster)
    # The share counts minutes of the night, not requests of the fleet.
    parts = options.fleet.slo.split(",")
    limits = [part for part in parts if part.partition("=")[0].strip() in LIMIT_NAMES]
    days = math.inf if options.demand.days is None else options.demand.days
    return replace(
        options,
        policy=PolicyInputs(policy="static"),  # not used: lending asks no policy
        fleet=replace(options.fleet, slo=",".join(limits) or FleetInputs.slo),
        demand=replace(options.demand, days=days),
    )


EACH_KIND = (
    "lend answers for one kind of units in one region; ask for each kind with the demand that it "
    "serves (--service, or a file of its own)"
)


def check_one_kind(cluster: Cluster | str) -> None:
    """Refuse the names of several kinds, or of regions."""
    is_file = isinstance(cluster, str) and cluster.endswith((*FILES, *GRAPHS))
    if isinstance(cluster, str) and not is_file and {*cluster} & {*",+@"}:
        raise InputError(f"cluster {shown(repr(cluster))}: {EACH_KIND}.")


GROUPS = (FleetInputs, HistoryInputs, LimitInputs, NightInputs)
"""Options of lending that are keywords."""


@display.by_facts("Lend")
@dataclass(frozen=True, eq=False)
class LendResult:
    """Answer to the night question, with its inputs.

    Attributes
    ----------
    scenario : Scenario
        The fleet, and the history as its demand.
    loan : Loan
        Units that can be lent, and the backtest of the same method on earlier nights.
    """

    scenario: Scenario
    loan: Loan

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Headline numbers by their key in ``cluster-sim lend --json``."""
        return {**self.scenario.sizing.document(), **self.loan.summary()}

    @property
    def interval(self) -> Interval:
        """Interval of the lent unit-hours, from that of a unit's capacity."""
        capacity = capacity_interval(self.scenario.services, 1.0)
        low, high = (self.loan.at_speed(at).unit_hours for at in (capacity.low, capacity.high))
        return replace(capacity, low=low, high=high)

    @cached_property
    def intervals(self) -> dict[str, Any]:
        """Intervals of what the loan trains, costs and draws, from all its uncertain inputs."""
        # What demand takes back of lent unit-time is drawn from the nights of the backtest; a unit
        # that serves more leaves more to lend; steps take their time; and failures come at the
        # rates by which clusters differ.
        loan, causes = self.loan, causes_of(self.scenario)
        demand, speed, steps, failures, price = lattice()
        factors = (causes.capacity.low, 1.0, causes.capacity.high)
        loans = [loan.at_speed(factor) for factor in factors]
        kept = 1.0 - np.clip(sampled(loan.taken_back.tolist(), demand), 0.0, 1.0)
        hours = np.maximum(between([each.unit_hours for each in loans], ENDS, speed), 0.0)
        rates = (causes.failures.low, 1.0, causes.failures.high)
        goodputs = [goodput_at(self.scenario, rate) for rate in rates]
        goodput = np.clip(between(goodputs, ENDS, failures), 0.0, 1.0)
        tokens = np.maximum(between([each.training_tokens for each in loans], ENDS, speed), 0.0)
        tokens = tokens * kept * goodput / max(goodputs[1], 1e-12)
        tokens = tokens / causes.step_time.factors(steps)
        drawn = {
            "lent_unit_hours": hours * kept,
            "training_tokens": tokens,
            "training_goodput": goodput,
        }
        if loan.unit_hours:
            each = {"usd": loan.usd, "energy_joules": loan.energy_joules}
            drawn |= {
                name: hours * kept * value / loan.unit_hours
                for name, value in each.items()
                if value
            }
        if "usd" in drawn:
            drawn["usd"] = drawn["usd"] * causes.price.factors(price)
        if loan.usd_per_million_tokens:
            drawn["usd_per_million_trained_tokens"] = each_of(drawn["usd"] * 1e6, tokens)
        return {**finite_ends(drawn, loan.summary()), "inputs": causes.document()}

    def lead_times(self) -> pd.DataFrame:
        """Return the chips that can be lent on the loan's terms, see :func:`lead_times`."""
        demand, loan = self.scenario.demand, self.loan
        need = units_needed(demand, self.scenario.services).sum(axis=0)
        return lead_times(need, demand.start, loan.question, loan.terms)

    def frame(self) -> pd.DataFrame:
        """Return every night of the history, one row a night."""
        return self.loan.frame()

    @property
    def _facts(self) -> dict[str, object]:
        tested = self.summary["backtest"]
        return {
            "lent tonight": f"{self.loan.unit_hours:,.0f} unit-hours",
            "confidence": f"{self.loan.confidence:.4g}",
            "nights answered": tested["nights"],
            "of them exceeded": tested["violated"],
            "time to reclaim": f"{self.loan.terms.reclaim_s:,.0f} s",
        }


@checked(model=MODEL_REMEDY, cluster=f"{CLUSTER_REMEDY} {EACH_KIND[0].upper()}{EACH_KIND[1:]}.")
def lend(
    cluster: Cluster | str,
    history: Demand | str | Sequence[str],
    *,
    night: Night | None = None,
    model: Model | str | None = None,
    days: float | None = None,
    scale_to_peak: float | None = None,
    **keywords: Any,
) -> LendResult:
    """Return how many units can be lent tonight, at a stated confidence.

    Parameters
    ----------
    cluster : Cluster or str
        A cluster or its name; its scale-up domains are the units that are lent.
    history : Demand, str or sequence of str
        A bundled demand by name, or a CSV file; its end is taken for the present.
    night : Night, optional
        End, service level and confidence; by default until 06:00 UTC, with demand within the units
        kept for serving in 99.9 % of the minutes on 95 % of nights, or on as many as the history
        bears out. The keywords ``until``, ``begin`` (``--from``), ``confidence``, ``window`` and
        the share in ``slo`` say the same.
    model : Model or str, optional
        The model that is served; by default Llama-3.1-405B.
    days : float, optional
        Length of the history [days]; by default all of it.
    scale_to_peak : float, optional
        As for :func:`cluster_sim.run_fleet`.
    **keywords
        Other options of ``cluster-sim lend`` by their names, such as ``until="07:00"``,
        ``reserve=10`` or ``disaggregate="1:3"``.

    Returns
    -------
    LendResult
        ``summary`` with the loans, their value and the backtest, ``frame()`` night by night.

    Raises
    ------
    InputError
        For a history with too few nights for the confidence, and as :func:`cluster_sim.run_fleet`.

    Examples
    --------
    >>> tonight = lend("trn2-ultraserver:40", "burstgpt", unit_rate=10.0, confidence="90%")
    >>> tonight.summary["units"], tonight.summary["confidence"]
    (40, 0.9)
    """
    of_night = {k: keywords[k] for k in described(NightInputs) if keywords.get(k) is not None}
    if night is not None and of_night:
        raise InputError(f"a night and {', '.join(of_night)}; give one or the other.")
    every = fleet_options(lend, GROUPS, keywords, days=days, scale_to_peak=scale_to_peak)
    question = night or night_from(read_options(NightInputs, of_night), every.fleet.slo)
    options = for_lending(every)
    check_question(options)
    check_one_kind(cluster)
    demand = read_demand(history, options)
    built = scenario(as_cluster(cluster), demand, options, models=read_models(model))
    return LendResult(built, lend_on(built, question))
