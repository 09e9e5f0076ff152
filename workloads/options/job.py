"""Options of a training job of weeks, each declared once for ``run-job`` and ``cs.run_job``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from topologies.support.arguments import check_fields
from topologies.support.errors import InputError, check_choice
from topologies.support.options import documented, option, setting
from topologies.support.units import parse_count, parse_seconds
from workloads.options.windows import Window, window_from

AUTO = "auto"
CHECKPOINTS = ("async", "blocking", "peer")
STANDBYS = ("cold", "warm")
BATCHES = ("kept", "scaled")


LARGEST_SPARES = 10**6
LEAST_DAYS, MOST_DAYS = 1e-3, 36_525.0  # of a deadline: a minute and a half, and a century
REPAIR = option("Mean time of a repair, such as 4h", default="the catalogue's", plain="s")
RESTART = option(
    "Time from a detected failure to the first step, such as 10min",
    default="the catalogue's start and the time to read the checkpoint",
    plain="s",
)
TOKENS = "Tokens that the job trains on, such as 15T or 300B"
BUDGET = "USD that the job may cost, its spare chips included, such as 500k or 2M"


class Times:
    """Stated times of options that both a job and a queue of jobs have; None by default [s]."""

    @property
    def interval_s(self) -> float | None:
        """Time between checkpoints."""
        return self._seconds("checkpoint_interval", least=0.001)

    @property
    def repair_s(self) -> float | None:
        """Mean time of a repair."""
        return self._seconds("repair")

    @property
    def restart_s(self) -> float | None:
        """Time from a detected failure to the first step."""
        return self._seconds("restart")

    def _seconds(self, field: str, least: float = 0.0) -> float | None:
        text: Any = getattr(self, field)
        if text == getattr(type(self), field):
            return None
        option = f"--{field.replace('_', '-')}"
        seconds = parse_seconds(text, option)
        if not least <= seconds < math.inf:
            raise InputError(f"{option} {text} must be at least {least:g} s, such as 10min.")
        return seconds

    def check_times(self) -> None:
        """Refuse times that cannot be read."""
        _ = self.interval_s, self.repair_s, self.restart_s


@dataclass(frozen=True)
class TokensInputs:
    """Length of a whole job, where a command is about one step of it."""

    tokens: str | None = setting(
        None,
        f"{TOKENS}: the answer adds its days, price and energy, with failures and checkpoints "
        "as run-job has them by default",
    )
    budget: str | None = setting(
        None, f"{BUDGET}, in place of --tokens: the answer adds the tokens and days that it buys"
    )

    def __post_init__(self) -> None:
        check_tokens(self.tokens, budget=self.budget)
        usd_of(self.budget)

    @property
    def length(self) -> dict[str, str]:
        """Length of the job as keywords of ``run_job``; empty where none is stated."""
        lengths = {"tokens": self.tokens, "budget": self.budget}
        return {name: text for name, text in lengths.items() if text is not None}


def usd_of(budget: str | None) -> int | None:
    """Return a budget in USD; None for none."""
    return (
        None if budget is None else parse_count(budget.removeprefix("$"), "--budget", "500k or 2M")
    )


def budget_entry(budget: str | None) -> dict[str, int]:
    """Return the entry of a job's document with its budget [USD]; empty without one."""
    return {"budget_usd": usd} if (usd := usd_of(budget)) else {}


def check_tokens(tokens: object, **others: object) -> None:
    """Refuse a job whose tokens are stated and its length in another way too."""
    for name, length in others.items():
        if tokens is not None and length is not None:
            raise InputError(
                f"--tokens {tokens} and --{name} {length} each state the length of the job. Keep "
                "one."
            )


