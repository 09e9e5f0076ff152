"""Options of the demand on a fleet: which requests arrive, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

from topologies.errors import InputError
from topologies.options import option
from workloads.options.bounds import MOST, MOST_DAYS


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
        default=None, metadata=option("Only service to keep, where a demand has several")
    )
    weight: tuple[float, ...] = field(
        default=(),
        metadata=option("Share of the requests for each --demand, in order", least=0, most=MOST),
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
            "failover@3d12:00+12h, launch@2d09:00=30% or monday; may be repeated for several "
            "scenarios side by side",
            metavar="CHANGE",
        ),
    )
    scale_to_peak: float | None = field(
        default=None,
        metadata=option(
            "Scale the demand so that its busiest hour needs this share of the fleet",
            default="0.9 for bundled demands; a file with counts is not scaled",
        ),
    )
    peak: float | None = field(default=None, metadata=option("Older name of --scale-to-peak"))
    batch_share: str | None = field(
        default=None,
        metadata=option(
            "Share of the requests that may wait, such as 20%; they form a batch tier on units "
            "that serving does not need",
            metavar="SHARE",
            default="none",
        ),
    )
    batch_demand: str | None = field(
        default=None,
        metadata=option(
            "Further requests that may wait, in place of a share of --demand",
            metavar="FILE.csv|NAME",
            default="none",
        ),
    )
    batch_deadline: str = field(
        default="24h",
        metadata=option("Time after which a batch request that was not answered expires"),
    )

    def __post_init__(self) -> None:
        if self.peak is not None and self.scale_to_peak is not None:
            raise InputError(
                f"--peak {self.peak:g} and --scale-to-peak {self.scale_to_peak:g} are two names of "
                "one option; give one of them."
            )

    @property
    def peak_share(self) -> float | None:
        """Share of the fleet that the busiest hour is scaled to need; None if not stated."""
        return self.peak if self.scale_to_peak is None else self.scale_to_peak
