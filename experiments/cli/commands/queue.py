"""``cluster-sim queue``: jobs that arrive over days, and how long each waits for its servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cli.options.inputs import CatalogueInputs, Invocation
from experiments.cli.output.printing import print_rows, print_table, print_text
from experiments.reports.certainty import facts
from experiments.reports.formatting import Column, idle_entry, idle_sentences, values_of
from topologies.clusters.names import machine
from topologies.support.options import required, setting
from topologies.support.units import format_seconds
from workloads.options.job import HazardInputs

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from workloads.sharing.queueing import Queue


@dataclass(frozen=True)
class QueueInputs:
    """A cluster, and the jobs that queue for it."""

    cluster: str = required("Named machine or YAML file, such as trn2-ultraserver:4", argument=True)
    jobs: Path = required(
        "Jobs with submit, chips and time, or model, plan and steps, in CSV; or output of Slurm's "
        "sacct --parsable2, or kubectl get jobs,jobsets --output json",
        metavar="FILE",
    )
    discipline: str = setting(
        "backfill",
        "Order in which waiting jobs are considered",
        choices="workloads.sharing.servers:DISCIPLINES",
    )
    place: str = setting(
        "any",
        "Whether a job may be in more scale-up domains than its size needs, or waits for fewer",
        choices="workloads.sharing.servers:PLACES",
    )
    study: bool = setting(False, "Run every discipline and place, and show them side by side")


def queue(
    inputs: QueueInputs, hazards: HazardInputs, catalogue_inputs: CatalogueInputs, call: Invocation
) -> None:
    """Queue jobs for a cluster, and see how long they wait.

    Jobs take whole servers until their work is done. A job with a model runs for its steps, each as
    long as train says. A job that a failure or a higher priority stops goes back to its last
    checkpoint.
    """
    from workloads.sharing.queueing import queue_jobs

    worked_off = queue_jobs(
        machine(inputs.cluster, catalogue=catalogue_inputs.watched(inputs.cluster)),
        inputs.jobs,
        discipline=inputs.discipline,
        place=inputs.place,
        study=inputs.study,
        seed=call.seed,
        **asdict(hazards),
    )
    call.answer(document(worked_off), _print, lambda out, results: _write(out, worked_off, results))


def _unless_none(amount: float) -> str:
    """Write a number or a share; nothing for 0, so that it has no row."""
    return "" if not amount else f"{amount:,}" if isinstance(amount, int) else f"{amount:.2%}"


PARTS = {
    "lost_work": "work lost since a checkpoint",
    "detection": "until failures are detected",
    "restart": "restarts",
    "checkpoint": "saving",
    "neighbours": "slowed by neighbours",
    "down": "servers in repair",
}
"""Parts of the server-hours that have a row, in words."""
PERCENT = "{:.1%}".format
LONGEST = 5  # jobs that are shown for people
WAITS = (
    Column("mean_wait_s", "mean wait"),
    Column("median_wait_s", "  median"),
    Column("p90_wait_s", "  p90"),
    Column("longest_wait_s", "  longest"),
    Column("used", "servers in use until the last job ends", write=PERCENT),
    Column("idle_beside_waiting", "  servers idle while jobs wait", write=PERCENT),
    Column("scattered", "jobs in more domains than needed", write=PERCENT),
    Column("end_s", "last job ends after the first arrives by"),
    Column("failures", "stops by failures", write=_unless_none),
    Column("preemptions", "stops for other jobs", write=_unless_none),
    *(
        Column(f"breakdown.{part}", f"  server-hours: {words}", write=_unless_none)
        for part, words in PARTS.items()
    ),
)
JOBS = (
    Column("name", "job"),
    Column("chips", "chips"),
    Column("submit_s", "arrives"),
    Column("wait_s", "waits"),
    Column("run_s", "runs"),
    Column("stops", "stops", write="{:,}".format),
    Column("both", "domains (needed)", write="{0[0]:,} ({0[1]:,})".format),
)
TEAMS = (
    Column("team", "team"),
    Column("quota_chips", "quota"),
    Column("jobs", "jobs"),
    Column("mean_wait_s", "mean wait"),
    Column("longest_wait_s", "longest"),
    Column("chip_hours", "chip-hours", write="{:,.1f}".format),
    Column("borrowed_chip_hours", "borrowed", write="{:,.1f}".format),
)
WAYS = (
    Column("discipline", "discipline"),
    Column("place", "place"),
    Column("mean_wait_s", "mean wait"),
    Column("p90_wait_s", "p90"),
    Column("longest_wait_s", "longest"),
    Column("used", "in use", write=PERCENT),
    Column("idle_beside_waiting", "idle, jobs wait", write=PERCENT),
)


def document(queue: Queue) -> dict[str, Any]:
    """Return all results under the keys of the command line."""
    waits_s = [wait_s for each in queue.jobs if (wait_s := each.job.recorded_wait_s) is not None]
    remarks = list(queue.left_out)
    key = {"shortest": "limit_s"}.get(queue.discipline, "priority")
    key = "" if queue.discipline in ("fifo", "backfill") else key
    quotas = queue.discipline == "preempt" and len(queue.rights.quotas) > 1
    if key and not quotas and len({getattr(each.job, key) for each in queue.jobs}) == 1:
        alike = f"All jobs have one {key.removesuffix('_s')}"
        remarks.append(f"{alike}, so discipline {queue.discipline} is backfill.")
    return {
        "cluster": queue.cluster.name,
        "chips": queue.cluster.chips,
        **_summary(queue),
        "mean_wait_ends_s": queue.wait_ends_s,
        "failure_ends_s": queue.failure_ends_s,
        "recorded_mean_wait_s": sum(waits_s) / len(waits_s) if waits_s else None,
        "jobs": queue.rows(),
        "teams": queue.teams,
        "reservations": [
            {
                "team": each.team,
                "chips": len(each.domains) * queue.cluster.chips_per_domain,
                **values_of(each, "start_s", "end_s"),
            }
            for each in queue.rights.reservations
        ],
        "others": [_summary(each) for each in queue.others.values()],
        **idle_entry(queue.without_effect),
        "remarks": remarks,
    }


def _summary(queue: Queue) -> dict[str, Any]:
    """Return the results of one discipline and place by name."""
    import numpy as np

    half_s, most_s = np.percentile(queue.waits_s, [50, 90]).tolist()
    return {
        **values_of(queue, "discipline", "place"),
        "mean_wait_s": float(queue.waits_s.mean()),
        "median_wait_s": half_s,
        "p90_wait_s": most_s,
        "longest_wait_s": float(queue.waits_s.max()),
        **values_of(queue, "used", "idle_beside_waiting", "scattered", "end_s"),
        "failures": sum(each.failures for each in queue.jobs),
        "preemptions": sum(each.preemptions for each in queue.jobs),
        "breakdown": queue.breakdown,
    }


def _sentences(results: Mapping[str, Any]) -> list[str]:
    """Say how sure the mean wait is, what the record shows, and which discipline waits least."""
    lines = [*idle_sentences(results.get("without_effect", {})), *results["remarks"]]
    for each in results["reservations"]:
        ends = " to ".join(format_seconds(each[end]) for end in ("start_s", "end_s"))
        lines.append(f"{each['chips']:,} chips are reserved for {each['team']} from {ends}.")
    if results["failure_ends_s"] is not None:
        low, high = map(format_seconds, results["failure_ends_s"])
        lines.append(
            "With failures at other times and rates, as published clusters differ, jobs wait "
            f"{low} to {high} on average in eight of ten runs."
        )
    if results["mean_wait_ends_s"] is not None:
        low, high = map(format_seconds, results["mean_wait_ends_s"])
        lines.append(
            "With all predicted steps at the low and high ends of their 80 % intervals, jobs wait "
            f"{low} and {high} on average."
        )
    if results["recorded_mean_wait_s"] is not None:
        recorded = format_seconds(results["recorded_mean_wait_s"])
        lines.append(f"The scheduler that wrote the record let jobs wait {recorded} on average.")
    if results["others"]:
        best = min([results, *results["others"]], key=lambda each: float(each["mean_wait_s"]))
        how = "Jobs wait least with"
        if best is results:  # or as little as with others
            how = f"In none of the {len(results['others'])} other ways do jobs wait less than with"
        lines.append(
            f"{how} discipline {best['discipline']} and place {best['place']}: "
            f"{format_seconds(best['mean_wait_s'])} on average."
        )
    return lines


def _print(results: Mapping[str, Any]) -> None:
    """Print the waits, the jobs that waited longest, and a study's other disciplines."""
    count = len(results["jobs"])
    queueing = "1 job queues" if count == 1 else f"{count:,} jobs queue"
    print_table(
        f"{queueing} for {results['cluster']}", ["result", "value"], facts(WAITS, results), left=2
    )
    for sentence in _sentences(results):
        print_text(sentence)
    by_wait = sorted(results["jobs"], key=lambda job: -job["wait_s"])[:LONGEST]
    jobs = [
        {
            **job,
            "stops": job["failures"] + job["preemptions"],
            "both": (job["domains"], job["least_domains"]),
        }
        for job in by_wait
    ]
    stopped = any(job["stops"] for job in jobs)
    print_rows("Longest waits", [each for each in JOBS if stopped or each.name != "stops"], jobs)
    if results["teams"]:
        shown = [each for each in TEAMS if results["teams"][0][each.name] is not None]
        print_rows("Teams", shown, results["teams"])
    if results["others"]:
        print_rows("Disciplines", WAYS, [results, *results["others"]], left=2)


def _write(out: Run, queue: Queue, results: Mapping[str, Any]) -> None:
    """Add results, tables and a picture to a run directory."""
    from experiments.figures.jobs import occupancy

    out.json("results", results, title="Results")
    out.table("jobs", queue.frame(), title="Jobs in order of arrival")
    if queue.teams:
        out.table("teams", queue.teams, title="Teams")
    if queue.others:
        ways = [_summary(each) for each in (queue, *queue.others.values())]
        rows = [dict(way, **way["breakdown"]) for way in ways]  # one column for each share
        for row in rows:
            del row["breakdown"]
        out.table("disciplines", rows, title="Disciplines")
    out.figure("occupancy", occupancy(queue), title="Servers in use and jobs that wait")
