"""Options of a fleet's policy: its settings, and the limits of role changes."""

from __future__ import annotations

from dataclasses import dataclass, field

from topologies.options import option
from workloads.options.bounds import MOST


@dataclass(frozen=True)
class PolicyInputs:
    """The policy that decides which units serve, its settings, and its limits."""

    policy: str = field(
        default="forecast",
        metadata=option(
            "Policy by name (`cluster-sim list policies`), or FILE.py with policy()",
            metavar="NAME|FILE.py",
        ),
    )
    headroom: float | None = field(
        default=None,
        metadata=option(
            "Capacity above the need, as a share of the need",
            least=0,
            most=MOST,
            default="that of the policy",
        ),
    )
    hysteresis: float | None = field(
        default=None,
        metadata=option(
            "Share of the serving units that must be idle before policy threshold gives any up",
            least=0,
            most=MOST,
            default="0.05",
        ),
    )
    hold: str | None = field(
        default=None,
        metadata=option(
            "Time for which units must be idle before policy threshold gives them up",
            default="15min",
        ),
    )
    quantile: float = field(
        default=0.999,
        metadata=option(
            "Quantile of past forecast errors that policies forecast and mpc cover",
            least=0,
            most=1,
        ),
    )
    night: str = field(default="0-8", metadata=option("Hours (UTC) of the night of policy clock"))
    night_share: float = field(
        default=0.5,
        metadata=option(
            "Share of the day's units that policy clock keeps at night", least=0, most=1
        ),
    )
    static_units: float | None = field(
        default=None,
        metadata=option(
            "Units that serve under policy static",
            least=0,
            most=MOST,
            default="the need of the busiest hour",
        ),
    )
    price_share: float = field(
        default=0.5,
        metadata=option(
            "Cheapest share of the coming day in which policy price trains; for mpc a share of the "
            "unit-time that serving leaves",
            least=0,
            most=1,
        ),
    )
    power_cap: float | None = field(
        default=None,
        metadata=option(
            "Most power that the site may draw, for policies power-cap and mpc",
            unit="MW",
            least=0,
            most=MOST,
        ),
    )
    cap: int = field(
        default=0, metadata=option("Most units that serve; 0 for all", least=0, most=MOST)
    )
    changes_per_minute: int = field(
        default=0,
        metadata=option(
            "Most role changes that the control plane orders in a minute; 0 for any number",
            least=0,
            most=MOST,
        ),
    )
    lease: str = field(
        default="0s", metadata=option("Least time for which units are lent to training")
    )
    notice: str = field(
        default="inf",
        metadata=option(
            "Notice that a training job gets before it loses units; inf waits for its checkpoint"
        ),
    )
    compare: bool = field(
        default=True,
        metadata=option("Run the policy with foresight and static as well, for comparison"),
    )


@dataclass(frozen=True)
class LimitInputs:
    """Limits of role changes, and the time that one takes."""

    change_time: str | None = field(
        default=None,
        metadata=option(
            "Time that every role change takes, such as 5min, 0s or inf",
            default="the sum of the catalogue's times of its phases",
        ),
    )
    weights: str = field(
        default="nvme",
        metadata=option(
            "Source of weights: the shared store, local NVMe, host memory or other units",
            choices=("store", "nvme", "host", "peer"),
        ),
    )
    floor: int = field(default=0, metadata=option("Fewest units that serve", least=0, most=MOST))
    block: int = field(default=1, metadata=option("Units that change together", least=1, most=MOST))
    reserve: int = field(
        default=0, metadata=option("Spare units that are never lent", least=0, most=MOST)
    )
