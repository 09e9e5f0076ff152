"""Plan of a job: its length, checkpoints, spares and recovery."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from topologies.arguments import Seed, check_fields, check_names
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from topologies.options import described
from topologies.units import parse_count, parse_seconds
from workloads.job.causes import FailureRates, read_failures
from workloads.options.job import AUTO, CHECKPOINTS, STANDBYS, JobInputs, check_choice

DAYS = 90.0  # default length of a run [d]
RUNS = 8  # default number of runs from whose spread the interval comes


@dataclass(frozen=True)
class JobPlan:
    """Length of a job, its checkpoints, spares and recovery.

    Attributes
    ----------
    days : float, optional
        Length of the run [d]; by default 90 days, or as long as ``tokens`` take.
    tokens : int, optional
        Tokens that the job trains on, instead of a length.
    interval_s : float, optional
        Computing time between checkpoints [s]; by default the best that the search finds.
    spares : int, optional
        Units that wait to replace failed ones; by default enough for 99.9 % of the time.
    rates : FailureRates, optional
        Causes of failures; by default the catalogue's.
    repair_s, restart_s : float, optional
        Mean time of a repair; time from a detected failure to the first step [s].
    blocking : bool
        Whether a checkpoint stops the job until it is written to the store. By default the job
        stops only until the state is copied to host memory.
    peers : bool
        Whether units keep copies of each other's state in host memory. Checkpoints are then written
        to the store from there, at the catalogue's interval, without stopping the job.
    warm : bool
        Whether spares wait with their processes started.
    stragglers : bool
        Whether servers turn slow.
    elastic : bool
        Whether the job goes on with fewer data-parallel replicas while failed ones are replaced.
    seed, runs : int
        Seed of all random draws; number of runs from whose spread the interval comes.

    Raises
    ------
    InputError
        For fewer than one run, and for settings that exclude each other.
    """

    days: float | None = None
    tokens: int | None = None
    interval_s: float | None = None
    spares: int | None = None
    rates: FailureRates | None = None
    repair_s: float | None = None
    restart_s: float | None = None
    blocking: bool = False
    peers: bool = False
    warm: bool = False
    stragglers: bool = True
    elastic: bool = False
    seed: Seed = 0
    runs: int = RUNS

    def __post_init__(self) -> None:
        check_fields(JobPlan, {"seed": self.seed})
        for name in ("interval_s", "repair_s", "restart_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name} is {value}; it must be a number of 0 or more.")
        if not 1 <= self.runs <= 1000:
            raise InputError(f"{self.runs} runs; there must be between 1 and 1,000.")
        if self.days is not None and self.tokens is not None:
            raise InputError(
                f"{self.days:g} days and {self.tokens:,} tokens both state the length of the run; "
                "leave out one of them."
            )
        if self.tokens is not None and self.tokens < 1:
            raise InputError(f"a run of {self.tokens:,} tokens; there must be at least 1.")
        if self.blocking and self.peers:
            raise InputError("a checkpoint is blocking or with peers; use one of them.")
        if self.elastic and not self.peers:
            raise InputError(
                "--elastic needs the state of a lost replica in other units' memory: add "
                "--checkpoint peer."
            )
        if self.warm and self.restart_s is not None:
            raise InputError(
                f"a restart of {self.restart_s:g} s is what it is with any spares; leave out "
                "--restart, or --standby warm."
            )


LARGEST_SPARES = 10**6


KEYWORDS = tuple(sorted(described(JobInputs).keys() - {field.name for field in fields(JobPlan)}))
"""Options that are not fields of a plan."""


def plan_with(plan: JobPlan, keywords: Mapping[str, Any], cluster: Cluster, chips: int) -> JobPlan:
    """Return a plan with some fields changed, by their names or as options of ``run-job``."""
    names = [*(field.name for field in fields(JobPlan)), *KEYWORDS]
    changes: dict[str, Any] = {}
    check_names("run_job", keywords, ["step", "plan", *names])
    for name, value in keywords.items():
        if name not in (*KEYWORDS, "spares", "tokens"):
            changes[name] = value
        elif value is not None:
            changes |= _read(name, value, cluster, chips)
    check_fields(JobPlan, changes)
    return replace(plan, **changes)


def _read(name: str, value: Any, cluster: Cluster, chips: int) -> dict[str, Any]:
    text = str(value)
    if name == "spares":
        return {"spares": None if text == AUTO else _spares(text)}
    if name == "tokens":
        return {"tokens": parse_count(text, "--tokens")}
    if name == "checkpoint_interval":
        seconds = None if text == AUTO else _seconds(text, "--checkpoint-interval", least=0.001)
        return {"interval_s": seconds}
    if name == "checkpoint":
        check_choice("--checkpoint", text, CHECKPOINTS)
        return {"blocking": text == "blocking", "peers": text == "peer"}
    if name == "standby":
        check_choice("--standby", text, STANDBYS)
        return {"warm": text == "warm"}
    if name == "failures":
        return {"rates": read_failures(text, cluster, chips)}
    return {f"{name}_s": _seconds(text, f"--{name}")}


def _seconds(text: str, name: str, least: float = 0.0) -> float:
    """Read a time with its unit; a bare number is seconds."""
    bare = text.strip().replace(".", "", 1)
    seconds = parse_seconds(f"{text}s" if bare.isdecimal() else text, name)
    if seconds < least:
        raise InputError(f"{name} {text} must be at least {least:g} s, such as 10min.")
    return seconds


def _spares(text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 20 or int(text) > LARGEST_SPARES:
        raise InputError(
            f"--spares {text!r} must be a whole number from 0 to {LARGEST_SPARES:,}, or auto."
        )
    return int(text)
