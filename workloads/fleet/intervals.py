"""Intervals of a fleet's results, from demand, capacity, steps, failures and price together.

The run is repeated with a unit that serves less and more, which is to the units what more and less
demand are, and with more and fewer failures at other times. What these runs change is added up by
:mod:`workloads.confidence.sensitivity`. Steps that take longer train fewer tokens in proportion,
unless a job ends by its work: the run is then repeated for them as well. A large fleet is repeated
in a smaller one of the same kind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from cluster_sim.processes import on_all_cores
from cluster_sim.progress import Watch, unwatched
from topologies.support.arrays import FloatArray
from workloads.confidence.sensitivity import (
    AS_STATED,
    ENDS,
    Uncertain,
    between,
    each_of,
    finite_ends,
    lattice,
    price_of,
    sampled,
)
from workloads.demand import Horizon
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.policies.view import Limits, Policy
from workloads.fleet.results import summary
from workloads.fleet.scenario import Scenario, run
from workloads.fleet.setup.machines import Machines
from workloads.fleet.setup.night_work import gang_mtbf_s
from workloads.fleet.setup.serving import capacity_interval
from workloads.fleet.state.services import Failures
from workloads.job.causes import rate_range

FEWEST_UNITS = 1_000  # fewest units of a smaller fleet, in which a larger one is repeated
MINUTE_S = 60.0
MANY = 30.0  # failures of a run from which chance hardly changes what they do together
FEW = (0.1, 0.9)
"""Quantiles of the rates of failures at which a run of few failures is repeated, each time with
others; a run of many is repeated at the last alone, as they cost in proportion to their number."""
AMOUNTS = (
    "inference_chip_hours", "training_chip_hours", "training_tokens", "energy_joules",
    "served_tokens", "sold_tokens", "revenue_usd", "electricity_usd",
)  # fmt: skip
"""Results that grow with the fleet; others are shares."""
ARRIVING = ("served_tokens", "sold_tokens", "revenue_usd")
"""Results that grow with the demand where units keep up with it."""
STATED = (
    "inference_chip_hours", "training_chip_hours", "training_goodput", "training_tokens",
    "training_steps", "slo_attainment", "served_tokens", "energy_joules", "electricity_usd",
    "carbon_kg", "cost_usd", "cost_with_electricity_usd", "revenue_usd", "margin_usd",
    "usd_per_million_tokens", "usd_per_million_trained_tokens", "usd_per_training_step",
)  # fmt: skip
"""Results with an interval, by their keys in the command line's JSON."""


@dataclass(frozen=True)
class Causes:
    """Factors on the inputs of a fleet, each with its ends."""

    demand: Uncertain
    capacity: Uncertain
    step_time: Uncertain
    failures: Uncertain
    price: Uncertain = AS_STATED  # factor on the price of all chips

    @property
    def load(self) -> Uncertain:
        """Factor on the units that the demand needs."""
        return self.demand.over(self.capacity)

    def document(self) -> dict[str, Any]:
        """Return the inputs by their keys in the command line's JSON."""
        return {name: each.document() for name, each in vars(self).items()}


def causes_of(scenario: Scenario) -> Causes:
    """Return the factors on the inputs of a scenario: those of its least certain parts."""
    steps = [job.step_time for job in scenario.jobs if not job.evaluation]
    failures = Uncertain(basis="no failures")
    if scenario.fleet.failures is not None:
        low, high = rate_range(scenario.cluster.numbers)
        failures = Uncertain(low, high, "rates of failures of published clusters")
    return Causes(
        demand=scenario.demand_level,
        capacity=Uncertain.of(
            capacity_interval(
                [service for kind in scenario.kinds for service in kind.services], 1.0
            )
        ),
        step_time=max(steps, key=lambda each: each.high / each.low, default=AS_STATED),
        failures=failures,
        price=price_of((kind.usd_per_s, kind.economics) for kind in scenario.kinds),
    )


