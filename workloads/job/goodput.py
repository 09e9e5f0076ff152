"""Goodput of a job in closed form, and the best time between its checkpoints.

The wasted share is a / τ + b τ + c for an interval τ: checkpoints, work lost since the last one,
and the rest (Young, CACM 17, 1974). A least-squares fit over simulated intervals averages their
noise; its minimum is √(a / b).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from workloads.job.job import Job
from workloads.job.simulate import simulate
from workloads.options.windows import Window


def expected_goodput(
    interval_s: float,
    mtbf_s: float,
    *,
    checkpoint_s: float,
    restart_s: float = 0.0,
    detection_s: float = 0.0,
) -> float:
    """Share of time that is useful under exponential failures (Daly, FGCS 22, 2006, eq. 20).

    A failure loses the work since the last checkpoint, is detected after some time, and is followed
    by a restart, which may fail as well.

    Parameters
    ----------
    interval_s : float
        Computing time between two checkpoints [s].
    mtbf_s : float
        Mean time between failures [s]; infinity for none.
    checkpoint_s : float
        Time for which a checkpoint stalls the job [s].
    restart_s : float
        Time from the detection of a failure to the first step [s].
    detection_s : float
        Time from a failure to its detection, in which nothing else can fail [s].

    Examples
    --------
    >>> round(expected_goodput(3600, 86400, checkpoint_s=60, restart_s=600), 3)
    0.956
    """
    if math.isinf(mtbf_s):
        return interval_s / (interval_s + checkpoint_s)
    cycle = (interval_s + checkpoint_s) / mtbf_s
    if cycle + restart_s / mtbf_s > 700:  # beyond this the exponential is infinite
        return 0.0
    failures = math.expm1(cycle)
    return interval_s / (failures * (mtbf_s + detection_s) * math.exp(restart_s / mtbf_s))


def daly_interval_s(mtbf_s: float, checkpoint_s: float) -> float:
    """Computing time between checkpoints by Daly's higher-order estimate [s].

    Young's √(2 C M) (CACM 17, 1974) is its first term; J. T. Daly, FGCS 22 (2006), eq. 37.

    >>> round(daly_interval_s(86400, 60))
    3180
    """
    if checkpoint_s <= 0:
        return 0.0
    if math.isinf(mtbf_s):
        return math.inf
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2 * mtbf_s)
    more = 1 + math.sqrt(ratio) / 3 + ratio / 9
    return math.sqrt(2 * checkpoint_s * mtbf_s) * more - checkpoint_s


def smooth_goodput(job: Job) -> float:
    """Share of time that is useful, by closed forms."""
    # While the last checkpoint is being written, a failure loses the work since the one before: the
    # write is added to detection. Slow servers appear and are found independently: some server is
    # slow for 1 - exp(-rate x time until it is replaced). Spares never run short. Copies in peers'
    # memory take the place of interval and write, and the two units of a pair are never out
    # together.
    recovery, peers = job.recovery, job.peers
    restart_s = swap_s = (peers or recovery).restart_s - recovery.warm_saves_s
    if job.replicas is not None and job.replicas.groups > 1:
        restart_s = min(restart_s, job.replicas.cost_s(restart_s, job.rates.mtbf_s, 1))
    stalled = job.interval_s / (job.interval_s + job.stall_s) if peers else 1.0
    stopping_s = 1 / per_s if (per_s := _stopping_per_s(job)) else math.inf
    useful = stalled * expected_goodput(
        peers.every_s if peers else job.interval_s,
        stopping_s,
        checkpoint_s=0.0 if peers else job.stall_s,
        restart_s=restart_s,
        detection_s=recovery.detection_s + (peers.copy_s if peers else job.write_s),
    )
    slow = job.stragglers
    until_s = slow.found_after_s + job.interval_s / 2
    share = -math.expm1(-slow.per_s * until_s)
    useful *= 1 - share * slow.slower / (1 + slow.slower)
    # Wrong numbers cost all since the checkpoint in the store from before them.
    back_s = recovery.detection_s + recovery.restart_s + job.interval_s / 2
    silent = [cause for cause in job.rates.causes if cause.found_after_s]
    wrong = sum(cause.per_s * (cause.found_after_s + back_s) for cause in silent)
    planned = min(1.0, sum(_planned(job, each, swap_s) for each in job.windows))
    return useful / (1 + wrong) * (1 - planned)


def _stopping_per_s(job: Job) -> float:
    """Rate of failures that stop the job at once, with those of units repaired in vain [1/s]."""
    # A spare takes the place of every failed unit, so that in the long run all repaired ones are
    # in the job again.
    causes = [cause for cause in job.rates.causes if not cause.found_after_s]
    return sum(cause.per_s / (1 - min(cause.again, MOST_AGAIN)) for cause in causes)


def _planned(job: Job, window: Window, restart_s: float) -> float:
    """Share of time that a window of planned downtime takes."""
    if job.replicas is not None:
        slower = job.replicas.slower(min(job.replicas.out(window.units), job.replicas.groups - 1))
        each_s = 2 * job.replicas.resize_s + window.length_s * (1 - 1 / (1 + slower))
    else:
        lacking = window.units - job.spares
        waits_s = window.length_s if lacking > 0 else 0.0
        if lacking > 0 and job.goes_without(lacking, waits_s):
            slower = job.without[lacking - 1]
            waits_s = waits_s * slower / (1 + slower) + restart_s
        each_s = job.stall_s + waits_s + restart_s
    every_s = job.span_s if math.isinf(window.every_s) else window.every_s
    return window.rounds(job.units) * each_s / every_s


MOST_AGAIN = 0.99  # share of repairs in vain beyond which a unit fails on and on

FACTORS = (0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0)
"""Simulated intervals, as multiples of Daly's."""
FAILURES = 200
"""Failures that the runs should have, if none needs more than ``CHECKPOINTS`` checkpoints."""
CHECKPOINTS = 20_000
FEWEST_FAILURES = 30  # failures that the runs have whatever the checkpoints
LEAST_S = 1.0  # shortest simulated interval [s]


