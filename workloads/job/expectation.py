"""The expected goodput of a job by closed forms, without a draw: smooth in every input."""

from __future__ import annotations

import math

from workloads.job.closed_form import expected_goodput
from workloads.job.job import Job


def smooth_goodput(job: Job) -> float:
    """Share of time that is useful, by closed forms.

    Failures are exponential (:func:`workloads.job.closed_form.expected_goodput`); work since the
    checkpoint before the last one is lost while the last is still being written, so the write
    counts as detection does. Slow servers come and are found independently, so that any is slow for
    a share 1 - exp(-rate x time until it is replaced) of the time. Spares never run short.

    Examples
    --------
    >>> from workloads.job import FailureRates, Recovery
    >>> at_once = Recovery(0.0, 0.0, 0.0, 0.0, 0.0)
    >>> job = Job(FailureRates(()), at_once, 90.0, 10.0, 0.0, 1, 0, 86400.0)
    >>> smooth_goodput(job)
    0.9
    """
    recovery = job.recovery
    useful = expected_goodput(
        job.interval_s,
        job.rates.mtbf_s,
        checkpoint_s=job.stall_s,
        restart_s=recovery.restart_s,
        detection_s=recovery.detection_s + job.write_s,
    )
    slow = job.stragglers
    until_s = slow.found_after_s + job.interval_s / 2
    share = -math.expm1(-slow.per_s * until_s)
    return useful / (1 + share * slow.slower)
