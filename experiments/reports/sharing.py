"""Output of jobs that share a cluster: a JSON document, tables for people, a run directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.figures.sharing import slowdowns
from experiments.reports.training import stated
from topologies.files.table import Table
from topologies.units import format_seconds

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from workloads.sharing.run import SharedLinks
    from workloads.sharing.sharing import JobShare, Sharing

Cells = tuple[list[str], list[tuple[str, ...]]]
SURE = {
    "link": "On links within a domain, nine in ten steps of 93 pairs of jobs were between 17 % "
    "shorter and 12 % longer than where all messages are written out.",
    "": "On uplinks and adapters, 98 to 100 % of what sharing costs was found in eight of ten of "
    "31 pairs of jobs, compared with runs of all messages.",
}
"""Sentence on how sure a slowdown is, by the kind of the links on which jobs meet; the figures are
printed by ``python -m tools.shared_jobs``."""
SMALL = 5e-4
"""Change of a step below which a job is said to lose nothing."""


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
        "jobs": [_job(shared, job) for job in shared.jobs],
        "links": [each._asdict() for each in shared.links],
        "net_loss": shared.lost(),
        "remarks": _sureness(shared),
        **(study if shared.others else {}),
        "level": "flow",
        "engine": shared.engine,
        "ops": shared.ops,
    }


def _row(job: JobShare) -> dict[str, Any]:
    return {
        "name": job.job.name,
        "alone_s": job.alone_s,
        "beside_s": job.beside_s,
        "slowdown": job.slowdown,
    }


def _job(shared: Sharing, job: JobShare) -> dict[str, Any]:
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
        "steps": len(job.beside_ps),
        "tokens_per_s": job.job.plan.tokens / job.beside_s,
        "call_changes_s": job.call_changes_s,
        "meets": list(job.meets),
    }


def job_table(shared: Sharing) -> Cells:
    """Return each job for people: its step alone and beside the others."""
    columns = [
        "job",
        "chips",
        "alone",
        "beside",
        "80 % from",
        "to",
        "slowdown",
        "steps",
    ]
    rows = []
    for job in shared.jobs:
        ends = job.interval
        seconds = [job.alone_s, job.beside_s, ends["low"], ends["high"]]
        times = map(format_seconds, seconds)
        count = f"{len(job.chips):,}"
        steps = str(len(job.beside_ps))
        rows.append((job.job.name, count, *times, f"{job.slowdown:.3f}", steps))
    return columns, rows


def sentences(shared: Sharing) -> list[str]:
    """Say of each job what its slowdown is due to, and of a study which placement loses least."""
    lines = [*(_due_to(shared, job) for job in shared.jobs), *_sureness(shared)]
    if shared.others:
        tried = {
            name: each for name, each in shared.placements.items() if not isinstance(each, str)
        }
        lost = f"{tried[shared.best].lost(shared.best_alone_s):.2%}"
        lines.append(
            f"Placement {shared.best} loses least: {lost} of the jobs' chip-hours against each job "
            "alone in its best placement."
        )
    return lines


def _sureness(shared: Sharing) -> list[str]:
    """Say how sure slowdowns are on the kinds of links on which jobs meet."""
    kinds = dict.fromkeys(each.kind if each.kind in SURE else "" for each in shared.links)
    return [SURE[kind] for kind in kinds]


def _due_to(shared: Sharing, job: JobShare) -> str:
    """Say what the slowdown of a job is due to."""
    name = job.job.name
    if not job.meets:
        return f"{name} crosses no full link that another job crosses, so it loses nothing."
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


def link_table(shared: Sharing) -> Cells:
    """Return the links that jobs share, for people."""
    columns = ["kind", "fullest", "links", "load", "crossed by"]
    rows: list[tuple[str, ...]] = [
        (each.kind, each.example, f"{each.links:,}", f"{each.load:.2f}", _by(each))
        for each in shared.links
    ]
    return columns, rows


def _by(each: SharedLinks) -> str:
    """Name the jobs that cross links, and the axes of their groups."""
    return "; ".join(f"{name}: {', '.join(axes)}" for name, axes in each.crossed_by.items())


def placement_table(shared: Sharing) -> Cells:
    """Return the placements side by side, for people: the slowdown of each job and what is lost."""
    names = [job.job.name for job in shared.jobs]
    rows = []
    for name, each in shared.placements.items():
        if isinstance(each, str):
            rows.append((name, "no room", *([""] * len(names))))
            continue
        steps = [f"{format_seconds(job.beside_s)} ({job.slowdown:.3f})" for job in each.jobs]
        rows.append((name, f"{each.lost(shared.best_alone_s):.2%}", *steps))
    return ["placement", "lost", *names], rows


def write(out: Run, shared: Sharing) -> None:
    """Add results, tables and a picture to a run directory."""
    out.json("results", document(shared), title="Results")
    numbers = ("least_slowdown", "most_slowdown", "steps", "tokens_per_s")
    jobs = [
        {
            **_row(job),
            "chips": len(job.chips),
            **{name: _job(shared, job)[name] for name in numbers},
        }
        for job in shared.jobs
    ]
    out.table("jobs", Table.of_rows(jobs), title="Jobs alone and beside each other")
    links = [{**each._asdict(), "crossed_by": _by(each)} for each in shared.links]
    if links:
        out.table("links", Table.of_rows(links), title="Links that they share")
    tried = [
        {"placement": name, **_row(job)}
        for name, each in shared.placements.items()
        if not isinstance(each, str)
        for job in each.jobs
    ]
    if shared.others:
        out.table("placements", Table.of_rows(tried), title="Placements")
    out.figure("slowdowns", slowdowns(shared), title="Slowdown of each job")