def loaded(scenario: Scenario, factor: float) -> Scenario:
    """Return a scenario whose demand needs ``factor`` times the units."""
    slower = scenario.changed(
        lambda kind: {
            "services": tuple(
                replace(
                    service,
                    capacity=replace(
                        service.capacity,
                        rate_slo_per_s=service.capacity.rate_slo_per_s / factor,
                        rate_max_per_s=service.capacity.rate_max_per_s / factor,
                    ),
                )
                for service in kind.services
            )
        }
    )
    batch = scenario.batch
    if batch is not None:
        batch = replace(batch, rate_per_s=batch.rate_per_s / factor)
    return replace(slower, batch=batch)


def failing(scenario: Scenario, factor: float) -> Scenario:
    """Return a scenario with ``factor`` times the failures."""

    def more(kind: Machines) -> dict[str, Any]:
        """Return the fields of a kind that change."""
        failures = kind.fleet.failures and more_failures(kind.fleet.failures, factor)
        return {"fleet": replace(kind.fleet, failures=failures)}

    return scenario.changed(more)


def more_failures(failures: Failures, factor: float) -> Failures:
    """Return failures of all kinds that are ``factor`` times as frequent."""
    return replace(
        failures,
        unit_mtbf_s=failures.unit_mtbf_s / factor,
        domains=tuple(replace(each, mtbf_s=each.mtbf_s / factor) for each in failures.domains),
        interruptions={name: each / factor for name, each in failures.interruptions.items()},
    )


def slowed(scenario: Scenario, factor: float) -> Scenario:
    """Return a scenario whose training steps take ``factor`` times as long."""

    def slower(job: TrainingJob) -> TrainingJob:
        """Return a job with longer steps, unless its rate was stated."""
        rates = tuple((n, rate / factor) for n, rate in job.tokens_per_s)
        return job if job.step_time.is_point else replace(job, tokens_per_s=rates)

    return scenario.changed(lambda kind: {"jobs": tuple(map(slower, kind.jobs))})


def miniature(scenario: Scenario) -> Scenario:
    """Return a smaller fleet of the same kind, with a gang of each size at least."""
    # It is the same fleet where that is small, or where sizes are stated.
    options = scenario.options
    sizes = (options.fleet.training, options.policy.power_cap, options.policy.static_units)
    limits, usual = scenario.fleet.limits, Limits()
    names = ("floor", "cap", "block", "reserve", "changes_per_minute")
    is_sized = any(getattr(limits, name) != getattr(usual, name) for name in names)
    is_sized |= any(size is not None for size in sizes) or ".py" in options.policy.policy
    is_sized |= bool(options.policy.maintenance or options.policy.capacity_block)
    share = max(_fewest_units(kind) / kind.fleet.units for kind in scenario.kinds)
    failures = scenario.fleet.failures
    if share >= 1 or is_sized or (failures and failures.domains):
        return scenario
    history, batch = scenario.horizon.history, scenario.batch

    def smaller(kind: Machines) -> dict[str, Any]:
        """Return the fields of a smaller kind."""
        units, costs = round(kind.fleet.units * share), kind.fleet.costs
        costs = replace(costs, store_bytes_per_s=costs.store_bytes_per_s * share)
        return {
            "cluster": replace(kind.cluster, domains=units),
            "jobs": fewer(kind.jobs, share),
            "fleet": replace(kind.fleet, units=units, costs=costs),
        }

    return replace(
        scenario.changed(smaller),
        horizon=Horizon(scenario.demand.times(share), history and history.times(share)),
        demand=scenario.demand.times(share),
        batch=batch and replace(batch, demand=batch.demand.times(share)),
    )


