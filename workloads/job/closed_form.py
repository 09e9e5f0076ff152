"""Closed forms for a job whose failures come at a constant rate: goodput and intervals.

They leave out stragglers, spares that run short, and checkpoints that are still being written.
Tests hold the simulation to them where these are absent.
"""

from __future__ import annotations

import math


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

    Examples
    --------
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
