"""Options of a fleet and of lending, each declared once for commands, ``cs`` and policies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from topologies.support.errors import InputError, shown, suggestion
from topologies.support.options import described, setting
from topologies.support.units import parse_seconds

MOST_DAYS = 36_525.0  # longest run: a century of days
MOST = 1e9  # largest value of shares, counts, prices and powers
MOST_SLOTS = 100_000
"""Most requests that decode at once: hundreds of times those of a measured replica."""
SPECULATION = (
    "Tokens that a draft proposes for one pass to verify, the probability that each is accepted, "
    "and the draft: a model, or its time as a share of the model's (0, the default: "
    "a look-up)"
)
"""Help text of speculative decoding, which ``serve`` and ``fleet`` share."""
NEVER = ("inf", "never")
AUTO = "auto"
PRECISIONS = (AUTO, "bf16", "fp8", "mxfp8", "fp4", "mxfp4")


def seconds(text: str, option: str) -> float:
    """Read a duration; ``never`` and ``inf`` are infinite."""
    return math.inf if text.strip() in NEVER else parse_seconds(text, option)


def check_choices(options: object) -> None:
    """Refuse options that are none of their choices."""
    for name, option in described(type(options)).items():
        value, choices = getattr(options, name), option.choice_texts()
        if value is not None and choices and str(value) not in choices:
            raise InputError(
                f"{name} is {shown(repr(value))}; choose from {', '.join(choices)}."
                + suggestion(str(value), choices)
            )


@dataclass(frozen=True)
class FleetInputs:
    """The fleet, the model that it serves, and the jobs that it trains."""

    cluster: str = setting(
        "rainier", "Cluster whose scale-up domains change between serving and training"
    )
    model: str = setting(
        "llama-3.1-405b",
        "Model that is served, and trained by the default jobs; several are written with "
        "their shares of the requests: llama-3.1-405b=20%,llama-3.1-8b=80%",
    )
    tp: int | None = setting(
        None,
        "Tensor-parallel degree of a replica",
        least=1,
        default="the part of a server on which a unit serves most, or more chips where the model "
        "does not fit",
    )
    precision: str = setting(
        "auto",
        "Precision of serving; auto is bf16, or fp8 where bf16 weights do not fit",
        choices=PRECISIONS,
    )
    slo: str = setting(
        "ttft=6s,tpot=175ms",
        "Limits of time to first token and time per output token, and the share of requests "
        "that must keep them, such as ttft=2s,tpot=50ms,share=99.9%",
    )
    prefill: str = setting(
        "auto",
        "Processing of prompts: chunked (in pieces, together with decoding), separate (whole, "
        "while decoding waits), or auto: on Neuron machines the best split of --disaggregate "
        "in a unit, or separate where that serves more; elsewhere chunked",
        choices=("auto", "separate", "chunked"),
    )
    chunk: int | None = setting(
        None,
        "Tokens of an iteration with chunked prefill; 0 is --prefill separate",
        least=0,
        most=MOST,
        default="vLLM's on the chip",
    )
    slots: int | None = setting(
        None,
        "Requests that decode at once on a replica",
        least=1,
        most=MOST_SLOTS,
        default="as for serve",
    )
    prefix_cache: str | None = setting(
        None,
        "Share of the prompt tokens that a replica's prefix cache holds once it is full, such "
        "as 50%; the cache is empty after a change of role",
        metavar="SHARE",
        default="none",
    )
    speculate: str | None = setting(
        None, SPECULATION, metavar="TOKENS:ACCEPTANCE[:DRAFT]", default="none"
    )
    disaggregate: str | None = setting(
        None,
        "Disaggregated serving: prefill and decode replicas of a group, such as 1:3; groups "
        "fill a unit or take several",
        metavar="P:D",
        default="by --prefill",
    )
    unit_rate: float | None = setting(
        None,
        "Requests that a unit serves, in place of the model's capacity",
        unit="requests/s",
        most=MOST,
    )
    training: Path | None = setting(
        None,
        "Training jobs",
        metavar="FILE.csv",
        default="pre-training runs, post-training gangs and evaluation",
    )
    post_training: str | None = setting(
        None,
        "Run the default post-training jobs as reinforcement learning, whose rollouts wait for "
        "the newest weights, or use those of the step before",
        choices=("lockstep", "one-behind"),
        default="plain training",
    )
    failures: str = setting(
        "on",
        "Failures of single servers; with domains also of racks, scale-up domains and power "
        "feeds, and of links, switches and software that stop training",
        choices=("on", "off", "domains"),
    )
    cache: Path | None = setting(
        None, "Folder for capacity tables, in place of the cache of the package", metavar="DIR"
    )

    def __post_init__(self) -> None:
        check_choices(self)
        if self.unit_rate is not None:
            self._check_alone()
        if self.disaggregate and self.chunk:
            raise InputError(
                f"pieces of {self.chunk} tokens are for replicas that decode beside a "
                "prompt, and --disaggregate gives prompts replicas of their own. Leave --chunk out."
            )
        if self.disaggregate and self.prefill != AUTO:
            raise InputError(
                f"--prefill {self.prefill} is for replicas that decode as well, and --disaggregate "
                f"{self.disaggregate} gives prompts replicas of their own, where they run whole. "
                "Leave one of them out."
            )

    def _check_alone(self) -> None:
        """Refuse settings of replicas beside a unit's rate, which holds whatever they are."""
        stated = [
            f"--{name.replace('_', '-')}"
            for name in OF_REPLICAS
            if getattr(self, name) != getattr(FleetInputs, name)
        ]
        if stated:
            verb, names = "changes" if len(stated) == 1 else "change", " and ".join(stated)
            raise InputError(
                f"{names} {verb} nothing beside --unit-rate, as a unit's rate "
                f"holds whatever its replicas are; leave out --unit-rate, or {names}."
            )

    @property
    def is_usual(self) -> bool:
        """True where the way of running prompts is left to the machine."""
        return self.prefill == AUTO and not self.disaggregate and self.chunk is None


