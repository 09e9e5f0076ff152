"""Options of a training job of weeks, each declared once for ``run-job`` and ``cs.run_job``."""

from __future__ import annotations

from dataclasses import dataclass, field

from topologies.options import option, setting

AUTO = "auto"
CHECKPOINTS = ("async", "blocking", "peer")
STANDBYS = ("cold", "warm")
BATCHES = ("kept", "scaled")


REPAIR = option("Mean time of a repair, such as 4h", default="the catalogue's")
RESTART = option(
    "Time from a detected failure to the first step, such as 10min",
    default="the catalogue's start and the time to read the checkpoint",
)
TOKENS = "Tokens that the job trains on, such as 15T or 300B"


@dataclass(frozen=True)
class TokensInputs:
    """Length of a whole job, where a command is about one step of it."""

    tokens: str | None = setting(
        None,
        f"{TOKENS}: the answer adds its days, price and energy, with failures and checkpoints "
        "as run-job has them by default",
    )


@dataclass(frozen=True)
class JobInputs:
    """Length of the job, its checkpoints, spares and failures."""

    days: float | None = setting(
        None, "Length of the run", unit="d", least=0, default="90, or as long as --tokens take"
    )
    tokens: str | None = setting(
        None,
        f"{TOKENS}, in place of a length",
        default="as many as the length allows",
    )
    checkpoint_interval: str = setting(
        AUTO,
        "Computing time between checkpoints, such as 30min; auto searches for the best",
        metavar="auto|TIME",
    )
    checkpoint: str = setting(
        "async",
        "Checkpoints: the job stops until the state is copied to host memory (async) or "
        "written to the store (blocking), or units keep copies of each other's state (peer)",
        choices=CHECKPOINTS,
    )
    spares: str = setting(
        AUTO,
        "Spare units (scale-up domains, or servers of large ones); auto for enough in 99.9 % "
        "of the time",
        metavar="auto|N",
    )
    standby: str = setting(
        "cold",
        "Whether spares start their processes when needed (cold), or have started them (warm)",
        choices=STANDBYS,
    )
    failures: str | None = setting(
        None,
        "Failures of a chip in a year by all causes, or a file with columns cause, per, mtbf, "
        "replaces, and perhaps units (a burst), found_after (silent), again and again_after "
        "(repairs in vain); joined by commas, as in catalogue,bursts.csv",
        metavar="catalogue|NUMBER|FILE.csv",
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
    runs: int = setting(
        8,
        "Number of runs with different seeds; as many more with drawn failure rates join them "
        "for the interval",
        least=1,
        most=1000,
    )


@dataclass(frozen=True)
class HazardInputs:
    """Failures, checkpoints, neighbours and teams of jobs in a queue."""

    failures: str | None = setting(
        None,
        "Failures of servers: the catalogue's causes (catalogue), failures of a chip in a year by "
        "all causes, or a file with columns cause, per, mtbf, replaces",
        metavar="catalogue|NUMBER|FILE.csv",
        default="none",
    )
    checkpoint_interval: str = setting(
        AUTO,
        "Time between checkpoints, to which a stopped job goes back, such as 30min; auto for "
        "Daly's estimate",
        metavar="auto|TIME",
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
