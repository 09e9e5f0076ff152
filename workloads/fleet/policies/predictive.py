"""``mpc``: plans the coming hours as a linear programme over the forecast, every 15 minutes.

Only the first step of each solution of the programme is ordered (model-predictive control).

A step t lasts w minutes. In it k units of each kind are kept for serving each pool, of which b had
to come back from training, and x units train, of which y had to begin; each job with a deadline has
an x and a y of its own, and batch work an x for each of a few moments by which it is due, with one
y for all of them. The programme is

    min   1,000 Σ w short  +  10 Σ late  +  idle  +  Σ w price x  +  tiny terms
    Σ speed k + short ≥ need             in every pool
    Σ k + Σ x ≤ units                    of every kind
    Σ rise x ≤ units that the site's power lets train
    Σ worth (w x − lead b − back y) + idle ≥ share · Σ w worth (units that can train)
    Σ (w speed x − back y) + late ≥ work, up to the deadline of each job

where speed, rise and worth are a unit's requests, watts and tokens against the first kind, prices
are scaled to the range from 0 to 1, times 0.9. A unit-minute that should train and does not (idle)
costs more than electricity in the dearest hour, so training moves between hours and gives way only
to serving, deadlines and power. Tiny terms prefer early to late, jobs with a deadline to others,
kinds in the order in which they serve, and fewer kept units. HiGHS solves it, through scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import FloatArray
from workloads.fleet.policies.forecast import EVERY, Margins, largest_ahead
from workloads.fleet.policies.view import (
    Decision,
    JobView,
    KindView,
    Policy,
    PolicyKind,
    Situation,
    View,
)
from workloads.options.fleet import PolicyInputs

SHORT, LATE = 1000.0, 10.0
"""Cost of a unit-minute of need that nobody serves, and of a job's work that misses its deadline,
in unit-minutes that could have trained."""
KEPT, LATER = 1e-3, 1e-4
"""Costs in the tiny terms: of a unit-minute kept for serving, and of training one unit-minute at
the end of the plan instead of at its beginning."""
ELSEWHERE = 10.0  # factor on ``KEPT`` where a unit serves another region


@dataclass(frozen=True)
class JobNeed:
    """A job with a deadline: the units that it can use, and the work that it has to finish."""

    units: float  # most units that can work for the job
    work: float  # unit-minutes that the job needs within the plan
    steps: int  # steps of the plan before its deadline
    # Work that a minute of a unit of each kind does; 0 where the job cannot run there
    speeds: tuple[float, ...] = (1.0,)
    now: float | None = None  # units that work for it now; None for a part of the batch work


@dataclass(frozen=True, eq=False)
class Outlook:
    """Inputs of the programme: need, prices, power and jobs in the coming steps."""

    minutes: FloatArray
    need: FloatArray
    kept: FloatArray  # (kinds, pools): units that serve now, or are on their way
    # training, units (kinds,): units that train now, and units that are not broken
    training: FloatArray
    units: FloatArray
    # lead, back: minutes that a unit loses on the way from training to serving, and before it
    # trains
    lead: float
    back: float
    # (steps,) or (kinds, steps): price of the electricity of what a unit trains, 0 where and when
    # it is cheapest and 1 where it is dearest; all 0 without prices
    price: FloatArray
    share: float = 1.0  # share of the available unit-time that training shall have
    # (steps,): units of the mean rise that can train within the power of the site
    power_units: FloatArray = field(default_factory=lambda: np.array([np.inf]))
    jobs: tuple[JobNeed, ...] = ()  # jobs in order of their deadlines, the nearest first
    # (kinds,): most units that work without a deadline can use
    other_units: FloatArray = field(default_factory=lambda: np.array([np.inf]))
    # (kinds, pools): requests that a unit serves relative to one of the first kind, and whether the
    # pool is of another region
    speed: FloatArray = field(default_factory=lambda: np.ones((1, 1)))
    away: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros((1, 1), bool))
    # rise, worth (kinds,): watts of a unit that computes relative to the mean, and trained tokens
    # relative to one of the first kind
    rise: FloatArray = field(default_factory=lambda: np.ones(1))
    worth: FloatArray = field(default_factory=lambda: np.ones(1))
    # (kinds,): units of ``training`` that do batch work now
    batch: FloatArray = field(default_factory=lambda: np.zeros(1))

    @property
    def in_parts(self) -> list[bool]:
        """True for parts of the batch work, which share the units that begin; (jobs,)."""
        return [job.now is None for job in self.jobs]

    @property
    def trainable(self) -> FloatArray:
        """Units that can train in each step, in units of the first kind; (steps,)."""
        steps = len(self.minutes)
        served = served_by_kind(self.need.sum(axis=0), self.units, self.speed, self.worth)
        left = np.broadcast_to(np.maximum(self.power_units, 0.0), steps)
        result: FloatArray = np.zeros(steps)
        for kind in np.argsort(-self.worth / np.maximum(self.rise, 1e-9), kind="stable").tolist():
            usable = self.other_units[kind]
            usable += sum(job.units for job in self.jobs if job.speeds[kind])
            rise = max(float(self.rise[kind]), 1e-9)
            trains = np.minimum(
                np.clip(self.units[kind] - served[kind], 0.0, usable), np.maximum(left, 0.0) / rise
            )
            left = left - trains * rise
            result += self.worth[kind] * trains
        return result


def served_by_kind(
    load: FloatArray, units: FloatArray, speed: FloatArray, worth: FloatArray
) -> FloatArray:
    """Units of each kind that serve a load, those first whose training is least; (kinds, steps)."""
    left, fastest = load, speed.max(axis=1)
    result = np.zeros((len(units), len(load)))
    for kind in np.argsort(worth / np.maximum(fastest, 1e-9), kind="stable").tolist():
        served = np.minimum(left, units[kind] * fastest[kind])
        left = left - served
        result[kind] = served / max(fastest[kind], 1e-9)
    return result


@dataclass(frozen=True, eq=False)
class FirstStep:
    """The first step of a solved programme."""

    kept: FloatArray  # (kinds, pools): units for serving
    short: FloatArray  # (pools,): units of the first kind that are lacking
    training: FloatArray  # (kinds,): units that train, jobs with a deadline among them
    jobs: FloatArray  # (jobs,): work of each job with a deadline in a minute


def first_step(outlook: Outlook) -> FirstStep:
    """Solve the programme, and return its first step.

    A valley of two steps is lent when a change there and back costs one step, not when it costs
    three:

    >>> need, quarter = np.array([[2.0, 2.0, 10.0, 10.0]]), np.full(4, 15.0)
    >>> now = np.array([[10.0]]), np.array([10.0]), np.array([20.0])
    >>> for lead in (45.0, 15.0):
    ...     ahead = Outlook(quarter, need, *now, lead, 0.0, np.zeros(4))
    ...     print(first_step(ahead).kept)
    [[10.]]
    [[2.]]
    """
    from scipy import optimize  # slow to import

    (pools, steps), kinds, jobs = outlook.need.shape, len(outlook.units), len(outlook.jobs)
    group = _groups(outlook)
    columns = _Columns(kinds, pools, steps, jobs, len(group))
    matrix, limits = _rows(outlook, columns, group)
    solved = optimize.milp(
        _costs(outlook, columns),
        constraints=optimize.LinearConstraint(matrix, ub=limits),
        bounds=optimize.Bounds(0.0, _most(outlook, columns)),
    )
    if solved.x is None:  # no solution: fall back to the need itself
        kept = np.zeros((kinds, pools))
        spare = np.minimum(np.maximum(outlook.units, 0.0), float(outlook.power_units[0]))
        return FirstStep(kept, outlook.need[:, 0], spare, np.zeros(0))
    value = np.round(solved.x, 6)
    trains = value[columns.of["training"]].reshape(kinds, jobs + 1, steps)[:, :, 0]
    kept = value[columns.of["kept"]].reshape(kinds, pools, steps)[:, :, 0]
    short = value[columns.of["short"]].reshape(pools, steps)[:, 0]
    speeds = np.array([job.speeds for job in outlook.jobs]).reshape(jobs, kinds).T
    return FirstStep(kept, short, trains.sum(axis=1), (trains[:, 1:] * speeds).sum(axis=0))


class _Columns:
    """Column numbers of the programme's variables in the constraint matrix."""

    # Each kind of variable has a slice, in which the steps are consecutive.

    def __init__(self, kinds: int, pools: int, steps: int, jobs: int, groups: int) -> None:
        sizes = {
            "kept": kinds * pools * steps,
            "back": kinds * pools * steps,
            "short": pools * steps,
            "training": kinds * (jobs + 1) * steps,
            "begin": kinds * groups * steps,
            "idle": 1,
            "late": jobs,
        }
        self.count, self.of = 0, dict[str, slice]()
        for name, size in sizes.items():
            self.of[name] = slice(self.count, self.count + size)
            self.count += size

    def rows(self, **parts: FloatArray) -> FloatArray:
        """Return rows of the matrix from the coefficients of some variables; the rest are zero."""
        coefficients = np.zeros((len(next(iter(parts.values()))), self.count))
        for name, values in parts.items():
            coefficients[:, self.of[name]] = values
        return coefficients