OF_REPLICAS = (
    *("tp", "precision", "prefill", "chunk", "slots", "prefix_cache", "speculate"),
    *("disaggregate", "cache"),
)
"""Options that are about the replicas of a unit, whose rate a stated one replaces."""


@dataclass(frozen=True)
class DemandInputs:
    """Requests that arrive, and when."""

    demand: tuple[str, ...] = setting(
        (),
        "Demand by name (`cluster-sim list demands`) or file; may be repeated",
        metavar="FILE.csv|NAME",
        default="azure-code",
    )
    days: float | None = setting(
        None, "Length of the run [days]", least=0, most=MOST_DAYS, default="up to 7"
    )
    start_day: float = setting(
        0.0,
        "Day of the demand on which the run begins; policies know the days before it",
        least=0,
        most=MOST_DAYS,
    )
    service: str | None = setting(None, "Only service to keep, where a demand has several")
    weight: tuple[float, ...] = setting(
        (), "Share of the requests for each --demand, in order", least=0, most=MOST
    )
    average: str = setting(
        "1min", "Spread the demand evenly over periods of this length, such as 1h", plain="s"
    )
    noise: str = setting(
        "none", "Noise of arrivals: none, measured, or a relative spread such as 0.1"
    )
    what_if: tuple[str, ...] = setting(
        (),
        "Change of the scaled demand: growth=30%, spike@2d02:00x3/30min, "
        "failover@3d12:00+12h, launch@2d09:00=30%, zones=-8:50%/0:30%/+9:20% or monday; may be "
        "repeated for several scenarios side by side",
        metavar="CHANGE",
    )
    scale_to_peak: float | None = setting(
        None,
        "Scale the demand so that its busiest hour needs this share of the fleet",
        default="0.9 for bundled demands; a file with counts is not scaled",
    )
    batch_share: str | None = setting(
        None,
        "Share of the requests that may wait, such as 20%; they form a batch tier on units "
        "that serving does not need",
        metavar="SHARE",
        default="none",
    )
    batch_demand: str | None = setting(
        None,
        "Further requests that may wait, in place of a share of --demand",
        metavar="FILE.csv|NAME",
        default="none",
    )
    batch_deadline: str = setting(
        "24h", "Time after which a batch request that was not answered expires", plain="s"
    )

    @property
    def noise_spread(self) -> float | None:
        """Relative spread of the noise, 0 for none; None where it is that of the demand itself."""
        if self.noise in ("none", "measured"):
            return 0.0 if self.noise == "none" else None
        try:
            return float(self.noise)
        except ValueError:
            raise InputError(
                f"--noise {self.noise!r}; write none, measured or a number such as 0.1."
            ) from None


