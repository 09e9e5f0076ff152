"""Training jobs from a CSV file, one row a job."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from topologies.errors import InputError, shown, suggestion
from topologies.files.frame import read_table
from workloads.fleet.inputs.jobs import TrainingJob

MAX_JOBS = 1000
MAX_BYTES = 5 * 10**6
LARGEST = 10**18
"""Largest number of a cell, above any count of tokens, bytes or units."""

COLUMNS = (
    "name",
    "units",
    "min_units",
    "step_units",
    "count",
    "tokens_per_s",
    "iteration_s",
    "step_tokens",
    "reclaim",
    "priority",
    "checkpoint_every_s",
    "state_bytes",
    "checkpoint",
    "standby",
    "peer_recovery",
    "evaluation",
    "arrives_h",
    "deadline_h",
    "work_tokens",
    "post_training",
)


def read_jobs(path: str | Path) -> tuple[TrainingJob, ...]:
    """Read jobs from a CSV file, with the fields of
    :class:`workloads.fleet.inputs.jobs.TrainingJob`.

    ``name`` and ``units`` are required; empty cells take the default. ``tokens_per_s`` is the
    throughput on ``units`` units; instead of it ``iteration_s`` may state the time of one step of
    ``step_tokens`` tokens. A job with neither trains a model of the fleet at that model's rate.
    ``count`` repeats a row. ``checkpoint`` is ``async`` or ``peer``, ``standby`` is ``cold`` or
    ``warm``; ``peer_recovery`` 1 is an older way to write ``peer`` and ``warm``. ``post_training``
    is empty, ``lockstep`` or ``one-behind``. ``arrives_h`` and ``deadline_h`` are hours from the
    start of the run. A job ends after ``work_tokens`` tokens.

    Raises
    ------
    InputError
        For a missing file, unknown columns, bad values; names the row.
    """
    file = Path(path)
    table = read_table(
        file,
        "training",
        remedy="give a CSV file, or leave --training out",
        limit_bytes=MAX_BYTES,
        dtype=str,
        keep_default_na=False,
    )
    for column in table.columns:
        if column not in COLUMNS:
            raise InputError(
                f"{file}: unknown column {column!r}; it may have {', '.join(COLUMNS)}."
                + suggestion(str(column), COLUMNS)
            )
    missing = [name for name in ("name", "units") if name not in table]
    if missing:
        raise InputError(f"{file}: no column {missing[0]!r}; name and units are required.")
    jobs: list[TrainingJob] = []
    for row, cells in enumerate(table.to_dict("records")):
        jobs += _jobs(
            {str(key): str(value) for key, value in cells.items()}, f"{file}, row {row + 2}"
        )
        if len(jobs) > MAX_JOBS:
            raise InputError(f"{file}: more than {MAX_JOBS:,} jobs; join the small ones.")
    names = Counter(job.name for job in jobs)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise InputError(
            f"{file}: {names[twice]} jobs are called {shown(twice)!r}. Give each its own name."
        )
    return tuple(jobs)


def _jobs(cells: Mapping[str, str], where: str) -> list[TrainingJob]:
    """Return the jobs of one row, which are alike but for their names."""
    units = _whole(cells, "units", 0, where)
    evaluation = _switch(cells, "evaluation", where)
    step_tokens = _number(cells, "step_tokens", 1.0, where)
    iteration_s = _number(cells, "iteration_s", 0.0, where)
    rate = _number(cells, "tokens_per_s", 0.0, where)
    rate = step_tokens / iteration_s if iteration_s else rate
    interval_s = _number(cells, "checkpoint_every_s", 0.0, where)
    count = _whole(cells, "count", 1, where)
    peers = _switch(cells, "peer_recovery", where)
    name = cells["name"].strip() or "job"
    return [
        TrainingJob(
            name if count == 1 else f"{name}-{copy + 1}",
            units=units,
            min_units=_whole(cells, "min_units", 1 if evaluation else units, where),
            step_units=_whole(cells, "step_units", 1, where),
            tokens_per_s=((max(units, 1), rate),) if rate else (),
            step_tokens=step_tokens,
            reclaim=cells.get("reclaim", "").strip() or ("drain" if evaluation else "checkpoint"),
            priority=_whole(cells, "priority", 0, where),
            checkpoint_every_s=interval_s or None,
            state_bytes=_number(cells, "state_bytes", 0.0, where),
            checkpoint=cells.get("checkpoint", "").strip() or ("peer" if peers else "async"),
            standby=cells.get("standby", "").strip() or ("warm" if peers else "cold"),
            evaluation=evaluation,
            arrives_s=_number(cells, "arrives_h", 0.0, where) * 3600.0,
            deadline_s=_number(cells, "deadline_h", 0.0, where) * 3600.0 or math.inf,
            work_tokens=_number(cells, "work_tokens", 0.0, where) or math.inf,
            post_training=cells.get("post_training", "").strip(),
        )
        for copy in range(min(count, MAX_JOBS + 1))
    ]


def _number(cells: Mapping[str, str], name: str, default: float, where: str) -> float:
    """Read a number from a cell; ``where`` names file and row in the error."""
    text = cells.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not 0 <= value <= LARGEST:
        raise InputError(
            f"{where}: {name} is {shown(text)!r}; it must be a number from 0 to {LARGEST:,}."
        )
    return value


def _whole(cells: Mapping[str, str], name: str, default: int, where: str) -> int:
    value = _number(cells, name, default, where)
    if value != int(value):
        raise InputError(f"{where}: {name} is {cells[name].strip()!r}; it must be a whole number.")
    return int(value)


def _switch(cells: Mapping[str, str], name: str, where: str) -> bool:
    value = _number(cells, name, 0, where)
    if value not in (0, 1):
        raise InputError(f"{where}: {name} is {cells[name].strip()!r}; write 1 or 0.")
    return value == 1
