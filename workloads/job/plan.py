"""Plan of a job: its length, checkpoints, spares and recovery."""

from __future__ import annotations

import math
from dataclasses import dataclass

from topologies.arguments import Seed, check_fields
from topologies.errors import InputError
from workloads.job.causes import FailureRates

DAYS = 90.0
"""Default length of a run [d]."""
RUNS = 8
"""Default number of runs from whose spread the interval comes."""


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
        if self.warm and self.restart_s is not None:
            raise InputError(
                f"a restart of {self.restart_s:g} s is what it is with any spares; leave out "
                "--restart, or --standby warm."
            )
