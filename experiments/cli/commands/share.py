"""``cluster-sim share``: several training jobs on one cluster, and what each costs the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cli.options.inputs import CatalogueInputs, Invocation
from experiments.cli.output.printing import print_rows, print_table, print_text
from experiments.reports.formatting import Column, values_of
from topologies.clusters.names import machine
from topologies.support.options import required, setting
from topologies.support.units import format_seconds

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from workloads.sharing.sharing import JobShare, Sharing


@dataclass(frozen=True)
class SharingInputs:
    """A cluster, and the jobs that share it."""

    cluster: str = required("Named machine or YAML file, such as trn2-ultraserver:4", argument=True)
    jobs: Path = required(
        "YAML file with a list under jobs: a name, model, fields of a plan or its file, chips or "
        "dp, placement or start, starts_at and steps",
        metavar="FILE.yaml",
    )
    placement: str | None = setting(
        None,
        "Placement of every job without a start of its own",
        choices="workloads.sharing.jobs:PLACEMENTS",
        default="that of each job, or packed",
    )
    study: bool = setting(False, "Simulate every placement, and say which loses least")
    steps: int = setting(
        4, "Steps of the slowest job; others make as many as fit", least=1, most=1000
    )


def share(inputs: SharingInputs, catalogue_inputs: CatalogueInputs, call: Invocation) -> None:
    """Run several jobs on one cluster, and see what they lose.

    Each job runs alone and beside the others. Where links or adapters that several jobs cross are
    full, their collectives slow each other. Jobs that state starts_at or steps meet only while both
    run.
    """
    from workloads.sharing.sharing import share as run

    shared = run(
        machine(inputs.cluster, catalogue=catalogue_inputs.watched(inputs.cluster)),
        inputs.jobs,
        placement=inputs.placement or "",
        study=inputs.study,
        steps=inputs.steps,
        engine=call.engine,
    )
    call.answer(
        document(shared),
        lambda results: _print(shared, results),
        lambda out, results: _write(out, shared, results),
    )


def _axes_by_job(crossed_by: Mapping[str, Sequence[str]]) -> str:
    """Name the jobs that cross links, and the axes of their groups."""
    return "; ".join(f"{name}: {', '.join(axes)}" for name, axes in crossed_by.items())


JOBS = (
    Column("name", "job"),
    Column("chips", "chips"),
    Column("alone_s", "alone"),
    Column("beside_s", "beside"),
    Column("low_s", "80 % from"),
    Column("high_s", "to"),
    Column("slowdown", "slowdown", write="{:.3f}".format),
    Column("steps", "steps", write="{:,.0f}".format),
)
LINKS = (
    Column("kind", "kind"),
    Column("example", "fullest"),
    Column("links", "links"),
    Column("load", "load", write="{:.2f}".format),
    Column("crossed_by", "crossed by", write=_axes_by_job),
)
SURE = {
    "link": "On links within a domain, nine in ten steps of 77 pairs of jobs were between 3.4 % "
    "shorter and 11.0 % longer than where all messages are written out.",
    "": "On uplinks and adapters, 100 to 101 % of what sharing costs was found in eight of ten of "
    "31 pairs of jobs, compared with runs of all messages.",
}
"""Sentence on how sure a slowdown is, by the kind of the links on which jobs meet; the figures are
printed by ``python -m tools.shared_jobs``."""
SMALL = 5e-4  # change of a step below which a job is said to lose nothing


def document(shared: Sharing) -> dict[str, Any]:
    """Return all results under the keys of the command line."""
    best_s = shared.best_alone_s
    study = {
        "best": shared.best,
        "placements": [
            {"placement": name, "why": each}
            if isinstance(each, str)
            else {
                "placement": name,
                "net_loss": each.lost(best_s),
                "jobs": [_row(job) for job in each.jobs],
            }
            for name, each in shared.placements.items()
        ],
    }
    return {
        "cluster": shared.cluster.name,
        "chips": shared.cluster.chips,
        "placement": shared.placement or None,
        "jobs": [_job(shared, number) for number in range(len(shared.jobs))],
        **({"periods": _periods(shared)} if shared.periods else {}),
        "links": [each._asdict() for each in shared.links],
        "net_loss": shared.lost(),
        "remarks": _sureness(shared),
        **(study if shared.others else {}),
        "level": "flow",
        **values_of(shared, "engine", "ops"),
    }


def _row(job: JobShare) -> dict[str, Any]:
    return {"name": job.job.name, **values_of(job, "alone_s", "beside_s", "slowdown")}


def _periods(shared: Sharing) -> list[dict[str, Any]]:
    """Return the periods in which the same jobs run, with their steps in each."""
    alone_s = [job.alone_s for job in shared.jobs]
    return [
        {
            "begins_at_s": each.begin_s,
            "ends_at_s": each.end_s,
            "jobs": [
                {
                    "name": shared.jobs[number].job.name,
                    "step_s": step_s,
                    "slowdown": step_s / alone_s[number],
                    "steps": each.steps(number),
                }
                for number, step_s in zip(each.running, each.step_s, strict=True)
            ],
        }
        for each in shared.periods
    ]


def _job(shared: Sharing, number: int) -> dict[str, Any]:
    from experiments.reports.training import stated

    job = shared.jobs[number]
    ran = [each for each in shared.periods if number in each.running]
    times = {"starts_at_s": ran[0].begin_s, "ends_at_s": ran[-1].end_s} if ran else {}
    interval = {**job.interval, "level": job.step.interval.level, "basis": job.step.interval.basis}
    return {
        **_row(job),
        "model": job.job.model.name,
        "chips": len(job.chips),
        "first_chip": int(job.chips[0]),
        "last_chip": int(job.chips[-1]),
        "placement": None if job.job.start is not None else shared.placement or job.job.placement,
        "plan": stated(job.job.plan),
        "interval": interval,
        "least_slowdown": float(job.slowdowns.min()),
        "most_slowdown": float(job.slowdowns.max()),
        "steps": job.job.steps or (float(job.weight.sum()) if ran else len(job.beside_ps)),
        **times,
        "tokens_per_s": job.job.plan.tokens / job.beside_s,
        "call_changes_s": job.call_changes_s,
        "meets": list(job.meets),
    }


def _print(shared: Sharing, results: Mapping[str, Any]) -> None:
    """Print the jobs, what slows them, the links that they share, and the placements."""
    jobs = [
        {**job, "low_s": job["interval"]["low"], "high_s": job["interval"]["high"]}
        for job in results["jobs"]
    ]
    print_rows(f"{len(jobs)} job{'s' * (len(jobs) > 1)} on {shared.cluster.name}", JOBS, jobs)
    for sentence in (*(_due_to(shared, job) for job in shared.jobs), *_sureness(shared)):
        print_text(sentence)
    if shared.others:
        lost = f"{shared.simulated[shared.best].lost(shared.best_alone_s):.2%}"
        verdict = shared.verdict.replace("p", "P", 1)
        print_text(
            f"{verdict}: {lost} of the jobs' chip-hours against each job alone in its best "
            "placement."
        )
    if shared.periods:
        _print_periods(results)
    if results["links"]:
        print_rows("Links that they share", LINKS, results["links"], left=2)
    if shared.others:
        columns = ["placement", "lost", *(job["name"] for job in jobs)]
        rows = []  # what is lost, and the step and slowdown of each job
        for name, each in shared.placements.items():
            if isinstance(each, str):
                rows.append((name, "no room", *([""] * len(shared.jobs))))
                continue
            steps = [f"{format_seconds(job.beside_s)} ({job.slowdown:.3f})" for job in each.jobs]
            rows.append((name, f"{each.lost(shared.best_alone_s):.2%}", *steps))
        print_table("Placements", columns, rows)


def _print_periods(results: Mapping[str, Any]) -> None:
    """Print when which jobs run, with the step and slowdown of each."""
    names = [job["name"] for job in results["jobs"]]
    rows = []
    for each in results["periods"]:
        now = {
            job["name"]: f"{format_seconds(job['step_s'])} ({job['slowdown']:.3f})"
            for job in each["jobs"]
        }
        begins_at_s, ends_at_s = each["begins_at_s"], each["ends_at_s"]
        when = format_seconds(begins_at_s), format_seconds(ends_at_s - begins_at_s)
        rows.append((*when, *(now.get(name, "") for name in names)))
    print_table("Periods in which the same jobs run", ["from", "for", *names], rows)


def _sureness(shared: Sharing) -> list[str]:
    """Say how sure slowdowns are on the kinds of links on which jobs meet."""
    kinds = dict.fromkeys(each.kind if each.kind in SURE else "" for each in shared.links)
    return [SURE[kind] for kind in kinds]


def _due_to(shared: Sharing, job: JobShare) -> str:
    """Say what the slowdown of a job is due to."""
    name = job.job.name
    if not job.meets:
        when = " at the same time" if shared.periods else ""
        return f"{name} crosses no full link that another job crosses{when}, so it loses nothing."
    others = ", ".join(job.meets)
    if abs(job.slowdown - 1) < SMALL:
        return f"{name} shares links with {others}, and loses less than 0.05 % of a step."
    mine = [each for each in shared.links if name in each.crossed_by]
    kinds = ", ".join(dict.fromkeys(each.kind for each in mine)) or "links"
    longer = sorted(job.call_changes_s.items(), key=lambda item: -item[1])
    parts = [f"{axis} by {format_seconds(more_s)}" for axis, more_s in longer if more_s > 1e-9]
    change_s = format_seconds(abs(job.beside_s - job.alone_s))
    verb = "loses" if job.slowdown > 1 else "gains"
    return (
        f"{name} {verb} {change_s} a step ({job.slowdown - 1:+.1%}, single steps "
        f"{job.slowdowns.min() - 1:+.1%} to {job.slowdowns.max() - 1:+.1%}) beside {others}, on "
        f"{kinds}. Its calls take longer in a step, hidden ones too: "
        f"{', '.join(parts) or 'none of them'}."
    )


IN_JOBS = ("chips", "least_slowdown", "most_slowdown", "steps", "tokens_per_s")
"""Columns of the table of jobs in a run directory, beside those of a row."""


def _write(out: Run, shared: Sharing, results: Mapping[str, Any]) -> None:
    """Add results, tables and a picture to a run directory."""
    from experiments.figures.jobs import slowdowns

    out.json("results", results, title="Results")
    pairs = zip(shared.jobs, results["jobs"], strict=True)
    jobs = [{**_row(job), **{name: row[name] for name in IN_JOBS}} for job, row in pairs]
    out.table("jobs", jobs, title="Jobs alone and beside each other")
    if shared.periods:
        periods = [
            {"begins_at_s": each["begins_at_s"], "ends_at_s": each["ends_at_s"], **job}
            for each in results["periods"]
            for job in each["jobs"]
        ]
        out.table("periods", periods, title="Periods in which the same jobs run")
    links = [{**row, "crossed_by": _axes_by_job(row["crossed_by"])} for row in results["links"]]
    if links:
        out.table("links", links, title="Links that they share")
    if shared.others:
        tried = [
            {"placement": name, **_row(job)}
            for name, each in shared.simulated.items()
            for job in each.jobs
        ]
        out.table("placements", tried, title="Placements")
    out.figure("slowdowns", slowdowns(shared), title="Slowdown of each job")