def _fewest_units(kind: Machines) -> int:
    """Return the fewest units of a smaller fleet that have a gang of each size."""
    units = kind.fleet.units
    alike = Counter(job.units for job in kind.jobs if not job.evaluation)
    return max([FEWEST_UNITS, *(-(-units // alike[size]) for size in alike)])


def fewer(jobs: Sequence[TrainingJob], share: float) -> tuple[TrainingJob, ...]:
    """Return a share of the jobs of each size, smaller ones where it is less than one job."""
    groups: dict[tuple[int, int, bool], list[TrainingJob]] = {}
    for job in jobs:
        groups.setdefault((job.units, job.min_units, job.evaluation), []).append(job)
    result: list[TrainingJob] = []
    for (units, least, _), alike in groups.items():
        count = max(1, round(len(alike) * share))
        size = max(1, min(units, round(len(alike) * units * share / count)))
        at_least = size if units == least else max(1, round(least * size / units))
        result += [
            replace(
                job,
                units=size,
                min_units=at_least,
                step_units=max(1, round(job.step_units * size / units)),
            )
            for job in alike[:count]
        ]
    return tuple(result)


def fleet_intervals(
    scenario: Scenario,
    results: Mapping[str, Any],
    policy: Callable[[Scenario], Policy],
    *,
    seed: int = 0,
    watch: Watch = unwatched,
    causes: Causes | None = None,
    stated_sizes: bool = False,
) -> dict[str, Any]:
    """Return the 80 % intervals of a run's results by their keys, and the ``inputs``."""
    # ``policy`` is called for each scenario, so that a policy has not learned in another run. All
    # runs meet failures at times that are drawn alike, by ``seed``. ``stated_sizes`` says that the
    # policy counts in units, so that a smaller fleet would not be of the same kind.
    causes = causes or causes_of(scenario)
    part = scenario if stated_sizes else miniature(scenario)
    questions = [] if part is scenario else [_Question("", 0.0, part, seed)]
    questions += _at_ends(part, causes, seed)

    def answer(question: _Question) -> dict[str, Any]:
        changed = question.scenario
        done = run(changed, policy(changed), seed=question.seed)
        return _relative(summary(done, changed.prices))

    task = "fleet, for intervals (--no-intervals for none)"
    answers = on_all_cores(answer, questions, watch, task=task)
    whole = _relative(results)
    middle = whole if part is scenario else answers[0]
    repeated = [
        (each.cause, each.score, value) for each, value in zip(questions, answers, strict=True)
    ]
    return _Draws(results, whole, middle, repeated, causes).document()


class _Question(NamedTuple):
    """A run at one value of an input."""

    cause: str
    score: float
    scenario: Scenario
    seed: int


def _at_ends(scenario: Scenario, causes: Causes, seed: int) -> list[_Question]:
    """Return the runs for each input whose effect has to be simulated."""
    questions = []
    changes = {"load": (causes.load, loaded)}
    if any(math.isfinite(job.work_tokens) for job in scenario.jobs):
        changes["step_time"] = (causes.step_time, slowed)
    for cause, (factor, change) in changes.items():
        ends = () if factor.is_point else ((ENDS[0], factor.low), (ENDS[2], factor.high))
        questions += [_Question(cause, score, change(scenario, end), seed) for score, end in ends]
    if scenario.fleet.failures is None or causes.failures.is_point:
        return questions
    count = sum(
        scenario.demand.minutes * MINUTE_S / gang_mtbf_s(fleet.failures, fleet.units, fleet.units)
        for fleet in (kind.fleet for kind in scenario.kinds)
        if fleet.failures
    )
    for number, share in enumerate(FEW if count < MANY else FEW[-1:]):
        (factor,) = causes.failures.factors(np.array([NormalDist().inv_cdf(share)]))
        run_seed = seed + 1 + number if count < MANY else seed
        questions.append(_Question("failures", factor - 1, failing(scenario, factor), run_seed))
    return questions


def _relative(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return results for each chip-hour where they are amounts."""
    batch = results.get("batch", {"served_tokens": 0})
    flat = {**results, "sold_tokens": results["served_tokens"] + batch["served_tokens"]}
    amounts = {name: flat[name] and flat[name] / results["chip_hours"] for name in AMOUNTS}
    return {**flat, **amounts}


@dataclass(frozen=True)
class _Draws:
    """Results at the points of the lattice, from the runs at the ends of the inputs."""

    results: Mapping[str, Any]
    whole: Mapping[str, Any]  # the same, amounts for each chip-hour
    middle: Mapping[str, Any]  # those of the fleet that was repeated, as predicted
    repeated: Sequence[tuple[str, float, Mapping[str, Any]]]  # input, its score, results there
    causes: Causes

    def document(self) -> dict[str, Any]:
        """Return the ends of every result by its key."""
        drawn = self._all()
        stated = finite_ends({name: drawn[name] for name in STATED if name in drawn}, self.results)
        return {**stated, "inputs": self.causes.document()}

    def _all(self) -> dict[str, FloatArray]:
        """Return the results of every point; (points,) for each key."""
        drawn = {
            name: self._drawn(name)
            for name in (*AMOUNTS, "training_goodput", "slo_attainment", "serving_cost_share")
            if self.whole.get(name) is not None
        }
        drawn["slo_attainment"] = np.minimum(drawn["slo_attainment"], 1.0)
        hours = float(self.results["chip_hours"])
        amounts = {name: drawn[name] * hours for name in AMOUNTS if name in drawn}
        return {**drawn, **amounts, **self._money({**drawn, **amounts})}

    def _drawn(self, name: str) -> FloatArray:
        """Return a result at every point: that of the run, and what each input changes."""
        demand, capacity, steps, failures, _ = lattice()
        demands = self.causes.demand.factors(demand)
        loads = demands / self.causes.capacity.factors(capacity)
        scores = {"load": self.causes.load.scores(loads), "step_time": steps, "failures": failures}
        value: FloatArray = np.full(len(demand), float(self.whole[name]))
        level = float(self.middle[name] or 0.0)
        for cause, place in scores.items():
            rows = [(at, row[name] or 0.0) for each, at, row in self.repeated if each == cause]
            if not rows:
                continue
            if cause == "failures" and len(rows) > 1:  # each run has its luck
                value = value + sampled([level, *(result for _, result in rows)], place) - level
                continue
            if cause == "failures":
                place = self.causes.failures.factors(failures) - 1
            at, values = zip(*sorted([*rows, (0.0, level)]), strict=True)
            value = value + between(values, at, place) - level
        value = np.maximum(value, 0.0)
        if name in ARRIVING:
            value = value * demands
        if name == "training_tokens" and "step_time" not in {each for each, *_ in self.repeated}:
            return np.asarray(value / self.causes.step_time.factors(steps))
        return value

    def _money(self, drawn: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Return the prices and costs that follow from the amounts."""
        results, none = self.results, np.zeros(len(drawn["served_tokens"]))
        cost = (results["cost_usd"] or 0.0) * self.causes.price.factors(lattice()[-1])
        with_electricity = cost + drawn.get("electricity_usd", none)
        inference, training = drawn["inference_chip_hours"], drawn["training_chip_hours"]
        share = np.divide(inference, inference + training, out=none + 0.0, where=inference > 0)
        share = drawn.get("serving_cost_share", share)
        tokens = drawn.get("training_tokens", none)
        steps = tokens / results["training_step_tokens"]
        carbon = (results["carbon_kg"] or 0.0) / (results["energy_joules"] or 1.0)
        return {
            "carbon_kg": drawn.get("energy_joules", none) * carbon,
            "training_steps": steps,
            "cost_usd": cost,
            "cost_with_electricity_usd": with_electricity,
            "margin_usd": drawn.get("revenue_usd", none) - with_electricity,
            "usd_per_million_tokens": each_of(cost * share * 1e6, drawn["sold_tokens"]),
            "usd_per_million_trained_tokens": each_of(cost * (1 - share) * 1e6, tokens),
            "usd_per_training_step": each_of(cost * (1 - share), steps),
        }