def _costs(outlook: Outlook, columns: _Columns) -> FloatArray:
    """Cost of one unit of each variable, in unit-minutes that could have trained; (variables,)."""
    pools, steps = outlook.need.shape
    minutes, jobs = outlook.minutes, len(outlook.jobs)
    cost, kinds = np.zeros(columns.count), len(outlook.units)
    places = np.arange(1, kinds + 1)[:, None] * np.where(outlook.away, ELSEWHERE, 1.0)
    places = np.broadcast_to(places, (kinds, pools))
    cost[columns.of["kept"]] = np.multiply.outer(places, KEPT * minutes).ravel()
    cost[columns.of["short"]] = np.tile(SHORT * minutes, pools)
    # Below 1, the cost of an idle unit-minute, so that no hour is too dear for wanted training.
    electricity = 0.9 * np.broadcast_to(outlook.price, (kinds, steps))
    waiting = LATER * np.arange(steps) / steps
    # The first job waits last, so plans that follow each other start the same jobs.
    waits = [1, *(2 + jobs - job for job in range(jobs))]
    of_kinds = np.concatenate([minutes * (electricity + each * waiting) for each in waits], axis=1)
    cost[columns.of["training"]] = (outlook.worth[:, None] * of_kinds).ravel()
    cost[columns.of["idle"]] = 1.0
    cost[columns.of["late"]] = LATE
    return cost


