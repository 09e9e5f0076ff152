"""Most units of a training job that failures let compute for nine tenths of its time.

All units of a gang stop when one of them fails, so a gang of n units is stopped n times as often as
one unit. Its goodput is that of :func:`workloads.job.goodput.expected_goodput` with the times that
:mod:`workloads.fleet.state.gangs` takes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from topologies.units import format_seconds
from workloads.fleet.inputs.jobs import TrainingJob, default_jobs
from workloads.fleet.processes.failures import Failures, Fleet
from workloads.fleet.state.gangs import USUAL_INTERVAL_S
from workloads.job.goodput import expected_goodput

LEAST_GOODPUT = 0.9
"""Share of its time that the largest default gang computes for."""


def gang_mtbf_s(failures: Failures, units: int, fleet_units: int) -> float:
    """Mean time between the stops of a gang of some units of a fleet [s].

    >>> gang_mtbf_s(Failures(1000.0, 60.0), 10, 50)
    100.0
    """
    per_s = units / failures.unit_mtbf_s
    for domain in failures.domains:
        per_s += domain.count(units, failures.servers) / domain.mtbf_s
    per_s += sum(units / fleet_units / each.mtbf_s for each in failures.interruptions)
    return 1 / per_s


def gang_goodput(job: TrainingJob, units: int, fleet: Fleet) -> float:
    """Share of time for which a gang of some units computes, by a closed form.

    ``job``: its checkpoints, its standby, and the state that a restart reads. ``fleet``: its
    failures, and the costs of a restart.
    """
    if fleet.failures is None:
        return 1.0
    costs, rate = fleet.change_costs, job.rate(units)
    recovery, part_bytes = costs.recovery, job.state_bytes / units
    warm_s = recovery.warm_saves_s if job.standby == "warm" else 0.0
    mtbf_s = gang_mtbf_s(fleet.failures, units, fleet.units)
    if job.checkpoint == "peer":
        copies = costs.peers.copies(
            part_bytes / costs.servers,
            step_s=job.step_tokens / rate,
            start_s=recovery.restart_s,
        )
        return expected_goodput(
            copies.every_s,
            mtbf_s,
            checkpoint_s=0.0,
            restart_s=copies.restart_s - warm_s,
            detection_s=recovery.detection_s + copies.copy_s,
        )
    moved_s = job.state_bytes / min(costs.store_bytes_per_s, units * costs.store_client_bytes_per_s)
    return expected_goodput(
        job.checkpoint_every_s or USUAL_INTERVAL_S,
        mtbf_s,
        checkpoint_s=costs.checkpoint_stall_s,
        restart_s=recovery.restart_s + moved_s - warm_s,
        detection_s=recovery.detection_s + moved_s,
    )


def most_units(job: TrainingJob, fleet: Fleet) -> int:
    """Return the size of a job that failures allow, at least a unit and at most its own."""
    if gang_goodput(job, job.units, fleet) >= LEAST_GOODPUT:
        return job.units
    sizes = range(1, job.units + 1)
    return max(1, bisect_right(sizes, -LEAST_GOODPUT, key=lambda n: -gang_goodput(job, n, fleet)))


def gang_note(jobs: Sequence[TrainingJob], fleet: Fleet) -> str:
    """Sentence about default jobs that failures keep below their usual size; empty for none."""
    usual = {job.name: job.units for job in default_jobs(fleet.units)}
    capped = {job.name: job for job in jobs if job.units < usual.get(job.name, 0)}
    if fleet.failures is None or not capped:
        return ""
    sizes = [
        f"{job.units:,} units ({job.units * fleet.chips_per_unit:,} chips)"
        for job in {job.units: job for job in capped.values()}.values()
    ]
    largest = max(capped.values(), key=lambda job: job.units)
    stop_s = gang_mtbf_s(fleet.failures, largest.units, fleet.units)
    before = usual[largest.name]
    return (
        f"default training gangs have at most {' or '.join(sizes)}: failures stop one of "
        f"{largest.units:,} every {format_seconds(stop_s)}, and one of {before:,} would compute "
        f"for {gang_goodput(largest, before, fleet):.0%} of its time, less than "
        f"{LEAST_GOODPUT:.0%}; --training FILE.csv states other jobs."
    )
