"""Output of jobs that queue for a cluster: a JSON document, tables for people, a run directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.figures.queue import occupancy
from topologies.files.table import Table
from topologies.units import format_seconds

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from workloads.sharing.queueing import Queue, Started

LONGEST = 5  # jobs that are shown for people
Cells = tuple[list[str], list[tuple[str, ...]]]


def _summary(queue: Queue) -> dict[str, Any]:
    """Return the results of one discipline and place by name."""
    half_s, most_s = np.percentile(queue.waits_s, [50, 90]).tolist()
    return {
        "discipline": queue.discipline,
        "place": queue.place,
        "mean_wait_s": float(queue.waits_s.mean()),
        "median_wait_s": half_s,
        "p90_wait_s": most_s,
        "longest_wait_s": float(queue.waits_s.max()),
        "used": queue.used,
        "idle_beside_waiting": queue.idle_beside_waiting,
        "scattered": queue.scattered,
        "end_s": queue.end_s,
    }


def _recorded_wait_s(queue: Queue) -> float | None:
    recorded = [each.job.recorded_wait_s for each in queue.jobs]
    waits_s = [wait_s for wait_s in recorded if wait_s is not None]
    return sum(waits_s) / len(waits_s) if waits_s else None


def document(queue: Queue) -> dict[str, Any]:
    """Return all results under the keys of the command line."""
    return {
        "cluster": queue.cluster.name,
        "chips": queue.cluster.chips,
        **_summary(queue),
        "mean_wait_ends_s": queue.wait_ends_s,
        "recorded_mean_wait_s": _recorded_wait_s(queue),
        "jobs": [_row(each) for each in queue.jobs],
        "others": [_summary(each) for each in queue.others.values()],
        "remarks": list(queue.left_out),
    }


def _row(each: Started) -> dict[str, Any]:
    return {
        "name": each.job.name,
        "submit_s": each.job.submit_s,
        "start_s": each.start_s,
        "end_s": each.end_s,
        "wait_s": each.wait_s,
        "recorded_wait_s": each.job.recorded_wait_s,
        "chips": each.job.chips,
        "servers": each.servers,
        "domains": each.domains,
        "least_domains": each.least_domains,
        "priority": each.job.priority,
    }


def results(queue: Queue) -> list[tuple[str, str]]:
    """Names and texts of the results, for people."""
    summary = _summary(queue)
    mean, half, most, longest = (
        format_seconds(summary[f"{name}_wait_s"]) for name in ("mean", "median", "p90", "longest")
    )
    return [
        ("mean wait", mean),
        ("median, p90, longest", f"{half}, {most}, {longest}"),
        ("servers in use", f"{queue.used:.1%} of the time until the last job ends"),
        ("servers idle while jobs wait", f"{queue.idle_beside_waiting:.1%} of it"),
        ("jobs in more domains than needed", f"{queue.scattered:.1%}"),
        ("last job ends", f"{format_seconds(queue.end_s)} after the first arrives"),
    ]


def sentences(queue: Queue) -> list[str]:
    """Say what the record itself shows, what is left out, and which discipline waits least."""
    lines = list(queue.left_out)
    if queue.wait_ends_s is not None:
        low, high = (format_seconds(end_s) for end_s in queue.wait_ends_s)
        lines.append(
            f"With all predicted steps at the low and high ends of their 80 % intervals, jobs wait "
            f"{low} and {high} on average."
        )
    recorded_s = _recorded_wait_s(queue)
    if recorded_s is not None:
        lines.append(
            f"The scheduler that wrote the record let jobs wait {format_seconds(recorded_s)} on "
            "average."
        )
    if queue.others:
        tried = [queue, *queue.others.values()]
        best = min(tried, key=lambda each: float(each.waits_s.mean()))
        lines.append(
            f"Jobs wait least with discipline {best.discipline} and place {best.place}: "
            f"{format_seconds(float(best.waits_s.mean()))} on average."
        )
    return lines


def longest_table(queue: Queue) -> Cells:
    """Return the jobs that waited longest, for people."""
    longest = sorted(queue.jobs, key=lambda each: -each.wait_s)[:LONGEST]
    rows = [
        (
            each.job.name,
            f"{each.job.chips:,}",
            *(
                format_seconds(seconds)
                for seconds in (each.job.submit_s, each.wait_s, each.job.run_s)
            ),
            f"{each.domains:,} ({each.least_domains:,})",
        )
        for each in longest
    ]
    return ["job", "chips", "arrives", "waits", "runs", "domains (needed)"], rows


def study_table(queue: Queue) -> Cells:
    """Return all disciplines and places side by side, for people."""
    columns = ["discipline", "place", "mean wait", "p90", "longest", "in use", "idle, jobs wait"]
    rows = []
    for each in (queue, *queue.others.values()):
        summary = _summary(each)
        waits = [format_seconds(summary[f"{name}_wait_s"]) for name in ("mean", "p90", "longest")]
        shares = (f"{each.used:.1%}", f"{each.idle_beside_waiting:.1%}")
        rows.append((each.discipline, each.place, *waits, *shares))
    return columns, rows


def write(out: Run, queue: Queue) -> None:
    """Add results, tables and a picture to a run directory."""
    out.json("results", document(queue), title="Results")
    jobs = Table.of_rows([_row(each) for each in queue.jobs])
    out.table("jobs", jobs, title="Jobs in order of arrival")
    if queue.others:
        tried = [_summary(each) for each in (queue, *queue.others.values())]
        out.table("disciplines", Table.of_rows(tried), title="Disciplines")
    out.figure("occupancy", occupancy(queue), title="Servers in use and jobs that wait")
