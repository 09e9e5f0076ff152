"""Plan of a job: its length, checkpoints, spares and recovery."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.errors import InputError
from workloads.job.causes import FailureRates

RUNS = 8
"""Default number of runs from whose spread the interval comes."""


@dataclass(frozen=True)
class JobPlan:
    """Length of a job, its checkpoints, spares and recovery.

    Attributes
    ----------
    days : float
        Length of the run [d].
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

    days: float = 90.0
    interval_s: float | None = None
    spares: int | None = None
    rates: FailureRates | None = None
    repair_s: float | None = None
    restart_s: float | None = None
    blocking: bool = False
    peers: bool = False
    warm: bool = False
    stragglers: bool = True
    seed: int = 0
    runs: int = RUNS

    def __post_init__(self) -> None:
        if not 1 <= self.runs <= 1000:
            raise InputError(f"{self.runs} runs; there must be between 1 and 1,000.")
        if self.blocking and self.peers:
            raise InputError("a checkpoint is blocking or with peers; use one of them.")
        if self.warm and self.restart_s is not None:
            raise InputError(
                f"a restart of {self.restart_s:g} s is what it is with any spares; leave out "
                "--restart, or --standby warm."
            )