def _most(outlook: Outlook, columns: _Columns) -> FloatArray:
    """Upper bounds of the variables; (variables,)."""
    (pools, steps), kinds = outlook.need.shape, len(outlook.units)
    most = np.full(columns.count, np.inf)
    rows = []
    for kind in range(kinds):
        rows.append(np.full(steps, outlook.other_units[kind]))
        for job in outlook.jobs:
            units = job.units if job.speeds[kind] else 0.0
            rows.append(np.where(np.arange(steps) < job.steps, units, 0.0))
    most[columns.of["training"]] = np.concatenate(rows)
    serves = np.broadcast_to(outlook.speed > 0, (kinds, pools))
    most[columns.of["kept"]] = np.repeat(np.where(serves, np.inf, 0.0).ravel(), steps)
    return most


def _rows(outlook: Outlook, columns: _Columns, group: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Matrix and limits of the constraints, each row as ``matrix · variables ≤ limit``."""
    # A plan has a few hundred variables: a dense matrix is built faster than a sparse one. The
    # blocks follow the order of the constraints in the module's docstring, with those that define
    # b (units that come back) and y (units that begin) between them.
    (pools, steps), kinds = outlook.need.shape, len(outlook.units)
    jobs, minutes, worth = len(outlook.jobs), outlook.minutes, outlook.worth

    def kron(left: FloatArray, right: FloatArray) -> FloatArray:
        """Kronecker product."""
        return np.asarray(np.kron(left, right), float)

    each: FloatArray = np.eye(kinds * pools * steps)
    step: FloatArray = np.eye(steps)
    rise: FloatArray = step - np.eye(steps, k=-1)
    speed = np.broadcast_to(outlook.speed, (kinds, pools))
    served = np.concatenate([kron(np.diag(row), step) for row in speed], axis=1)
    of_kinds: FloatArray = np.eye(kinds)
    of_jobs: FloatArray = kron(of_kinds, np.tile(step, jobs + 1))
    now = step[0]
    groups = len(group)
    # Units of each kind that work now for each group; (kinds, groups)
    apart = [np.sign(job.speeds) * job.now for job in outlook.jobs if job.now is not None]
    apart = [outlook.batch, *apart] if any(outlook.in_parts) else apart
    training = np.column_stack([outlook.training - sum(apart), *apart])
    blocks = [
        (columns.rows(kept=-served, short=-np.eye(pools * steps)), -outlook.need.ravel()),
        (
            columns.rows(kept=kron(np.eye(kinds * pools), rise), back=-each),
            np.multiply.outer(np.broadcast_to(outlook.kept, (kinds, pools)), now).ravel(),
        ),
        (
            columns.rows(kept=kron(of_kinds, np.tile(step, pools)), training=of_jobs),
            np.repeat(outlook.units, steps),
        ),
        (
            columns.rows(
                training=kron(of_kinds, kron(group, rise)), begin=-np.eye(kinds * groups * steps)
            ),
            np.multiply.outer(training, now).ravel(),
        ),
        (
            columns.rows(
                training=-kron(worth[None], np.tile(minutes, jobs + 1)[None]),
                back=outlook.lead * np.repeat(worth, pools * steps)[None],
                begin=outlook.back * np.repeat(worth, groups * steps)[None],
                idle=np.array([[-1.0]]),
            ),
            np.array([-outlook.share * float(minutes @ outlook.trainable)]),
        ),
    ]
    if np.isfinite(outlook.power_units).all():
        power = np.broadcast_to(np.maximum(outlook.power_units, 0.0), steps)
        blocks.append((columns.rows(training=kron(outlook.rise[None], step) @ of_jobs), power))
    if jobs:
        blocks += _work_rows(outlook, columns, group)
    matrices, limits = zip(*blocks, strict=True)
    return np.concatenate(matrices), np.concatenate(limits)


def _work_rows(
    outlook: Outlook, columns: _Columns, group: FloatArray
) -> list[tuple[FloatArray, FloatArray]]:
    """Matrix and limits by which jobs get their work until their deadlines, and no more."""
    minutes, kinds, jobs = outlook.minutes, len(outlook.units), len(outlook.jobs)
    speeds = np.array([job.speeds for job in outlook.jobs])
    ran = [np.kron(np.diag([0.0, *speeds[:, kind]])[1:], minutes[None]) for kind in range(kinds)]
    # A part of the batch work is not charged, as any part may be what begins.
    charged = group[:, 1:].T * ~np.array(outlook.in_parts)[:, None]
    started = [
        np.kron(charged * np.sign(speeds[:, [kind]]), np.full(len(minutes), outlook.back))
        for kind in range(kinds)
    ]
    lost = columns.rows(begin=np.concatenate(started, axis=1))
    finished = columns.rows(training=np.concatenate(ran, axis=1)) - lost
    work = np.array([job.work for job in outlook.jobs])
    return [(columns.rows(late=-np.eye(jobs)) - finished, -work), (finished, work)]


def _groups(outlook: Outlook) -> FloatArray:
    """Return which training begins together: other work, batch, each job; (groups, jobs + 1)."""
    batch, each = np.array([False, *outlook.in_parts]), np.eye(1 + len(outlook.jobs))
    return np.concatenate(
        [each[:1], batch[None] if batch.any() else each[:0], each[1:][~batch[1:]]]
    )


STEP = EVERY  # minutes between two plans, and of the first steps of a plan
NEAR, FAR = 24, 18
"""Number of steps of 15 minutes, and of hours after them for prices or deadlines a day ahead."""
HOUR = 60
SAFE = 1.1
"""Safety factor on the work left to a job with a deadline, because failures and restarts cost some,
and on the units that are expected to compute for serving, because minutes differ."""
BATCH_STEPS = 2  # steps between the moments by which batch work is due that a plan tells apart
MOST_JOBS = 20  # most jobs with a deadline that a plan has variables for; those due first are taken

Expected = Callable[[View, int], tuple[FloatArray, FloatArray]]
"""Function of a view and a number of intervals of 15 minutes. It returns the units that have to
serve in each interval, with margins, and the units that the demand itself is expected to need; both
(pools, intervals)."""


@dataclass
class _Plan:
    """The last plan: its first step and the jobs with deadlines."""

    step: FirstStep
    due: tuple[JobView, ...]
    batch: int | None  # units for batch work in the first step; None without a batch tier
    priced: bool  # whether prices of electricity limit training


def predictive(expected: Expected, settings: PolicyInputs, situation: Situation) -> Policy:
    """Plan the coming hours by a linear programme."""
    # Read as the policy is built, which is when ``PolicyKind.reads`` looks on.
    share, cap_w = settings.price_share, settings.power_cap_w
    plans: list[_Plan] = []

    def policy(view: View) -> Decision:
        """Decision of the first step of the latest plan."""
        serving = None
        if view.minute % STEP == 0 or not plans:
            plans[:] = [_plan(view, expected, share, cap_w, situation)]
            serving = _serving(view, plans[0].step)
        plan = plans[0]
        training, jobs = _limits(view, plan)
        return Decision(serving, training, _batch_now(view, plan), jobs, cap_w)

    return policy


def expected_by_forecast(*, quantile: float = 0.999, headroom: float = 0.05) -> Expected:
    """Expect the need of the policy ``forecast``, and the shape of an earlier day after it."""
    margins = Margins(quantile)

    def expected(view: View, intervals: int) -> tuple[FloatArray, FloatArray]:
        """Units that the next intervals need, with margin and without."""
        lead, first_weekday = view.lead_minutes, view.first_weekday
        rows, loads = [], []
        with_margin = margins.expected(view.load, view.minute, lead, first_weekday)
        for load, soon in zip(view.load, with_margin.tolist(), strict=True):
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
    """Expect the true need: the largest of every interval, and from now on for the first."""

    def expected(view: View, intervals: int) -> tuple[FloatArray, FloatArray]:
        """Units that the next intervals need, with margin and without."""
        lead = view.lead_minutes
        last = need.shape[1] - 1
        result = np.empty((len(need), intervals))
        for number in range(intervals):
            first = view.minute + (lead + STEP * number if number else 0)
            end = view.minute + lead + STEP * (number + 1)
            window = need[:, min(first, last) : end]
            result[:, number] = window.max(axis=1)
        return result * (1 + headroom), result

    return expected


def _plan(
    view: View, expected: Expected, share: float, cap_w: float | None, situation: Situation
) -> _Plan:
    """Solve the programme for the need and the jobs that are expected at this moment."""
    # Jobs whose deadline has not passed, with work that ends, the nearest deadline first
    timed = [job for job in view.jobs if 0 < job.due_minutes < math.inf]
    timed = [job for job in timed if 0 < job.work_left < math.inf]
    due = tuple(sorted(timed, key=lambda job: job.due_minutes))[:MOST_JOBS]
    priced = len(view.prices_usd_per_mwh) > 0
    far = FAR if priced or due or len(view.batch_due) else 0
    minutes = np.concatenate([np.full(NEAR, float(STEP)), np.full(far, float(HOUR))])
    need, load = (_by_step(units) for units in expected(view, NEAR + far * HOUR // STEP))
    busy = SAFE * situation.busy_share * load.sum(axis=0)
    kinds = view.kinds
    alive = np.array([kind.alive for kind in kinds], float)
    others = [
        sum(job.units for job in view.jobs if job.kind == kind.name and job not in due)
        for kind in kinds
    ]
    speed = np.array([kind.reach for kind in kinds])
    worth = np.array([kind.worth for kind in kinds])
    computing = served_by_kind(busy, alive, speed, worth)
    outlook = Outlook(
        minutes=minutes,
        need=np.ceil(need - 1e-9),  # serving takes whole units
        kept=np.array([kind.serving + kind.coming for kind in kinds], float),
        training=np.array([kind.training for kind in kinds], float),
        units=alive,
        lead=situation.lead_s / 60.0,
        back=situation.back_s / 60.0,
        price=_relative_prices(view, minutes, worth),
        share=share if priced else 1.0,
        power_units=_units_by_power(view, cap_w, computing),
        jobs=(*(_job_need(job, minutes, kinds) for job in due), *_batch_needs(view, minutes)),
        other_units=np.minimum(np.add(others, [kind.rest_units for kind in kinds]), alive),
        speed=speed,
        away=np.array([kind.speed != kind.reach for kind in kinds]),
        rise=_rises(view),
        worth=worth,
        batch=np.array([kind.batch for kind in kinds], float),
    )
    step = first_step(outlook)
    batch = math.ceil(step.jobs[len(due) :].sum()) if len(view.batch_due) else None
    return _Plan(step, due, batch, priced)


def _serving(view: View, step: FirstStep) -> FloatArray:
    """Return the units of each kind that serve, or the sum of all kinds."""
    # Regions are placed by their distances, and a programme without a solution places nothing.
    if len({kind.region for kind in view.kinds}) > 1 or not step.kept.any():
        reach = np.array([kind.reach for kind in view.kinds])
        return np.asarray((step.kept * reach).sum(axis=0) + step.short)
    return step.kept if len(view.kinds) > 1 else step.kept[0]


def _by_step(need: FloatArray) -> FloatArray:
    """Need of each step of a plan: the largest among its intervals of 15 minutes."""
    far = need[:, NEAR:].reshape(len(need), -1, HOUR // STEP).max(axis=2, initial=0.0)
    return np.concatenate([need[:, :NEAR], far], axis=1)


def _relative_prices(view: View, minutes: FloatArray, worth: FloatArray) -> FloatArray:
    """Mean price of what a unit trains in each step, scaled from 0 to 1; (kinds, steps)."""
    # A minute without a published price has the mean of the published ones.
    steps, means = len(minutes), []
    if not len(view.prices_usd_per_mwh):
        return np.zeros(steps)
    length = int(minutes.sum())
    first = np.concatenate([[0], np.cumsum(minutes)[:-1]]).astype(np.int64)
    for kind, draws in zip(view.kinds, _rises(view) / worth, strict=True):
        published = kind.prices_usd_per_mwh[:length]
        by_minute = np.concatenate([published, np.full(length - len(published), published.mean())])
        means.append(np.add.reduceat(by_minute, first) / minutes * draws)
    # A span of rounding is none: a price that is always the same would else be dear at some times.
    span, largest = float(np.ptp(means)), float(np.abs(means).max())
    return (means - np.min(means)) / span if span > 1e-9 * largest else np.zeros(steps)


def _units_by_power(view: View, cap_w: float | None, computing: FloatArray) -> FloatArray:
    """Units of the mean rise that can train while others of each kind compute; (steps,)."""
    mean_w = view.unit_busy_w - view.unit_idle_w
    if cap_w is None or mean_w <= 0:
        return np.full(computing.shape[1], np.inf)
    idle_w = sum(kind.alive * kind.unit_idle_w for kind in view.kinds)
    return np.asarray(np.maximum((cap_w - idle_w) / mean_w - _rises(view) @ computing, 0.0))


def _rises(view: View) -> FloatArray:
    """Watts of a unit of each kind that computes, relative to the mean; (kinds,)."""
    # Kinds count alike where the power of one is not stated.
    rises_w, mean_w = [kind.rise_w for kind in view.kinds], view.unit_busy_w - view.unit_idle_w
    comparable = mean_w > 0 and all(kind.unit_busy_w for kind in view.kinds)
    return np.array(rises_w) / mean_w if comparable else np.ones(len(rises_w))


def _job_need(job: JobView, minutes: FloatArray, kinds: Sequence[KindView]) -> JobNeed:
    """Return the work of a job within a plan."""
    # Of a job that is due after the plan, this is the plan's share of the time until its deadline.
    ends = np.cumsum(minutes)
    part = min(1.0, float(ends[-1]) / job.due_minutes)
    steps = max(1, int(np.searchsorted(ends, job.due_minutes, side="right")))
    speeds = tuple(float(kind.name == job.kind) for kind in kinds)
    return JobNeed(float(job.units), SAFE * part * job.work_left, steps, speeds, float(job.size))


def _batch_needs(view: View, minutes: FloatArray) -> Iterator[JobNeed]:
    """Yield the waiting batch work as jobs, one for each of a few moments by which it is due."""
    # Work that is due after the plan counts in part, as that of a job does.
    ends = np.cumsum(minutes).astype(np.int64)
    last = len(view.batch_due)
    if not last:
        return
    by_step = np.append(0.0, view.batch_due[np.minimum(ends, last) - 1])
    beyond = view.batch_due[-1] - by_step[-1]
    by_step[-1] += beyond * min(1.0, float(ends[-1]) / last)
    speeds = tuple(float(kind.speed.max()) for kind in view.kinds) or (1.0,)
    until = np.unique([0, 1, *range(2, len(ends), BATCH_STEPS), len(ends)])
    for first, end in pairwise(until.tolist()):
        work = SAFE * float(by_step[end] - by_step[first])
        if work > 0:
            # It may be due at the beginning of its part, but not before the first step ends.
            yield JobNeed(float(view.units - view.broken), work, max(1, first), speeds)


def _limits(view: View, plan: _Plan) -> tuple[list[int] | None, Mapping[str, int] | None]:
    """Limits by kind where prices limit training, and limits of jobs where some have deadlines."""
    # Jobs with a deadline get the units of the plan in sizes that they can run at, and a limit of
    # their kind has room for these. The other jobs of a kind share its rest, each with as many of
    # its present units as possible.
    total = float(plan.step.training.sum())
    training: list[int] = []
    limits: dict[str, int] = {}
    for kind, units in zip(view.kinds, plan.step.training.tolist(), strict=True):
        now = {job.name: job for job in view.jobs if job.kind == kind.name} if plan.due else {}
        wanted = {
            job.name: _whole(count, now[job.name])
            for job, count in zip(plan.due, plan.step.jobs.tolist(), strict=False)
            if job.name in now
        }
        part = units / total if total else 1 / len(view.kinds)
        first = sum(wanted.values()) + math.ceil((plan.batch or 0) * part)
        most = max(math.ceil(units), first) if any(wanted.values()) else math.ceil(units)
        training.append(most)
        limits |= wanted if plan.priced else {}
        lacking = sum(max(0, count - now[name].size) for name, count in wanted.items())
        if lacking or plan.priced:
            others = [job for job in now.values() if job.name not in wanted]
            limits |= _shared(others, max(0, most - first))
    return training if plan.priced else None, limits if plan.due else None


def _batch_now(view: View, plan: _Plan) -> int | None:
    """Units for batch work that jobs with a deadline need not give up; None without a tier."""
    # Units that stop serving come later, and the work waits for those.
    if plan.batch is None:
        return None
    due, room = {job.name for job in plan.due}, 0.0
    for kind in view.kinds:
        held = sum(job.size for job in view.jobs if job.kind == kind.name and job.name in due)
        room += (kind.alive - kind.at_service - held) * float(kind.speed.max())
    return min(plan.batch, max(0, math.floor(room)))


def _whole(units: float, job: JobView) -> int:
    """Return the units of a job as a whole number: none, or at least the fewest it runs on."""
    if units < job.min_units:
        ends_soon = units > 0 and job.work_left <= job.min_units * STEP
        return job.min_units if ends_soon or units >= job.min_units / 2 else 0
    more = math.ceil((units - job.min_units) / job.step_units - 1e-9) * job.step_units
    return min(job.min_units + more, job.units)


def _shared(jobs: Sequence[JobView], room: int) -> dict[str, int]:
    """Divide units among jobs in their order: first what each has now, then room to grow."""
    limits = dict.fromkeys((job.name for job in jobs), 0)
    for most in ("size", "units"):
        for job in jobs:
            more = min(getattr(job, most) - limits[job.name], room)
            limits[job.name] += max(0, more)
            room -= max(0, more)
    return limits


def _build(settings: PolicyInputs, situation: Situation) -> Policy:
    headroom = 0.05 if settings.headroom is None else settings.headroom
    expected = expected_by_forecast(quantile=settings.quantile, headroom=headroom)
    return predictive(expected, settings, situation)


def _build_with_foresight(settings: PolicyInputs, situation: Situation) -> Policy:
    expected = expected_by_foresight(situation.need, headroom=settings.headroom or 0.0)
    return predictive(expected, settings, situation)


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
