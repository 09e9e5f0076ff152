"""``mpc``: plans the coming hours as a linear programme over the forecast, every 15 minutes.

Only the first step of each solution of the programme is ordered (model-predictive control). The
programme (:mod:`workloads.fleet.policies.programme`) weighs serving, the time that role changes
cost, prices of electricity, deadlines of jobs, and the power of the site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.forecast import largest_ahead
from workloads.fleet.policies.forecasting import with_margin
from workloads.fleet.policies.kind import PolicyKind, Situation
from workloads.fleet.policies.programme import FirstStep, JobNeed, Outlook, first_step
from workloads.fleet.policies.view import Decision, JobView, Policy, View
from workloads.options.fleet import PolicyInputs

STEP = 15
"""Minutes between two plans, and of the first steps of a plan."""
NEAR, FAR = 24, 18
"""Number of steps of 15 minutes, and of hours after them for prices or deadlines a day ahead."""
HOUR = 60
SAFE = 1.1
"""Safety factor on the work left to a job with a deadline, because failures and restarts cost some,
and on the units that are expected to compute for serving, because minutes differ."""
MOST_JOBS = 20
"""Most jobs with a deadline that a plan has variables for; those due first are taken."""

Expected = Callable[[View, int], tuple[FloatArray, FloatArray]]
"""Function of a view and a number of intervals of 15 minutes. It returns the units that have to
serve in each interval, with margins, and the units that the demand itself is expected to need; both
(pools, intervals)."""


@dataclass(frozen=True)
class Weights:
    """Costs and bounds that a plan weighs beside serving.

    ``lead_s, back_s``: time that a unit loses on the way from training to serving, and before it
        trains [s].
    ``price_share``: cheapest share of the unit-time available in the coming day that training shall
        have.
    ``power_cap_w``: most that the site may draw [W].
    ``busy_share``: share of its time for which a unit computes when it serves at the rate under the
        SLO.
    ``rest_units``: units that evaluation and batch work can use beside training jobs.
    """

    lead_s: float
    back_s: float
    price_share: float = 0.5
    power_cap_w: float | None = None
    busy_share: float = 1.0
    rest_units: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.price_share <= 1:
            raise InputError(
                f"a price share of {self.price_share:g} is not in [0, 1]; 0.5 trains half of what "
                "could train."
            )
        if self.power_cap_w is not None and not self.power_cap_w > 0:
            raise InputError(
                f"a power cap of {self.power_cap_w:g} W is not above 0; write it in MW."
            )


@dataclass
class _Plan:
    """The last plan: its first step, the jobs with deadlines, and the expected serving load.

    ``busy`` are the units expected to compute for serving in the first step; ``priced`` says
    whether prices of electricity limit training.
    """

    step: FirstStep
    due: tuple[JobView, ...]
    busy: float
    priced: bool


def predictive(expected: Expected, weights: Weights) -> Policy:
    """Plan the coming hours by a linear programme.

    ``expected``: units that the intervals need, such as :func:`expected_by_forecast`.
    """
    plans: list[_Plan] = []

    def policy(view: View) -> Decision:
        """Decision of the first step of the latest plan."""
        serving = None
        if view.minute % STEP == 0 or not plans:
            plans[:] = [_plan(view, expected, weights)]
            serving = plans[0].step.kept
        plan = plans[0]
        training = _training_limit(view, plan, weights)
        return Decision(serving, training, jobs=_job_limits(view, plan, training))

    return policy


def expected_by_forecast(
    *, quantile: float = 0.999, headroom: float = 0.05, most: float = 3.0
) -> Expected:
    """Expect the need of the policy ``forecast``, and the shape of an earlier day after it.

    ``quantile, headroom, most``: margin on the forecast, as in
    :func:`workloads.fleet.policies.forecasting.forecast`.
    """

    def expected(view: View, intervals: int) -> tuple[FloatArray, FloatArray]:
        """Units that the next intervals need, with margin and without."""
        lead = max(1, math.ceil(round(view.lead_s * 1000) / 60_000))
        first_weekday = (view.weekday - (view.history + view.minute) // MINUTES_PER_DAY) % 7
        rows, loads = [], []
        for load in view.load:
            soon = with_margin(load, STEP, lead, first_weekday, quantile, most)
            ahead = largest_ahead(
                load, every=STEP, steps=intervals, lead=lead, first_weekday=first_weekday
            )
            row = ahead * (soon / ahead[0] if ahead[0] > 0 else 1.0)
            row[0] = soon
            rows.append(row)
            loads.append(ahead)
        need = np.stack(rows) * (1 + headroom)
        need[:, 0] += view.backlog / 10.0
        return need, np.stack(loads)

    return expected


def expected_by_foresight(need: FloatArray, *, headroom: float = 0.0) -> Expected:
    """Expect the true need: the largest of every interval, and from now on for the first.

    ``need`` (pools, minutes): units that each minute of the run will need. ``headroom``: share of
    the need that is served with on top.
    """

    def expected(view: View, intervals: int) -> tuple[FloatArray, FloatArray]:
        """Units that the next intervals need, with margin and without."""
        lead = max(1, math.ceil(round(view.lead_s * 1000) / 60_000))
        last = need.shape[1] - 1
        result = np.empty((len(need), intervals))
        for number in range(intervals):
            first = view.minute + (lead + STEP * number if number else 0)
            end = view.minute + lead + STEP * (number + 1)
            window = need[:, min(first, last) : min(end, last + 1)]
            result[:, number] = window.max(axis=1)
        return result * (1 + headroom), result

    return expected


def _plan(view: View, expected: Expected, weights: Weights) -> _Plan:
    """Solve the programme for the need and the jobs that are expected at this moment."""
    due = tuple(sorted((job for job in view.jobs if _can_be_met(job)), key=_due))[:MOST_JOBS]
    priced = len(view.prices_usd_per_mwh) > 0
    far = FAR if priced or due else 0
    minutes = np.concatenate([np.full(NEAR, float(STEP)), np.full(far, float(HOUR))])
    need, load = (_by_step(units) for units in expected(view, NEAR + far * HOUR // STEP))
    busy = SAFE * weights.busy_share * load.sum(axis=0)
    alive = float(view.units - view.broken)
    others = sum(job.units for job in view.jobs if job not in due)
    outlook = Outlook(
        minutes=minutes,
        need=need,
        kept=(view.serving + view.coming).astype(float),
        training=float(view.training),
        units=alive,
        lead=weights.lead_s / 60.0,
        back=weights.back_s / 60.0,
        price=_relative_prices(view.prices_usd_per_mwh, minutes),
        share=weights.price_share if priced else 1.0,
        power_units=_units_by_power(view, weights, busy),
        jobs=tuple(_job_need(job, minutes) for job in due),
        other_units=min(others + weights.rest_units, alive),
    )
    return _Plan(first_step(outlook), due, float(busy[0]), priced)


def _can_be_met(job: JobView) -> bool:
    """Return whether a job has a deadline that has not passed, and work that ends."""
    return 0 < job.due_minutes < math.inf and 0 < job.work_left < math.inf


def _due(job: JobView) -> float:
    return job.due_minutes


def _by_step(need: FloatArray) -> FloatArray:
    """Need of each step of a plan: the largest among its intervals of 15 minutes."""
    far = need[:, NEAR:].reshape(len(need), -1, HOUR // STEP).max(axis=2, initial=0.0)
    return np.concatenate([need[:, :NEAR], far], axis=1)


def _relative_prices(usd_per_mwh: FloatArray, minutes: FloatArray) -> FloatArray:
    """Mean price of each step, scaled to 0 in the cheapest and 1 in the dearest; (steps,).

    A minute without a published price has the mean of the published ones.
    """
    steps = len(minutes)
    if not len(usd_per_mwh):
        return np.zeros(steps)
    length = int(minutes.sum())
    published = usd_per_mwh[:length]
    by_minute = np.concatenate([published, np.full(length - len(published), published.mean())])
    first = np.concatenate([[0], np.cumsum(minutes)[:-1]]).astype(np.int64)
    means = np.add.reduceat(by_minute, first) / minutes
    span = float(np.ptp(means))
    return (means - means.min()) / span if span > 0 else np.zeros(steps)


def _units_by_power(view: View, weights: Weights, busy: FloatArray) -> FloatArray:
    """Units that can train within the power of the site while ``busy`` units compute; (steps,)."""
    rise_w = view.unit_busy_w - view.unit_idle_w
    if weights.power_cap_w is None or rise_w <= 0:
        return np.full(len(busy), np.inf)
    left_w = weights.power_cap_w - (view.units - view.broken) * view.unit_idle_w
    return np.maximum(left_w / rise_w - busy, 0.0)


def _job_need(job: JobView, minutes: FloatArray) -> JobNeed:
    """Return the work of a job within a plan.

    Of a job that is due after the plan, this is the plan's share of the time until its deadline.
    """
    ends = np.cumsum(minutes)
    part = min(1.0, float(ends[-1]) / job.due_minutes)
    steps = max(1, int(np.searchsorted(ends, job.due_minutes, side="right")))
    return JobNeed(float(job.units), SAFE * part * job.work_left, steps)


def _training_limit(view: View, plan: _Plan, weights: Weights) -> int | None:
    """Most units that may train in this minute; None where only serving limits them."""
    limits = []
    if plan.priced:
        limits.append(math.ceil(plan.step.training))
    if weights.power_cap_w is not None:
        serving = float((view.serving + view.coming).sum())
        busy = min(serving, plan.busy + float(view.backlog.sum()))
        allowed = float(_units_by_power(view, weights, np.array([busy]))[0])
        rise_w = view.unit_busy_w - view.unit_idle_w
        if rise_w > 0 and view.power_w > weights.power_cap_w:
            allowed = min(allowed, view.training - (view.power_w - weights.power_cap_w) / rise_w)
        if math.isfinite(allowed):
            limits.append(max(0, math.floor(allowed)))
    return min(limits) if limits else None


def _job_limits(view: View, plan: _Plan, training: int | None) -> Mapping[str, int] | None:
    """Limits by job, under which jobs with a deadline get the units of the plan.

    The other jobs share the rest, each with as many of its present units as possible.
    """
    if not plan.due:
        return None
    now = {job.name: job for job in view.jobs}
    wanted = {
        job.name: _whole(units, now[job.name])
        for job, units in zip(plan.due, plan.step.jobs.tolist(), strict=False)
        if job.name in now
    }
    limits = dict(wanted) if training is not None else {}
    lacking = sum(max(0, units - now[name].size) for name, units in wanted.items())
    others = [job for job in view.jobs if job.name not in wanted]
    if lacking or training is not None:
        most = math.ceil(plan.step.training) if training is None else training
        limits |= _shared(others, max(0, most - sum(wanted.values())))
    return limits


def _whole(units: float, job: JobView) -> int:
    """Return the units of a job as a whole number: none, or at least the fewest it runs on."""
    if units < job.min_units:
        ends_soon = units > 0 and job.work_left <= job.min_units * STEP
        return job.min_units if ends_soon or units >= job.min_units / 2 else 0
    return min(math.ceil(units), job.units)


def _shared(jobs: Sequence[JobView], room: int) -> dict[str, int]:
    """Divide units among jobs in their order: first what each has now, then room to grow."""
    limits = dict.fromkeys((job.name for job in jobs), 0)
    for most in ("size", "units"):
        for job in jobs:
            more = min(getattr(job, most) - limits[job.name], room)
            limits[job.name] += max(0, more)
            room -= max(0, more)
    return limits


def _weights(settings: PolicyInputs, situation: Situation) -> Weights:
    return Weights(
        situation.lead_s,
        situation.back_s,
        price_share=settings.price_share,
        power_cap_w=settings.power_cap_w,
        busy_share=situation.busy_share,
        rest_units=situation.rest_units,
    )


def _build(settings: PolicyInputs, situation: Situation) -> Policy:
    headroom = 0.05 if settings.headroom is None else settings.headroom
    expected = expected_by_forecast(quantile=settings.quantile, headroom=headroom)
    return predictive(expected, _weights(settings, situation))


def _build_with_foresight(settings: PolicyInputs, situation: Situation) -> Policy:
    expected = expected_by_foresight(situation.need, headroom=settings.headroom or 0.0)
    return predictive(expected, _weights(settings, situation))


FORESIGHT = PolicyKind(
    "mpc-oracle",
    "the plans of mpc with the demand known: its upper bound",
    _build_with_foresight,
    bound="mpc-oracle",
)
KIND = PolicyKind(
    "mpc",
    "plans the coming hours over the forecast, by price, deadline and power",
    _build,
    bound=FORESIGHT.name,
)
