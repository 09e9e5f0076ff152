"""Linear programme behind ``mpc``: how many units serve, train and wait in each coming step.

A step t lasts w minutes. In it k units of each pool are kept for serving, of which b had to come
back from training, and x units train, of which y had to begin; each job with a deadline has an x
of its own. The programme is

    min   1,000 Σ w short  +  10 Σ late  +  idle  +  Σ w price x  +  tiny terms
    k + short ≥ need                     in every pool
    Σ k + Σ x ≤ units
    Σ x ≤ units that the site's power lets train
    Σ w x − lead Σ b − back Σ y + idle ≥ share · Σ w (units that can train)
    Σ w x + late ≥ work, up to the deadline of each job

with prices scaled to the range from 0 to 1, times 0.9. A unit-minute that should train and does not
(idle) costs more than electricity in the dearest hour, so training moves between hours and gives
way only to serving, deadlines and power. Tiny terms prefer early to late, jobs with a deadline to
others, and fewer kept units. HiGHS solves the programme, through scipy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from topologies.arrays import FloatArray

SHORT, LATE = 1000.0, 10.0
"""Cost of a unit-minute of need that nobody serves, and of a job's work that misses its deadline,
in unit-minutes that could have trained."""
KEPT, LATER = 1e-3, 1e-4
"""Costs in the tiny terms: of a unit-minute kept for serving, and of training one unit-minute at
the end of the plan instead of at its beginning."""


@dataclass(frozen=True)
class JobNeed:
    """A job with a deadline: the units that it can use, and the work that it has to finish.

    ``units``: most units that can work for the job.
    ``work``: unit-minutes that the job needs within the plan.
    ``steps``: steps of the plan before its deadline.
    """

    units: float
    work: float
    steps: int


@dataclass(frozen=True, eq=False)
class Outlook:
    """Inputs of the programme: need, prices, power and jobs in the coming steps.

    ``minutes`` (steps,): length of each step.
    ``need`` (pools, steps): units that serving needs.
    ``kept`` (pools,): units that serve now, or are on their way.
    ``training, units``: units that train now, and units of the fleet that are not broken.
    ``lead, back``: minutes that a unit loses on the way from training to serving, and before it
        trains.
    ``price`` (steps,): price of electricity, 0 in the cheapest step and 1 in the dearest; all 0
        without prices.
    ``share``: share of the available unit-time that training shall have.
    ``power_units`` (steps,): units that can train within the power of the site.
    ``jobs``: jobs in order of their deadlines, the nearest first.
    ``other_units``: most units that work without a deadline can use.
    """

    minutes: FloatArray
    need: FloatArray
    kept: FloatArray
    training: float
    units: float
    lead: float
    back: float
    price: FloatArray
    share: float = 1.0
    power_units: FloatArray = field(default_factory=lambda: np.array([np.inf]))
    jobs: tuple[JobNeed, ...] = ()
    other_units: float = np.inf

    @property
    def trainable(self) -> FloatArray:
        """Units that can train in each step; (steps,)."""
        usable = self.other_units + sum(job.units for job in self.jobs)
        spare = np.minimum(self.units - self.need.sum(axis=0), self.power_units)
        result: FloatArray = np.clip(spare, 0.0, usable)
        return result


@dataclass(frozen=True, eq=False)
class FirstStep:
    """The first step of a solved programme.

    ``kept`` (pools,): units for serving.
    ``training``: units that train, jobs with a deadline among them.
    ``jobs`` (jobs,): units of each job with a deadline.
    """

    kept: FloatArray
    training: float
    jobs: FloatArray


def first_step(outlook: Outlook) -> FirstStep:
    """Solve the programme, and return its first step.

    A valley of two steps is lent when a change there and back costs one step, not when it costs
    three:

    >>> need, quarter = np.array([[2.0, 2.0, 10.0, 10.0]]), np.full(4, 15.0)
    >>> for lead in (45.0, 15.0):
    ...     ahead = Outlook(quarter, need, np.array([10.0]), 10.0, 20.0, lead, 0.0, np.zeros(4))
    ...     print(first_step(ahead).kept)
    [10.]
    [2.]
    """
    from scipy import optimize  # slow to import

    pools, steps = outlook.need.shape
    jobs = len(outlook.jobs)
    columns = _Columns(pools, steps, jobs)
    matrix, limits = _rows(outlook, columns)
    solved = optimize.milp(
        _costs(outlook, columns),
        constraints=optimize.LinearConstraint(matrix, ub=limits),
        bounds=optimize.Bounds(0.0, _most(outlook, columns)),
    )
    if solved.x is None:  # no solution: fall back to the need itself
        spare = max(0.0, outlook.units - float(outlook.need[:, 0].sum()))
        return FirstStep(outlook.need[:, 0], min(spare, float(outlook.power_units[0])), np.zeros(0))
    value = np.round(solved.x, 6)
    trains = value[columns.training].reshape(jobs + 1, steps)[:, 0]
    kept = value[columns.kept].reshape(pools, steps)[:, 0]
    return FirstStep(kept, float(trains.sum()), trains[1:])


class _Columns:
    """Column numbers of the programme's variables in the constraint matrix.

    Each kind of variable has a slice, in which the steps are consecutive.
    """

    def __init__(self, pools: int, steps: int, jobs: int) -> None:
        sizes = {
            "kept": pools * steps,
            "back": pools * steps,
            "short": pools * steps,
            "training": (jobs + 1) * steps,
            "begin": steps,
            "idle": 1,
            "late": jobs,
        }
        ends = np.cumsum(list(sizes.values()))
        places = {
            name: slice(int(end) - size, int(end))
            for (name, size), end in zip(sizes.items(), ends, strict=True)
        }
        self.kept, self.back, self.short = places["kept"], places["back"], places["short"]
        self.training, self.begin = places["training"], places["begin"]
        self.idle, self.late = places["idle"], places["late"]
        self.count = int(ends[-1])

    def rows(self, **parts: FloatArray) -> FloatArray:
        """Return rows of the matrix from the coefficients of some variables; the rest are zero."""
        coefficients = np.zeros((len(next(iter(parts.values()))), self.count))
        for name, values in parts.items():
            coefficients[:, getattr(self, name)] = values
        return coefficients


def _costs(outlook: Outlook, columns: _Columns) -> FloatArray:
    """Cost of one unit of each variable, in unit-minutes that could have trained; (variables,)."""
    pools, steps = outlook.need.shape
    minutes, jobs = outlook.minutes, len(outlook.jobs)
    cost = np.zeros(columns.count)
    cost[columns.kept] = np.tile(KEPT * minutes, pools)
    cost[columns.short] = np.tile(SHORT * minutes, pools)
    # Below 1, the cost of an idle unit-minute, so that no hour is too dear for wanted training.
    electricity, waiting = 0.9 * outlook.price, LATER * np.arange(steps) / steps
    cost[columns.training] = np.concatenate(
        [minutes * (electricity + waiting)]
        # The first job waits last, so plans that follow each other start the same jobs.
        + [minutes * (electricity + (2 + jobs - job) * waiting) for job in range(jobs)]
    )
    cost[columns.idle] = 1.0
    cost[columns.late] = LATE
    return cost


def _most(outlook: Outlook, columns: _Columns) -> FloatArray:
    """Upper bounds of the variables; (variables,)."""
    steps = len(outlook.minutes)
    most = np.full(columns.count, np.inf)
    rows = [np.full(steps, outlook.other_units)]
    rows += [np.where(np.arange(steps) < job.steps, job.units, 0.0) for job in outlook.jobs]
    most[columns.training] = np.concatenate(rows)
    return most


def _rows(outlook: Outlook, columns: _Columns) -> tuple[FloatArray, FloatArray]:
    """Matrix and limits of the constraints, each row as ``matrix · variables ≤ limit``."""
    # A plan has a few hundred variables: a dense matrix is built faster than a sparse one. The
    # blocks follow the order of the constraints in the module's docstring, with those that define
    # b (units that come back) and y (units that begin) between them.
    pools, steps = outlook.need.shape
    jobs, minutes = len(outlook.jobs), outlook.minutes
    each: FloatArray = np.eye(pools * steps)
    step: FloatArray = np.eye(steps)
    rise: FloatArray = step - np.eye(steps, k=-1)
    rise_of_pools: FloatArray = np.asarray(np.kron(np.eye(pools), rise), float)
    of_pools: FloatArray = np.tile(step, pools)
    of_jobs: FloatArray = np.tile(step, jobs + 1)
    now = step[0]
    blocks = [
        (columns.rows(kept=-each, short=-each), -outlook.need.ravel()),
        (
            columns.rows(kept=rise_of_pools, back=-each),
            np.outer(outlook.kept, now).ravel(),
        ),
        (columns.rows(kept=of_pools, training=of_jobs), np.full(steps, outlook.units)),
        (columns.rows(training=rise @ of_jobs, begin=-step), outlook.training * now),
        (
            columns.rows(
                training=-np.tile(minutes, jobs + 1)[None],
                back=np.full((1, pools * steps), outlook.lead),
                begin=np.full((1, steps), outlook.back),
                idle=np.array([[-1.0]]),
            ),
            np.array([-outlook.share * float(minutes @ outlook.trainable)]),
        ),
    ]
    if np.isfinite(outlook.power_units).all():
        power = np.broadcast_to(np.maximum(outlook.power_units, 0.0), steps)
        blocks.append((columns.rows(training=of_jobs), power))
    if jobs:
        by_job: FloatArray = np.asarray(np.kron(np.eye(jobs + 1)[1:], minutes[None]), float)
        work = np.array([job.work for job in outlook.jobs])
        blocks.append((columns.rows(training=-by_job, late=-np.eye(jobs)), -work))
        blocks.append((columns.rows(training=by_job), work))
    matrices, limits = zip(*blocks, strict=True)
    return np.concatenate(matrices), np.concatenate(limits)
