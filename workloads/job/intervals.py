"""Best time between checkpoints: simulated at several intervals and fitted by theory.

The wasted share of time is a / τ + b τ + c for an interval τ: checkpoints, work lost since the last
checkpoint, and a part that does not depend on τ (Young, CACM 17, 1974). A least-squares fit over
the simulated intervals averages the noise of single runs; its minimum is √(a / b).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from workloads.job.closed_form import daly_interval_s
from workloads.job.job import Job
from workloads.job.simulate import simulate

FACTORS = (0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)
"""Simulated intervals, as multiples of Daly's."""
FAILURES = 200
"""Failures that the runs should have, if none needs more than ``CHECKPOINTS`` checkpoints."""
CHECKPOINTS = 20_000
FEWEST_FAILURES = 30
"""Failures that the runs have whatever the checkpoints."""
LEAST_S = 1.0
"""Shortest simulated interval [s]."""


@dataclass(frozen=True)
class Curve:
    """Goodput against the time between checkpoints.

    Attributes
    ----------
    interval_s, goodput : tuple of float
        Simulated points, the shortest interval first.
    best_s : float
        Interval at which the fitted waste is smallest [s].
    """

    interval_s: tuple[float, ...]
    goodput: tuple[float, ...]
    best_s: float


def search_interval(job: Job, seed: int, factors: Sequence[float] = FACTORS) -> Curve | None:
    """Simulate a job at intervals around Daly's, and return the curve with the best one.

    All runs are as long as one another, with their failures at the same times: servers that turn
    slow, and spares that are used up, make the goodput depend on the length. The result is None for
    a job without failures, which needs no checkpoint, and for one whose checkpoints cost nothing.
    """
    stall_s, mtbf_s = job.stall_s, job.rates.mtbf_s
    if math.isinf(mtbf_s) or stall_s <= 0:
        return None
    middle = max(daly_interval_s(mtbf_s, stall_s), LEAST_S)
    points = [max(middle * factor, LEAST_S) for factor in factors]
    points = sorted({max(point, job.write_s - stall_s) for point in points})
    span_s = _span_s(job, points[0])
    runs = (replace(job, interval_s=point, span_s=span_s) for point in points)
    goodput = [simulate(run, np.random.default_rng([seed, 0])).goodput for run in runs]
    return Curve(tuple(points), tuple(goodput), _best(points, goodput))


def _span_s(job: Job, interval_s: float) -> float:
    """Length of runs whose shortest interval is this, by ``FAILURES`` and ``CHECKPOINTS`` [s]."""
    per_failure = job.rates.mtbf_s / (interval_s + job.stall_s)
    failures = min(FAILURES, max(FEWEST_FAILURES, CHECKPOINTS / max(per_failure, 1e-9)))
    return min(failures * job.rates.mtbf_s, 20 * 365 * 86400)


def _best(points: Sequence[float], goodput: Sequence[float]) -> float:
    """Minimum of the fitted waste, within the simulated points."""
    interval, waste = np.array(points), 1 - np.array(goodput)
    columns = np.stack([1 / interval, interval, np.ones_like(interval)], axis=1)
    scale = np.abs(columns).max(axis=0)
    (stall, loss, _), *_ = np.linalg.lstsq(columns / scale, waste, rcond=None)
    stall, loss = stall / scale[0], loss / scale[1]  # a and b of the module's docstring
    if len(points) < 3 or stall <= 0 or loss <= 0:
        return float(points[int(np.argmax(goodput))])
    return float(np.clip(math.sqrt(stall / loss), points[0], points[-1]))
