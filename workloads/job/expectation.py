"""Expected goodput of a job by closed forms, which have no random draws and are smooth."""

from __future__ import annotations

import math

from workloads.job.closed_form import expected_goodput
from workloads.job.job import Job


def smooth_goodput(job: Job) -> float:
    """Share of time that is useful, by closed forms.

    Failures are exponential (:func:`workloads.job.closed_form.expected_goodput`). While the last
    checkpoint is being written, a failure loses the work since the one before, so the time of the
    write is added to detection. Slow servers appear and are found independently, so some server is
    slow for a share 1 - exp(-rate x time until it is replaced) of the time. Spares never run short.

    With copies in the memory of peers, the time between two copies takes the place of the interval,
    and the time of a copy that of the write. The two units of a pair are never out together.

    Examples
    --------
    >>> from workloads.job import FailureRates, Recovery
    >>> at_once = Recovery(0.0, 0.0, 0.0, 0.0, 0.0)
    >>> job = Job(FailureRates(()), at_once, 90.0, 10.0, 0.0, 1, 0, 86400.0)
    >>> smooth_goodput(job)
    0.9
    """
    recovery, peers = job.recovery, job.peers
    stalled = job.interval_s / (job.interval_s + job.stall_s) if peers else 1.0
    useful = stalled * expected_goodput(
        peers.every_s if peers else job.interval_s,
        job.rates.mtbf_s,
        checkpoint_s=0.0 if peers else job.stall_s,
        restart_s=(peers or recovery).restart_s - recovery.warm_saves_s,
        detection_s=recovery.detection_s + (peers.copy_s if peers else job.write_s),
    )
    slow = job.stragglers
    until_s = slow.found_after_s + job.interval_s / 2
    share = -math.expm1(-slow.per_s * until_s)
    return useful / (1 + share * slow.slower)
