"""Numbers of a long training job on which its failures and checkpoints depend."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from topologies.catalogue.catalogue import Catalogue
from topologies.support.errors import InputError
from workloads.job.causes import FailureRates
from workloads.job.checkpoints import PeerCopies
from workloads.options.job import Times
from workloads.options.windows import Window

PARTS = (
    "useful", "lost_work", "checkpoint", "restart", "detection", "waiting_for_spares", "stragglers",
    "fewer_replicas",
)  # fmt: skip
"""Parts into which the time of a job is divided."""
MAINTENANCE = "maintenance"  # one more part of a job with planned downtime
MOST_FAILURES = 500_000
"""Most failures of one run that is simulated: each takes about ten microseconds."""
MOST_CHECKPOINTS = 5_000_000
LONGEST_S = 20 * 365.25 * 86400


@dataclass(frozen=True)
class Recovery:
    """Times of the phases that follow a failure [s]."""

    restart_s: float  # time from a detected failure, once all units are there, to the first step
    # explicit_s, timeout_s: time until a failure is detected: by a reported error, and by a
    # time-out of a hang
    explicit_s: float
    timeout_s: float
    hang_share: float
    repair_s: float  # mean time of a repair; the times are exponential
    # Time by which a restart is shorter if all spares that it needs have their processes started
    warm_saves_s: float = 0.0

    @property
    def detection_s(self) -> float:
        """Mean time until a failure is detected [s]."""
        return self.hang_share * self.timeout_s + (1 - self.hang_share) * self.explicit_s

    def draw_detection_s(self, rng: np.random.Generator) -> float:
        """Draw the time until a failure is detected [s]."""
        return self.timeout_s if rng.random() < self.hang_share else self.explicit_s

    @classmethod
    def from_catalogue(cls, catalogue: Catalogue, read_s: float, *, warm: bool = False) -> Recovery:
        """Read parts ``job.detection``, ``job.restart`` and ``fleet.failure`` of the catalogue."""
        start_s = catalogue.value("job.restart", "start")
        saved_s = max(0.0, start_s - catalogue.value("job.restart", "warm")) if warm else 0.0
        return cls(
            restart_s=start_s + read_s,
            warm_saves_s=saved_s,
            explicit_s=catalogue.value("job.detection", "explicit"),
            timeout_s=catalogue.value("job.detection", "timeout"),
            hang_share=catalogue.value("job.detection", "hang_share"),
            repair_s=catalogue.value("fleet.failure", "repair"),
        )

    def with_stated(self, times: Times) -> Recovery:
        """Return the same times, but for those that are stated."""
        stated = {"restart_s": times.restart_s, "repair_s": times.repair_s}
        return replace(self, **{name: s for name, s in stated.items() if s is not None})


@dataclass(frozen=True)
class Stragglers:
    """Servers that turn slow, and slow the whole job until they are found and replaced."""

    per_s: float = 0.0  # rate at which servers of the job turn slow [1/s]
    slower: float = 0.0  # share by which a step takes longer while any server is slow, such as 0.1
    # Time until a slow server is found [s]; a spare replaces it at the next checkpoint
    found_after_s: float = 0.0

    @classmethod
    def from_catalogue(cls, catalogue: Catalogue, servers: float) -> Stragglers:
        """Read part ``job.straggler`` of the catalogue for a job on ``servers`` servers."""
        return cls(
            per_s=servers / catalogue.value("job.straggler", "mtbf"),
            slower=catalogue.value("job.straggler", "slower"),
            found_after_s=catalogue.value("job.straggler", "found_after"),
        )


@dataclass(frozen=True)
class Replicas:
    """Data-parallel replicas, without some of which a job goes on."""

    # Groups of replicas; those of one group have parts on the same units, and are lost together
    groups: int
    units: int
    microbatches: int  # microbatches of a replica in a step while all are there
    # Time in which the replicas form their groups anew, without some or with more [s]
    resize_s: float
    scaled: bool = False  # whether a step without some has fewer sequences, in the same time

    def out(self, units: int) -> int:
        """Return the groups that are left out without some units, which replace each other."""
        return min(self.groups, -(-max(0, units) // self.units))

    def slower(self, out: int) -> float:
        """Return the share by which a step takes longer without some groups, for the same tokens.

        The others divide the batch, and the one with the most microbatches sets the pace. A batch
        that is scaled leaves the sequences of these groups out.

        Ten groups of eight microbatches: nine of them do 80, so one does nine.

        >>> Replicas(10, 1, 8, 60.0).slower(1)
        0.125
        """
        if out >= self.groups:
            return math.inf
        if self.scaled:
            return out / (self.groups - out)
        most = -(-self.groups * self.microbatches // (self.groups - out))
        return most / self.microbatches - 1

    def cost_s(self, restart_s: float, mtbf_s: float, out: int) -> float:
        """Return the time that going on without groups loses until they are back [s]."""
        share = 1 - 1 / (1 + self.slower(out))
        return self.resize_s + share * restart_s + min(self.resize_s, share * mtbf_s)


@dataclass(frozen=True)
class Job:
    """A training job of weeks.

    Attributes
    ----------
    rates : FailureRates
    recovery : Recovery
    interval_s : float
        Computing time between two checkpoints [s].
    stall_s : float
        Time for which a checkpoint stops the job [s].
    write_s : float
        Time after the stall in which the checkpoint is written while the job computes; it cannot be
        used before the end of the write [s].
    units : int
        Units (servers, or scale-up domains) that the job runs on.
    spares : int
        Further units that wait to replace failed ones.
    span_s : float
        Length of the run [s].
    stragglers : Stragglers
    peers : PeerCopies, optional
        Copies in the host memory of other units; by default only the store has checkpoints.
    replicas : Replicas, optional
        Replicas without some of which the job goes on; by default a failure stops all of them until
        it has been replaced.
    without : tuple of float
        Share by which a step takes longer by the plan of a job that goes on without one unit, two
        and so on where no spare is left; beyond these, and by default, it waits.
    windows : tuple of Window
        Planned downtime, for which units leave at a checkpoint.

    Raises
    ------
    InputError
        For times below 0, an interval or a span that is not above 0, and more failures or
        checkpoints than can be simulated.
    """

    rates: FailureRates
    recovery: Recovery
    interval_s: float
    stall_s: float
    write_s: float
    units: int
    spares: int
    span_s: float
    stragglers: Stragglers = field(default_factory=Stragglers)
    peers: PeerCopies | None = None
    replicas: Replicas | None = None
    without: tuple[float, ...] = ()
    windows: tuple[Window, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.span_s <= LONGEST_S:
            remedy = (
                "Use more chips for so much, or do less." if self.span_s > 0 else "Lengthen it."
            )
            raise InputError(
                f"a run of {self.span_s / 86400:g} days; it must be above 0 and at most "
                f"{LONGEST_S / 86400:,.0f} days. {remedy}"
            )
        if not self.interval_s >= 0.001:
            raise InputError(f"a checkpoint every {self.interval_s:g} s; it must be at least 1 ms.")
        times = (self.stall_s, self.write_s, self.recovery.restart_s, self.recovery.repair_s)
        if any(not 0 <= time < math.inf for time in (*times, self.recovery.detection_s)):
            raise InputError("times of checkpoints and recovery must be finite and 0 or more.")
        if self.peers is not None and self.units < 2:
            raise InputError(
                f"copies with peers on {self.units} unit: a pair needs two. Use more chips, or "
                "--checkpoint async."
            )
        for window in self.windows:
            window.check(self.units)
        if self.spares < 0:
            raise InputError(f"{self.spares} spares; there must be 0 or more.")
        self._check_events()

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts into which its time is divided."""
        return (*PARTS, MAINTENANCE) if self.windows else PARTS

    def waits_s(self, lacking: int, away: int) -> float:
        """Return the time until so many of the units in repair are expected back [s]."""
        return self.recovery.repair_s * sum(1 / (away - back) for back in range(lacking))

    def goes_without(self, lacking: int, waits_s: float) -> bool:
        """Return whether another plan gains more, until units are back, than taking them in."""
        if lacking > len(self.without):
            return False
        return waits_s / (1 + self.without[lacking - 1]) > self.recovery.restart_s

    def _check_events(self) -> None:
        failures = self.span_s * (self.rates.per_s + self.stragglers.per_s)
        if failures > MOST_FAILURES:
            raise InputError(
                f"{failures:,.0f} failures are expected in {self.span_s / 86400:g} days, and "
                f"{MOST_FAILURES:,} can be simulated. Use fewer --failures, chips or --days."
            )
        checkpoints = self.span_s / (self.interval_s + self.stall_s)
        if checkpoints > MOST_CHECKPOINTS:
            raise InputError(
                f"{checkpoints:,.0f} checkpoints in {self.span_s / 86400:g} days, and "
                f"{MOST_CHECKPOINTS:,} can be simulated. Use a longer --checkpoint-interval."
            )


@dataclass(frozen=True)
class Outcome:
    """Result of one simulated run."""

    parts_ms: Mapping[str, int]  # time of each part [ms]; the sum is the length of the run
    failures: Mapping[str, int]
    checkpoints: int  # checkpoints whose stall was not interrupted by a failure
    replaced: int
    spares_used: int  # most units in repair at one time
    # Number of times that both units with a part of the state were out, so that it had to be read
    # from the store
    pairs_lost: int = 0
    # Time at the end of each slice of the run, and the time of each part until then [ms]. Work that
    # no checkpoint holds yet is not in any part
    slices: tuple[tuple[int, Mapping[str, int]], ...] = ()

    @property
    def span_ms(self) -> int:
        """Length of the run [ms]."""
        return sum(self.parts_ms.values())

    @property
    def goodput(self) -> float:
        """Useful share of time."""
        return self.parts_ms["useful"] / self.span_ms

    @property
    def shares(self) -> dict[str, float]:
        """Share of time of each part; the shares sum to 1."""
        return {part: ms / self.span_ms for part, ms in self.parts_ms.items()}


DAYS = 90.0  # default length of a run [d]