@dataclass(frozen=True)
class Curve:
    """Goodput against the time between checkpoints."""

    # interval_s, goodput: simulated points, the shortest interval first
    interval_s: tuple[float, ...]
    goodput: tuple[float, ...]
    best_s: float  # interval at which the fitted waste is smallest [s]


def search_interval(job: Job, seed: int) -> Curve | None:
    """Simulate a job at intervals around Daly's, and return the curve with the best one."""
    # All runs are as long as one another, with their failures at the same times: servers that turn
    # slow, and spares that are used up, make the goodput depend on the length. The result is None
    # for a job without failures, which needs no checkpoint, and for one whose checkpoints cost
    # nothing.
    stall_s, mtbf_s = job.stall_s, job.rates.mtbf_s
    if math.isinf(mtbf_s) or stall_s <= 0:
        return None
    middle = max(daly_interval_s(mtbf_s, stall_s), LEAST_S)
    points = [max(middle * factor, LEAST_S) for factor in FACTORS]
    points = sorted({max(point, job.write_s - stall_s) for point in points})
    # Their length is not the job's, so a window that begins after its end must not count.
    windows = tuple(window for window in job.windows if window.begin_s < job.span_s)
    longer = replace(job, span_s=_span_s(job, points[0]), windows=windows)
    runs = (replace(longer, interval_s=point) for point in points)
    goodput = [simulate(run, np.random.default_rng([seed, 0])).goodput for run in runs]
    return Curve(tuple(points), tuple(goodput), _best(points, goodput))


def _span_s(job: Job, interval_s: float) -> float:
    """Length of runs whose shortest interval is this, by ``FAILURES`` and ``CHECKPOINTS`` [s]."""
    per_failure = job.rates.mtbf_s / (interval_s + job.stall_s)
    failures = min(FAILURES, max(FEWEST_FAILURES, CHECKPOINTS / max(per_failure, 1e-9)))
    return min(failures * job.rates.mtbf_s, 20 * 365 * 86400)


def _best(points: Sequence[float], goodput: Sequence[float]) -> float:
    interval, waste = np.array(points), 1 - np.array(goodput)
    columns = np.stack([1 / interval, interval, np.ones_like(interval)], axis=1)
    scale = np.abs(columns).max(axis=0)
    (stall, loss, _), *_ = np.linalg.lstsq(columns / scale, waste, rcond=None)
    stall, loss = stall / scale[0], loss / scale[1]  # a and b of the module's docstring
    if len(points) < 3 or stall <= 0 or loss <= 0:
        return float(points[int(np.argmax(goodput))])
    return float(np.clip(math.sqrt(stall / loss), points[0], points[-1]))
