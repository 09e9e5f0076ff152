"""Pipeline schedules by name; a new one is a file here and its name in ``SCHEDULES``."""

from __future__ import annotations

from topologies.support.errors import InputError, suggestion
from topologies.support.registry import by_name
from workloads.training.plan.schedules.dualpipe import DUALPIPE
from workloads.training.plan.schedules.one_f_one_b import (
    COMBINED,
    GPIPE,
    INTERLEAVED,
    ONE_F_ONE_B,
    ZERO_BUBBLE,
)
from workloads.training.plan.schedules.schedule import PipelineSchedule

SCHEDULES: tuple[PipelineSchedule, ...] = tuple(
    by_name(
        "pipeline schedule", (GPIPE, ONE_F_ONE_B, ZERO_BUBBLE, INTERLEAVED, COMBINED, DUALPIPE)
    ).values()
)
"""All pipeline schedules, in the order in which they are listed and searched."""
DEFAULT = ONE_F_ONE_B.name


def schedule_names() -> tuple[str, ...]:
    """Return the names of all pipeline schedules."""
    return tuple(schedule.name for schedule in SCHEDULES)


def schedule_of_chunks(chunks: int) -> str:
    """Return the name of the schedule to suggest for a number of chunks a stage."""
    # A schedule that allows the number goes before one that does not, then one with which the plan
    # search tries it, then one with which it tries more numbers.

    def preference(schedule: PipelineSchedule) -> tuple[bool, bool, int]:
        searched = schedule.chunks_searched
        return chunks in schedule.chunks_allowed, chunks in searched, len(searched)

    return max(SCHEDULES, key=preference).name


def pipeline_schedule(name: str) -> PipelineSchedule:
    """Return the pipeline schedule of a name."""
    for schedule in SCHEDULES:
        if schedule.name == name:
            return schedule
    names = schedule_names()
    near = suggestion(str(name), names)
    raise InputError(f"schedule is {name!r}; it must be one of {', '.join(names)}.{near}")