@documented
@dataclass(frozen=True)
class JobInputs(Times):
    """Length of the job, its checkpoints, spares and failures."""

    days: float | None = setting(
        None, "Length of the run", unit="d", least=0, default="90, or as long as --tokens take"
    )
    tokens: str | None = setting(
        None, f"{TOKENS}, in place of a length", default="as many as the length allows"
    )
    budget: str | None = setting(
        None, f"{BUDGET}: the run lasts as long as that pays for, at most --days"
    )
    checkpoint_interval: str = setting(
        AUTO,
        "Computing time between checkpoints, such as 30min; auto searches for the best",
        metavar="auto|TIME",
        plain="s",
    )
    checkpoint: str = setting(
        "async",
        "Checkpoints: the job stops until the state is copied to host memory (async) or "
        "written to the store (blocking), or units keep copies of each other's state (peer)",
        choices=CHECKPOINTS,
    )
    checkpoint_stall: str | None = setting(
        None,
        "Time for which an asynchronous checkpoint stops the job, such as 5s",
        default="the time to copy each chip's part to host memory, and the catalogue's",
        plain="s",
    )
    spares: str = setting(
        AUTO,
        "Spare units (scale-up domains, or servers of large ones); auto for as many as "
        "suffice 99.9 % of the time",
        metavar="auto|N",
    )
    standby: str = setting(
        "cold",
        "Whether spares start their processes when needed (cold), or have started them (warm)",
        choices=STANDBYS,
    )
    failures: str | None = setting(
        None,
        "Failures of a chip in a year by all causes, the time between those of all chips, such as "
        "3h, or a file with columns cause, per, mtbf, replaces, and optionally units (a burst), "
        "found_after (silent corruption), again and again_after (repairs in vain); or several "
        "joined by commas, such as catalogue,bursts.csv",
        metavar="catalogue|NUMBER|TIME|FILE.csv",
        default="the catalogue's causes",
    )
    repair: str | None = field(default=None, metadata=REPAIR)
    restart: str | None = field(default=None, metadata=RESTART)
    stragglers: bool = setting(
        True, "Simulate servers that turn slow and stay so until they are replaced"
    )
    elastic: bool = setting(
        False,
        "Go on with fewer data-parallel replicas while failed ones are replaced; needs "
        "--checkpoint peer",
    )
    elastic_batch: str = setting(
        "kept",
        "Batch of steps without some replicas: the others share all of it (kept), or it is "
        "smaller in proportion (scaled)",
        choices=BATCHES,
    )
    replan: bool = setting(
        False,
        "Go on with another plan, or fewer replicas, from the last checkpoint where no spare is "
        "left, until enough units are back",
    )
    maintenance: tuple[str, ...] = setting(
        (),
        "Planned downtime: out/30d+4h=2 takes 2 units out for 4 h every 30 days, out@7d+4h=2 once, "
        "and roll/90d+30min=2 all units in turn, two at a time; may be repeated",
        metavar="WINDOW",
        default="none",
    )
    runs: int = setting(
        8,
        "Number of runs with different seeds; for the interval as many are added whose failure "
        "rates are drawn",
        least=1,
        most=1000,
    )

    def __post_init__(self) -> None:
        check_fields(type(self), vars(self))
        self.check_times()
        check_choice("--checkpoint", self.checkpoint, CHECKPOINTS)
        if self.stall_s is not None and self.checkpoint != "async":
            raise InputError(
                f"--checkpoint-stall {self.checkpoint_stall} is for asynchronous checkpoints; "
                f"leave it out, or --checkpoint {self.checkpoint}."
            )
        check_choice("--standby", self.standby, STANDBYS)
        check_choice("--elastic-batch", self.elastic_batch, BATCHES)
        text = self.spares.strip()
        whole = text.isdecimal() and len(text) <= 20 and int(text) <= LARGEST_SPARES
        if self.spares != AUTO and not whole:
            raise InputError(
                f"--spares {self.spares!r} must be a whole number from 0 to {LARGEST_SPARES:,}, or "
                "auto."
            )
        check_tokens(self.tokens, days=self.days, budget=self.budget)
        _ = self.goal, self.budget_usd
        if self.elastic and not self.peers:
            raise InputError(
                "--elastic needs the state of a lost replica in other units' memory: add "
                "--checkpoint peer."
            )
        if self.elastic_batch != "kept" and not self.elastic:
            raise InputError("--elastic-batch scaled is for replicas that go on; add --elastic.")
        if self.replan and self.elastic:
            raise InputError(
                "--elastic goes on with fewer replicas where no spare is left; leave out --replan."
            )
        _ = self.windows
        if self.standby == "warm" and self.restart_s is not None:
            raise InputError(
                f"--restart {self.restart_s:g}s states the time that --standby warm would shorten; "
                "leave out --restart, or --standby warm."
            )

    @property
    def goal(self) -> int | None:
        """Tokens that the job trains on, in place of a length."""
        return None if self.tokens is None else parse_count(self.tokens, "--tokens")

    @property
    def budget_usd(self) -> int | None:
        """Price of the job, in place of a length [USD]."""
        return usd_of(self.budget)

    @property
    def windows(self) -> tuple[Window, ...]:
        """Planned downtime."""
        return tuple(window_from(text) for text in self.maintenance)

    @property
    def stall_s(self) -> float | None:
        """Stated time for which an asynchronous checkpoint stops the job."""
        return self._seconds("checkpoint_stall")

    @property
    def peers(self) -> bool:
        """Return whether units keep copies of each other's state in host memory."""
        # Checkpoints are then written to the store from there, without stopping the job.
        return self.checkpoint == "peer"


@dataclass(frozen=True)
class HazardInputs(Times):
    """Failures, checkpoints, neighbours and teams of jobs in a queue."""

    failures: str | None = setting(
        None,
        "Failures of servers: the catalogue's causes (catalogue), failures of a chip in a year by "
        "all causes, the time between those of all chips, such as 3h, or a file with columns "
        "cause, per, mtbf, replaces",
        metavar="catalogue|NUMBER|TIME|FILE.csv",
        default="none",
    )
    checkpoint_interval: str = setting(
        AUTO,
        "Time between checkpoints, to which a stopped job goes back, such as 30min; auto for "
        "Daly's estimate",
        metavar="auto|TIME",
        plain="s",
    )
    restart: str | None = field(default=None, metadata=RESTART)
    repair: str | None = field(default=None, metadata=REPAIR)
    neighbours: bool = setting(
        False, "Let jobs with a model slow each other on full links, as share simulates them"
    )
    quota: tuple[str, ...] = setting(
        (),
        "Chips of a team, repeated for each, or a file of Kueue's ClusterQueues; others borrow "
        "what is idle, and preempt takes it back",
        metavar="TEAM=CHIPS|FILE",
        default="none",
    )
    reserve: tuple[str, ...] = setting(
        (),
        "Whole scale-up domains for a team alone, such as research=64@24h+12h: from 24 h after the "
        "first arrival, or a date, for 12 h; may be repeated",
        metavar="TEAM=CHIPS@START+TIME",
        default="none",
    )

    def __post_init__(self) -> None:
        self.check_times()