@dataclass(frozen=True)
class PolicyInputs:
    """The kinds of units, the policy that decides which of them serve, and its limits."""

    policy: str = setting(
        "forecast",
        "Policy by name (`cluster-sim list policies`), or FILE.py with policy(), whose settings "
        "follow it: FILE.py:margin=1.5",
        metavar="NAME|FILE.py",
    )
    headroom: float | None = setting(
        None,
        "Capacity above the need, as a share of the need",
        least=0,
        most=MOST,
        default="that of the policy",
    )
    hysteresis: float | None = setting(
        None,
        "Share of the serving units that must be idle before policy threshold gives any up",
        least=0,
        most=MOST,
        default="0.05",
    )
    hold: str | None = setting(
        None,
        "Time for which units must be idle before policy threshold gives them up",
        default="15min",
        plain="s",
    )
    quantile: float = setting(
        0.999,
        "Quantile of past forecast errors that policies forecast and mpc cover",
        least=0,
        most=1,
    )
    night: str = setting("0-8", "Hours (UTC) of the night of policy clock")
    night_share: float = setting(
        0.5, "Share of the day's units that policy clock keeps at night", least=0, most=1
    )
    static_units: float | None = setting(
        None,
        "Units that serve under policy static",
        least=0,
        most=MOST,
        default="the need of the busiest hour",
    )
    price_share: float = setting(
        0.5,
        "Cheapest share of the coming day in which policy price trains; for mpc a share of the "
        "unit-time that serving leaves",
        least=0,
        most=1,
    )
    power_cap: float | None = setting(
        None,
        "Most power that the site may draw, for policies power-cap and mpc",
        unit="MW",
        least=0,
        most=MOST,
    )
    cap: int = setting(0, "Most units that serve; 0 for all", least=0, most=MOST)
    changes_per_minute: int = setting(
        0,
        "Most role changes that the control plane orders in a minute; 0 for any number",
        least=0,
        most=MOST,
    )
    lease: str = setting("0s", "Least time for which units are lent to training", plain="s")
    notice: str = setting(
        "inf",
        "Notice that a training job gets before it loses units; inf waits for its checkpoint",
        plain="s",
    )
    compare: bool = setting(
        True, "Run the policy with foresight and static as well, for comparison"
    )
    intervals: bool = setting(
        True, "Repeat the run at the ends of its uncertain inputs, for intervals of the results"
    )
    kind: tuple[str, ...] = setting(
        (),
        "Units of one kind, in place of --cluster; repeated for a fleet of several kinds, and with "
        "the region of each where there are several",
        metavar="NAME:COUNT[@REGION]",
        default="--cluster",
    )
    region: tuple[str, ...] = setting(
        (),
        "Region with users and chips of its own: hours by which its clocks are ahead of those of "
        "the demand, and its share of the demand, such as us=-8:60%; repeated for each region",
        metavar="NAME=HOURS:SHARE",
        default="one place",
    )
    round_trip: tuple[str, ...] = setting(
        (),
        "Round trip of a request that another region answers, such as us/eu=145ms; may be repeated",
        metavar="REGION/REGION=TIME",
        default="by the hours between their clocks",
    )
    serve_on: tuple[str, ...] = setting(
        (),
        "Kinds that serve, in this order, such as trn2-ultraserver,trn3-gen2, while others only "
        "train; or all, the cheapest or fastest first. Repeated for several side by side",
        metavar="KIND[,KIND]|cheapest|fastest",
        default="cheapest, or fastest where a price is unknown",
    )
    maintenance: tuple[str, ...] = setting(
        (),
        "Time out of service: out@1d02:00+4h=16 takes 16 units out once, roll@1d02:00+30min=8 all "
        "units in turn, eight at a time, roll/7d+30min=8 every 7 days; with several kinds =NAME:8. "
        "May be repeated",
        metavar="WINDOW",
        default="none",
    )
    capacity_block: tuple[str, ...] = setting(
        (),
        "Further units for some days, reserved as EC2 Capacity Blocks are: 2d+3d=8 is 8 units from "
        "11:30 UTC of day 2 of the run for 3 days; with several kinds =NAME:8. May be repeated",
        metavar="DAY+DAYS=UNITS",
        default="none",
    )

    def __post_init__(self) -> None:
        # Refuses a text that is no time, and a power that is none, before anything runs.
        _ = self.hold_s, self.night_hours
        for text in self.kind:
            if text.endswith("@"):
                raise InputError(f"--kind {shown(text)} names no region; write {text[:60]}us.")
        if self.power_cap is not None and not self.power_cap > 0:
            raise InputError(
                f"a power cap of {self.power_cap:g} MW is not above 0; write it in MW."
            )

    @property
    def hold_s(self) -> float | None:
        """Time that units are idle before they are given up [s]; None for the policy's own."""
        return None if self.hold is None else seconds(self.hold, "--hold")

    @property
    def night_hours(self) -> tuple[float, float]:
        """First and last hour (UTC) of the night."""
        try:
            first, last = (float(part) for part in self.night.split("-"))
        except ValueError:
            raise InputError(f"--night {self.night!r}; write hours such as 22-6.") from None
        if not (0 <= first <= 24 and 0 <= last <= 24):
            raise InputError(f"--night {self.night!r}; give hours of 0 to 24, such as 22-6.")
        return first, last

    @property
    def power_cap_w(self) -> float | None:
        """Most power that the site may draw [W]; None for any."""
        return None if self.power_cap is None else self.power_cap * 1e6


