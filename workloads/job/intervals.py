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
"""Failures that each run should have, if that takes at most ``CHECKPOINTS`` checkpoints."""
CHECKPOINTS = 20_000
FEWEST_FAILURES = 30
"""Failures that each run has whatever the checkpoints."""
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

    All runs have their failures at the same times. The result is None for a job without failures,
    which needs no checkpoint, and for one whose checkpoints cost nothing.
    """
    stall_s, mtbf_s = job.stall_s, job.rates.mtbf_s
    if math.isinf(mtbf_s) or stall_s <= 0:
        return None
    middle = max(daly_interval_s(mtbf_s, stall_s), LEAST_S)
    points = [max(middle * factor, LEAST_S) for factor in factors]
    points = sorted({max(point, job.write_s - stall_s) for point in points})
    goodput = [_goodput(replace(job, interval_s=point), seed) for point in points]
    return Curve(tuple(points), tuple(goodput), _best(points, goodput))


def _goodput(job: Job, seed: int) -> float:
    """Goodput of a run that is as long as ``FAILURES`` and ``CHECKPOINTS`` say."""
    per_failure = job.rates.mtbf_s / (job.interval_s + job.stall_s)
    failures = min(FAILURES, max(FEWEST_FAILURES, CHECKPOINTS / max(per_failure, 1e-9)))
    long = replace(job, span_s=min(failures * job.rates.mtbf_s, 20 * 365 * 86400))
    return simulate(long, np.random.default_rng([seed, 0])).goodput


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
