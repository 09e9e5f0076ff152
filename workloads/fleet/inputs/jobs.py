"""Training jobs and deferrable evaluation: the work of units that the fleet lends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from topologies.support.arguments import check_names
from topologies.support.errors import InputError, check_choice, shown
from topologies.support.files.table import read_table
from workloads.confidence.sensitivity import AS_STATED, Uncertain

LOCKSTEP, BEHIND = "lockstep", "one-behind"
MODES = (LOCKSTEP, BEHIND)


@dataclass(frozen=True)
class Split:
    """Division of units between rollouts and updates."""

    # rollout_units, update_units: units for rollouts, and for updates; with one unit alone it is
    # the same unit in turn
    rollout_units: int
    update_units: int
    # rollout_s, update_s, transfer_s, step_s: durations of the parts of a step, and of the step in
    # the steady state [s]
    rollout_s: float
    update_s: float
    transfer_s: float
    step_s: float
    tokens_per_s: float

    @property
    def bound(self) -> str:
        """Name of the phase that takes longer: ``rollouts`` or ``updates``."""
        return "rollouts" if self.rollout_s > self.update_s + self.transfer_s else "updates"


@dataclass(frozen=True)
class PostTraining:
    """Rates of a post-training job, whose rollouts and updates have units of their own."""

    # A step makes a batch of rollouts with the served weights, updates the trained weights on it,
    # and sends them to the rollout units. With times t of rollouts r, update u and transfer w a
    # step takes ``t_r + t_u + t_w`` in lockstep, where rollouts wait for the newest weights. One
    # behind, it takes ``max(t_r, t_u + t_w)``: a rollout runs beside the update and transfer
    # before.

    # rollout_tokens_per_s, update_tokens_per_s: rate of one unit that makes rollouts, and of one
    # that updates the weights [1/s]
    rollout_tokens_per_s: float
    update_tokens_per_s: float
    transfer_s: float  # time from the end of an update until all rollout units hold its weights [s]
    step_tokens: float  # tokens of the rollouts of one step, prompts and answers together
    mode: str = BEHIND

    def on(self, rollout_units: int, update_units: int) -> Split:
        """Return the steady state with a number of rollout units and of update units."""
        rollout_s = self.step_tokens / (rollout_units * self.rollout_tokens_per_s)
        update_s = self.step_tokens / (update_units * self.update_tokens_per_s)
        step_s = max(rollout_s, update_s + self.transfer_s)
        if self.mode == LOCKSTEP:
            step_s = rollout_s + update_s + self.transfer_s
        times = rollout_s, update_s, self.transfer_s, step_s
        return Split(rollout_units, update_units, *times, self.step_tokens / step_s)

    def best(self, units: int) -> Split:
        """Return the fastest division of ``units`` units between rollouts and updates."""
        # Among equally fast ones, the division with fewer rollout units is returned. One unit alone
        # makes rollouts and updates in turn, whatever the mode.
        if units == 1:
            return replace(self, mode=LOCKSTEP).on(1, 1)
        splits = (self.on(rollouts, units - rollouts) for rollouts in self._candidates(units))
        return min(splits, key=lambda split: (split.step_s, split.rollout_units))

    def _candidates(self, units: int) -> range:
        """Numbers of rollout units near the continuous optimum of the mode."""
        rollout, update = self.rollout_tokens_per_s, self.update_tokens_per_s
        if self.mode == LOCKSTEP:
            share = math.sqrt(update) / (math.sqrt(update) + math.sqrt(rollout))
        else:
            # A step is shortest where both sides take as long: B/(x R) = B/((N - x) T) + w, a
            # quadratic in x, the rollout units, with one root between 0 and N.
            work = self.step_tokens
            linear = work / rollout + work / update + self.transfer_s * units
            square = linear**2 - 4 * self.transfer_s * work * units / rollout
            share = 2 * work / rollout / (linear + math.sqrt(square))
        middle = round(share * units)
        return range(max(1, middle - 2), min(units - 1, middle + 2) + 1)


STEP_TOKENS = 16e6
"""Tokens of one optimizer step in reports: the batch of Llama 3 (arXiv 2407.21783)."""
RECLAIMS = ("checkpoint", "preempt", "shrink", "pause", "drain")
"""Ways in which units come back: save first; at once; by dropping replicas; with the state kept in
host memory; by finishing the requests in flight (evaluation only)."""
CHECKPOINTS = ("async", "peer")
STANDBYS = ("cold", "warm")


@dataclass(frozen=True)
class TrainingJob:
    """A training or evaluation job that runs on whole units."""

    name: str
    units: int
    min_units: int = 1  # fewest units that the job runs on; equal to ``units`` for a fixed gang
    step_units: int = 1  # units by which the job grows and shrinks: one data-parallel replica
    # Throughput at some sizes, from simulated iterations; interpolated between sizes, linearly in
    # the logarithms. Empty where it is not known: progress is then counted in unit-seconds, and no
    # tokens are reported
    tokens_per_s: tuple[tuple[int, float], ...] = ()
    step_tokens: float = 1.0
    reclaim: str = "checkpoint"  # way in which the job gives units back, one of ``RECLAIMS``
    priority: int = 0  # jobs with a smaller number start first and give units back last
    # Interval of periodic checkpoints [s]; by default the catalogue's, half an hour
    checkpoint_every_s: float | None = None
    state_bytes: float = 0.0
    # One of ``CHECKPOINTS``: after a failure the state is read from the shared store, or from
    # copies in the host memory of other units (``workloads.job.checkpoints``)
    checkpoint: str = "async"
    # One of ``STANDBYS``: with ``warm``, processes survive a failure, and the restart is shorter if
    # no unit has to join from other work
    standby: str = "cold"
    # Deferrable batch inference: any number of units, no gang, given back by draining
    evaluation: bool = False
    # arrives_s, deadline_s: time at which the job may begin, and by which it should be done [s from
    # the start of the run]
    arrives_s: float = 0.0
    deadline_s: float = math.inf
    work_tokens: float = math.inf  # tokens after which the job is done; by default it never ends
    # Empty, or ``lockstep`` or ``one-behind``: the units divide into rollouts and updates, see
    # ``workloads.fleet.inputs.jobs``
    post_training: str = ""
    # Rates of rollouts and updates; the throughput is then that of the best split
    phases: PostTraining | None = None
    # Factor between which ends the time of a step lies; 1 where a rate is stated
    step_time: Uncertain = AS_STATED
    kind: str = ""  # kind of units that a file states for the job; may be empty for the only one
    team: str = ""  # team whose jobs share a quota
    team_units: int = 0  # most units of one kind that the jobs of the team have together; 0 for all

    def __post_init__(self) -> None:
        if not 1 <= self.min_units <= self.units or self.step_units < 1:
            raise InputError(
                f"job {self.name}: min_units {self.min_units}, units {self.units}, step_units "
                f"{self.step_units}; they must hold 1 <= min_units <= units and step_units >= 1."
            )
        for what, value, choices in (
            ("reclaim", self.reclaim, RECLAIMS),
            ("checkpoint", self.checkpoint, CHECKPOINTS),
            ("standby", self.standby, STANDBYS),
            ("post_training", self.post_training or BEHIND, MODES),
        ):
            check_choice(f"job {self.name}: {what}", value, choices)
        if (self.reclaim == "drain") != self.evaluation:
            raise InputError(
                f"job {self.name}: evaluation is given back by draining and training is not; "
                f"reclaim is {self.reclaim!r} and evaluation {self.evaluation}."
            )
        if self.team_units and (not self.team or self.team_units < self.min_units):
            raise InputError(
                f"job {self.name}: team_units {self.team_units} is a quota of team {self.team!r}; "
                f"it needs a team, and at least the min_units {self.min_units} of each of its jobs."
            )
        if any(n < 1 or not rate > 0 for n, rate in self.tokens_per_s) or self.step_tokens <= 0:
            raise InputError(f"job {self.name}: throughput and step_tokens must be above 0.")
        if self.post_training and self.evaluation:
            raise InputError(
                f"job {self.name}: post_training is {self.post_training!r}; it is of a job that "
                "trains, and this one evaluates."
            )
        interval_s = self.checkpoint_every_s
        if (interval_s is not None and not interval_s > 0) or self.state_bytes < 0:
            raise InputError(f"job {self.name}: the checkpoint interval must be above 0 s.")
        if self.arrives_s < 0 or not self.work_tokens > 0 or self.deadline_s <= self.arrives_s:
            raise InputError(
                f"job {self.name}: it arrives at {self.arrives_s:g} s with a deadline at "
                f"{self.deadline_s:g} s and {self.work_tokens:g} tokens of work; the deadline must "
                "come later than the arrival, and the work be above 0."
            )

    @property
    def rated(self) -> bool:
        """Return whether the throughput is known."""
        return self.phases is not None or bool(self.tokens_per_s)

    @property
    def fixed(self) -> bool:
        """Return whether the job is a gang of one size."""
        return self.min_units == self.units

    def rate(self, units: int) -> float:
        """Tokens per second on a number of units, in proportion outside the sizes given."""
        # Where the throughput is not known, the rate is in unit-seconds per second.
        if units <= 0:
            return 0.0
        if self.phases is not None:
            return self.phases.best(units).tokens_per_s
        if not self.tokens_per_s:
            return float(units)
        sizes, rates = zip(*sorted(self.tokens_per_s), strict=True)
        if units <= sizes[0]:
            return float(rates[0] * units / sizes[0])
        if units >= sizes[-1]:
            return float(rates[-1] * units / sizes[-1])
        return float(math.exp(np.interp(math.log(units), np.log(sizes), np.log(rates))))

    def fits(self, units: int) -> int:
        """Largest size that the job can take out of ``units`` units; 0 if they are too few."""
        size = min(units, self.units)
        if size < self.min_units:
            return 0
        return self.min_units + (size - self.min_units) // self.step_units * self.step_units


def default_jobs(
    units: int, *, step_tokens: float = 1.0, most: tuple[float, float] = (math.inf, math.inf)
) -> tuple[TrainingJob, ...]:
    """Return night work for a fleet of any size: elastic runs, gangs, evaluation."""
    # Four pre-training runs of up to an eighth of the fleet each grow and shrink by sixteenths;
    # gangs of 1/64, as many as fill 5/8 of the fleet with the runs, are paused in place, as Project
    # Rainier's runs are by day; evaluation takes the rest. The sizes are assumptions: nobody
    # publishes them. ``most`` are the most units of a run and of a gang; where they are fewer,
    # there are more. Below 64 units one elastic run has half of the fleet, and a gang one unit.
    share, together = (2, 1) if units < 64 else (8, 4)
    usual, usual_gang = max(1, units // share), max(1, units // 64)
    size, gang = int(min(usual, most[0])), int(min(usual_gang, most[1]))
    count = together * usual // size
    runs = [
        TrainingJob(
            "pretraining" if count == 1 else f"pretraining-{number + 1}",
            units=size,
            min_units=max(1, size * share // 64),
            step_units=max(1, size * share // 128),
            step_tokens=step_tokens,
            reclaim="shrink",
            priority=1,
            checkpoint="peer",
            standby="warm",
        )
        for number in range(count)
    ]
    gangs = [
        TrainingJob(
            f"post-training-{number + 1}",
            units=gang,
            min_units=gang,
            step_tokens=step_tokens / 8,
            reclaim="pause",
            priority=2,
        )
        for number in range(max(0, 5 * units // 8 - count * size) // gang)
    ]
    return (*runs, *gangs, evaluation_job(units))


def evaluation_job(units: int) -> TrainingJob:
    """Return deferrable batch inference on up to ``units`` units, after every other job."""
    return TrainingJob("evaluation", units=units, reclaim="drain", priority=9, evaluation=True)


MAX_JOBS = 1000
MAX_BYTES = 5 * 10**6
LARGEST = 10**18  # largest number of a cell, above any count of tokens, bytes or units

COLUMNS: Mapping[str, tuple[type, Any]] = {
    "name": (str, "job"), "units": (int, 0), "min_units": (int, None), "step_units": (int, 1),
    "count": (int, 1), "tokens_per_s": (float, 0.0), "iteration_s": (float, 0.0),
    "step_tokens": (float, 1.0), "reclaim": (str, ""), "priority": (int, 0),
    "checkpoint_every_s": (float, None), "state_bytes": (float, 0.0), "checkpoint": (str, "async"),
    "standby": (str, "cold"), "evaluation": (bool, False), "arrives_h": (float, 0.0),
    "deadline_h": (float, 0.0), "work_tokens": (float, 0.0), "post_training": (str, ""),
    "kind": (str, ""), "team": (str, ""), "team_units": (int, 0),
}  # fmt: skip
"""Columns of a file of jobs, with the type of a cell and its value where it is empty."""
AS_WRITTEN = (
    "step_units", "step_tokens", "priority", "state_bytes", "checkpoint", "standby", "evaluation",
    "post_training", "kind", "team", "team_units",
)  # fmt: skip
"""Columns that are fields of a job as they stand."""


def read_jobs(path: str | Path) -> tuple[TrainingJob, ...]:
    """Read jobs from a CSV file, with the fields of :class:`TrainingJob`."""
    # ``name`` and ``units`` are required; empty cells take the default. ``tokens_per_s`` is the
    # throughput on ``units`` units; instead of it ``iteration_s`` may state the time of one step of
    # ``step_tokens`` tokens. A job with neither trains a model of the fleet at that model's rate.
    # ``count`` repeats a row. ``checkpoint`` is ``async`` or ``peer``, ``standby`` is ``cold`` or
    # ``warm``, ``post_training`` empty, ``lockstep`` or ``one-behind``. ``arrives_h`` and
    # ``deadline_h`` are hours from the start of the run. A job ends after ``work_tokens`` tokens.
    file = Path(path)
    table = read_table(
        file,
        "training",
        remedy="give a CSV file, or leave --training out",
        limit_bytes=MAX_BYTES,
        dtype=str,
        keep_default_na=False,
    )
    check_names(str(file), map(str, table.columns), [*COLUMNS])
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
    quotas: dict[str, int] = {}
    for job in jobs:
        if job.team and quotas.setdefault(job.team, job.team_units) != job.team_units:
            raise InputError(
                f"{file}: team {shown(job.team)!r} has {quotas[job.team]} and {job.team_units} "
                "team_units. State one number in all of its rows."
            )
    names = Counter(job.name for job in jobs)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise InputError(
            f"{file}: {names[twice]} jobs are called {shown(twice)!r}. Give each its own name."
        )
    return tuple(jobs)


def _jobs(cells: Mapping[str, str], where: str) -> list[TrainingJob]:
    """Return the jobs of one row; ``where`` names file and row in errors."""
    row = {name: _cell(cells, name, where) for name in COLUMNS}
    units, evaluation = row["units"], row["evaluation"]
    least = 1 if evaluation else units
    stepped = row["iteration_s"] and row["step_tokens"] / row["iteration_s"]
    rate = stepped or row["tokens_per_s"]
    job = TrainingJob(
        row["name"],
        units=units,
        min_units=least if row["min_units"] is None else row["min_units"],
        tokens_per_s=((max(units, 1), rate),) if rate else (),
        reclaim=row["reclaim"] or ("drain" if evaluation else "checkpoint"),
        checkpoint_every_s=row["checkpoint_every_s"] or None,
        arrives_s=row["arrives_h"] * 3600.0,
        deadline_s=row["deadline_h"] * 3600.0 or math.inf,
        work_tokens=row["work_tokens"] or math.inf,
        **{name: row[name] for name in AS_WRITTEN},
    )
    copies = range(1, min(row["count"], MAX_JOBS + 1) + 1)
    return [job if row["count"] == 1 else replace(job, name=f"{job.name}-{n}") for n in copies]


def _cell(cells: Mapping[str, str], name: str, where: str) -> Any:
    """Return the value of a cell, or that of an empty one."""
    kind, usual = COLUMNS[name]
    text = cells.get(name, "").strip()
    if not text or kind is str:
        return text or usual
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= LARGEST:
        raise InputError(
            f"{where}: {name} is {shown(text)!r}; it must be a number from 0 to {LARGEST:,}."
        )
    if kind is int and value != int(value):
        raise InputError(f"{where}: {name} is {text!r}; it must be a whole number.")
    if kind is bool and value not in (0, 1):
        raise InputError(f"{where}: {name} is {text!r}; write 1 or 0.")
    return kind(value)