@dataclass(frozen=True)
class LimitInputs:
    """Limits of role changes, and the time that one takes."""

    change_time: str | None = setting(
        None,
        "Time that every role change takes, such as 5min, 0s or inf",
        default="the sum of the catalogue's times of its phases",
        plain="s",
    )
    weights: str = setting(
        "nvme",
        "Source of weights: the shared store, local NVMe, host memory or other units",
        choices=("store", "nvme", "host", "peer"),
    )
    floor: int = setting(0, "Fewest units that serve", least=0, most=MOST)
    block: int = setting(1, "Units that change together", least=1, most=MOST)
    reserve: int = setting(0, "Spare units that are never lent", least=0, most=MOST)

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True)
class MoneyInputs:
    """Prices of electricity and the carbon of the grid."""

    price: Path | None = setting(
        None,
        "Prices of electricity: columns hour or time, and usd_per_mwh; also region, and "
        "carbon_g_per_kwh in place of --carbon",
        metavar="FILE.csv",
    )
    price_cap: float | None = setting(
        None, "Price above which nothing trains", unit="USD/MWh", most=MOST
    )
    token_price: float = setting(
        0.0,
        "Price at which served tokens are sold; 0 for none",
        unit="USD per million",
        least=0,
        most=MOST,
    )
    batch_discount: float | None = setting(
        None,
        "Discount of batch requests, as a share of the price",
        least=0,
        most=1,
        default="the catalogue's, 0.5",
    )
    carbon: float = setting(
        0.0, "Carbon intensity of the grid; 0 for none", unit="g/kWh", least=0, most=MOST
    )
    carbon_price: float = setting(
        0.0,
        "Price of carbon that policies price and mpc add to that of electricity",
        unit="USD/t",
        least=0,
        most=MOST,
    )


@dataclass(frozen=True)
class FleetOptions:
    """All options of a fleet, by group."""

    fleet: FleetInputs = field(default_factory=FleetInputs)
    demand: DemandInputs = field(default_factory=DemandInputs)
    policy: PolicyInputs = field(default_factory=PolicyInputs)
    limits: LimitInputs = field(default_factory=LimitInputs)
    money: MoneyInputs = field(default_factory=MoneyInputs)

    @property
    def clusters(self) -> tuple[str, ...]:
        """Names of the machines of each kind."""
        return tuple(text.partition("@")[0] for text in self.policy.kind) or (self.fleet.cluster,)

    @property
    def places(self) -> tuple[str, ...]:
        """Region of each kind; empty where it states none."""
        return tuple(text.partition("@")[2] for text in self.policy.kind)


@dataclass(frozen=True)
class HistoryInputs(DemandInputs):
    """Demand as a history that ends now, for ``lend``."""

    days: float | None = setting(
        None, "Length of the history [days]", least=0, most=MOST_DAYS, default="all of it"
    )
    start_day: float = setting(
        0.0, "Day of the demand on which the history begins", least=0, most=MOST_DAYS
    )
    # No option: a what-if changes the run after the history, which ``lend`` does not have.
    what_if: tuple[str, ...] = ()


@dataclass(frozen=True)
class NightInputs:
    """End, beginning and confidence of the night for which units are lent."""

    until: str = setting(
        "06:00", "Time of day (UTC) at which all units serve again", metavar="HH:MM"
    )
    begin: str | None = setting(
        None,
        "Time of day (UTC) at which lending begins",
        name="from",
        metavar="HH:MM",
        default="the end of the history",
    )
    confidence: str | None = setting(
        None,
        "Share of nights on which the service level must be met, which the history has to bear out",
        default="95%, or what the history bears out",
    )
    holidays: Path | None = setting(
        None,
        "Calendar: a date such as 2024-12-25 a line, on which demand is that of a weekend",
        metavar="FILE",
        default="none",
    )
    window: str = setting("1h", "Time between two changes of the number of lent units", plain="s")
