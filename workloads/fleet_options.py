"""Options of a fleet: its demand, its machines, the policy, limits, the night, and money.

``cluster-sim fleet`` and ``lend`` make options of the described fields, ``cs.run_fleet`` and
``cs.lend`` take the same words as keywords. Nothing large is imported here, so that a command line
knows its options at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from topologies.options import option

SPECULATION = (
    "Tokens that a draft proposes for one pass to verify, the probability that one is accepted, "
    "and the draft: a model, or its share of the model's time (0: a look-up)"
)
"""Help text of ``--speculate``, which a replica and a fleet have alike."""
MOST_DAYS = 36_525.0
MOST = 1e9
"""Keeps infinity out of options that are finite numbers."""


@dataclass(frozen=True)
class DemandInputs:
    """Requests that arrive, and when."""

    demand: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "Demand by name (`cluster-sim list demands`) or file; may be repeated",
            metavar="FILE.csv|NAME",
            default="azure-code",
        ),
    )
    days: float | None = field(
        default=None,
        metadata=option("Length of the run [days]", least=0, most=MOST_DAYS, default="up to 7"),
    )
    start_day: float = field(
        default=0.0,
        metadata=option(
            "Day of the demand on which the run begins; policies know the days before it",
            least=0,
            most=MOST_DAYS,
        ),
    )
    service: str | None = field(
        default=None, metadata=option("Keep one service of a demand of several")
    )
    weight: tuple[float, ...] = field(
        default=(),
        metadata=option("Share of each demand, in their order", least=0, most=MOST),
    )
    average: str = field(
        default="1min",
        metadata=option("Spread the demand evenly over periods of this length, such as 1h"),
    )
    noise: str = field(
        default="none",
        metadata=option("Noise of arrivals: none, measured, or a relative spread such as 0.1"),
    )
    what_if: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "Change of the scaled demand: growth=30%, spike@2d02:00x3/30min, "
            "failover@3d12:00+12h, launch@2d09:00=30% or monday; repeated, scenarios side by side",
            metavar="CHANGE",
        ),
    )
    scale_to_peak: float | None = field(
        default=None,
        metadata=option(
            "Scale the demand so that its busiest hour needs this share of the fleet",
            default="0.9 for bundled demands, counts of files unchanged",
        ),
    )
    peak: float | None = field(default=None, metadata=option("Older name of --scale-to-peak"))
    batch_share: str | None = field(
        default=None,
        metadata=option(
            "Share of the requests that may wait, such as 20%: a batch tier on units that serving "
            "does not need",
            metavar="SHARE",
            default="none",
        ),
    )
    batch_demand: str | None = field(
        default=None,
        metadata=option(
            "Requests that may wait beside the demand, as --demand takes them",
            metavar="FILE.csv|NAME",
            default="none",
        ),
    )
    batch_deadline: str = field(
        default="24h",
        metadata=option("Time within which a batch request is answered, or expires"),
    )

    @property
    def peak_share(self) -> float | None:
        """Share of the fleet that the busiest hour is scaled to, if one was asked for."""
        return self.peak if self.scale_to_peak is None else self.scale_to_peak


@dataclass(frozen=True)
class NightInputs:
    """The night: until when, at which service level, how sure."""

    until: str = field(
        default="06:00",
        metadata=option("Time of day (UTC) at which all units serve again", metavar="HH:MM"),
    )
    begin: str | None = field(
        default=None,
        metadata=option(
            "Time of day (UTC) at which lending begins",
            name="from",
            metavar="HH:MM",
            default="the end of the history",
        ),
    )
    confidence: str = field(
        default="95%", metadata=option("Share of nights on which the service level is kept")
    )
    window: str = field(
        default="1h", metadata=option("Time between two changes of the number of lent units")
    )


@dataclass(frozen=True)
class FleetInputs:
    """The fleet, the model that it serves, and the jobs that it trains."""

    cluster: str = field(
        default="rainier",
        metadata=option("Cluster whose scale-up domains change between serving and training"),
    )
    model: str = field(
        default="llama-3.1-405b",
        metadata=option(
            "Model that is served, and trained by the default jobs; several with shares of the "
            "requests as llama-3.1-405b=20%,llama-3.1-8b=80%"
        ),
    )
    tp: int | None = field(
        default=None,
        metadata=option(
            "Tensor-parallel degree of a replica", least=1, default="a server, or more to fit"
        ),
    )
    precision: str = field(
        default="auto",
        metadata=option(
            "Precision of serving: auto is bf16, or fp8 where the weights do not fit",
            choices=("auto", "bf16", "fp8", "mxfp8", "fp4", "mxfp4"),
        ),
    )
    slo: str = field(
        default="ttft=6s,tpot=175ms",
        metadata=option(
            "Limits of time to first token and time per output token, and the share of requests "
            "that keeps them, such as ttft=2s,tpot=50ms,share=99.9%"
        ),
    )
    chunk: int | None = field(
        default=None,
        metadata=option(
            "Tokens of a chunk of prefill; 0 processes whole prompts",
            least=0,
            default="512, of mixtures 8192",
        ),
    )
    prefix_cache: str | None = field(
        default=None,
        metadata=option(
            "Share of prompts' tokens that a replica's prefix cache holds once it is full, such as "
            "50%; it is empty after a change of role",
            metavar="SHARE",
            default="none",
        ),
    )
    speculate: str | None = field(
        default=None,
        metadata=option(
            SPECULATION,
            metavar="TOKENS:ACCEPTANCE[:DRAFT]",
            default="none",
        ),
    )
    disaggregate: str | None = field(
        default=None,
        metadata=option(
            "Prefill and decode replicas of groups that fill a unit, or take several; keys and "
            "values go over",
            metavar="P:D",
            default="every replica does both",
        ),
    )
    unit_rate: float | None = field(
        default=None,
        metadata=option(
            "Requests that a unit serves, in place of the model's capacity",
            unit="requests/s",
        ),
    )
    training: Path | None = field(
        default=None,
        metadata=option(
            "Training jobs", metavar="FILE.csv", default="long runs, gangs, evaluation"
        ),
    )
    post_training: str | None = field(
        default=None,
        metadata=option(
            "Run the default post-training jobs as reinforcement learning: rollouts wait for the "
            "newest weights, or use those of one step before",
            choices=("lockstep", "one-behind"),
            default="gangs that train",
        ),
    )
    failures: str = field(
        default="on",
        metadata=option(
            "Failures: on takes servers out one by one, domains also racks, scale-up domains and "
            "power feeds, and lets optical links, switches and software stop training",
            choices=("on", "off", "domains"),
        ),
    )
    cache: Path | None = field(
        default=None,
        metadata=option("Keep capacity tables in this folder, not among kept files", metavar="DIR"),
    )


@dataclass(frozen=True)
class PolicyInputs:
    """The policy that decides which units serve, its settings, and its limits."""

    policy: str = field(
        default="forecast",
        metadata=option(
            "Policy: static, clock, threshold, forecast, mpc, price, power-cap, oracle, "
            "mpc-oracle, or FILE.py with policy()"
        ),
    )
    headroom: float | None = field(
        default=None,
        metadata=option("Capacity above the need, as a share of the need", least=0, most=MOST),
    )
    hysteresis: float | None = field(
        default=None,
        metadata=option(
            "Load below which threshold gives a unit up, relative; 0 follows the load",
            least=0,
            most=MOST,
        ),
    )
    hold: str | None = field(
        default=None,
        metadata=option("Time that a unit stays idle before threshold gives it up, such as 10min"),
    )
    quantile: float = field(
        default=0.999,
        metadata=option("Quantile of its past errors that forecast covers", least=0, most=1),
    )
    night: str = field(default="0-8", metadata=option("Hours (UTC) that clock takes for the night"))
    night_share: float = field(
        default=0.5,
        metadata=option("Share of the day's units that clock keeps at night", least=0, most=1),
    )
    static_units: float | None = field(
        default=None,
        metadata=option("Units that serve under static", least=0, most=MOST),
    )
    price_share: float = field(
        default=0.5,
        metadata=option(
            "Share of the coming day, the cheapest, in which price trains; mpc: of the unit-time "
            "that serving leaves",
            least=0,
            most=1,
        ),
    )
    power_cap: float | None = field(
        default=None,
        metadata=option(
            "Draw of the site that power-cap and mpc keep to", unit="MW", least=0, most=MOST
        ),
    )
    cap: int = field(default=0, metadata=option("Most units that serve; 0 for all", least=0))
    changes_per_minute: int = field(
        default=0,
        metadata=option("Changes that the control plane starts in a minute; 0: any", least=0),
    )
    lease: str = field(
        default="0s", metadata=option("Least time for which units are lent to training")
    )
    notice: str = field(
        default="inf",
        metadata=option("Notice that training gets before units leave; inf waits for a checkpoint"),
    )
    compare: bool = field(
        default=True, metadata=option("Run oracle and static as well, for comparison")
    )


@dataclass(frozen=True)
class LimitInputs:
    """Limits of role changes, and the time that one takes."""

    change_time: str | None = field(
        default=None,
        metadata=option(
            "Time that every role change takes, such as 5min, 0s or inf",
            default="the sum of its steps in the catalogue",
        ),
    )
    weights: str = field(
        default="nvme",
        metadata=option(
            "Place that weights are loaded from", choices=("store", "nvme", "host", "peer")
        ),
    )
    floor: int = field(default=0, metadata=option("Fewest units that serve", least=0))
    block: int = field(default=1, metadata=option("Units that change together", least=1))
    reserve: int = field(default=0, metadata=option("Spare units that are never lent", least=0))


@dataclass(frozen=True)
class MoneyInputs:
    """Prices of electricity and the carbon of the grid."""

    price: Path | None = field(
        default=None,
        metadata=option(
            "Prices of electricity: columns hour or time, and usd_per_mwh", metavar="FILE.csv"
        ),
    )
    price_cap: float | None = field(
        default=None,
        metadata=option("Price above which nothing trains", unit="USD/MWh", most=MOST),
    )
    token_price: float = field(
        default=0.0,
        metadata=option(
            "Price at which served tokens are sold; 0: not given",
            unit="USD per million",
            least=0,
            most=MOST,
        ),
    )
    batch_discount: float | None = field(
        default=None,
        metadata=option(
            "Discount of batch requests, as a share of the price",
            least=0,
            most=1,
            default="the catalogue's, 0.5",
        ),
    )
    carbon: float = field(
        default=0.0,
        metadata=option(
            "Carbon intensity of the grid; 0: not given", unit="g/kWh", least=0, most=MOST
        ),
    )


@dataclass(frozen=True)
class Question:
    """All that a fleet is asked."""

    fleet: FleetInputs = field(default_factory=FleetInputs)
    demand: DemandInputs = field(default_factory=DemandInputs)
    policy: PolicyInputs = field(default_factory=PolicyInputs)
    limits: LimitInputs = field(default_factory=LimitInputs)
    money: MoneyInputs = field(default_factory=MoneyInputs)
