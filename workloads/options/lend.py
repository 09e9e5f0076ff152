"""Options of ``cluster-sim lend`` beside those of a fleet: the history of demand, and the night.

Nothing large is imported here, so that the command line starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topologies.options import option
from workloads.options.bounds import MOST_DAYS
from workloads.options.demand import DemandInputs


@dataclass(frozen=True)
class HistoryInputs(DemandInputs):
    """Demand as a history that ends now, for ``lend``."""

    days: float | None = field(
        default=None,
        metadata=option(
            "Length of the history [days]", least=0, most=MOST_DAYS, default="all of it"
        ),
    )
    start_day: float = field(
        default=0.0,
        metadata=option("Day of the demand on which the history begins", least=0, most=MOST_DAYS),
    )
    # No option: a what-if changes the run after the history, which ``lend`` does not have.
    what_if: tuple[str, ...] = ()


@dataclass(frozen=True)
class NightInputs:
    """End, beginning and confidence of the night for which units are lent."""

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
        default="95%", metadata=option("Share of nights on which the service level must be met")
    )
    window: str = field(
        default="1h", metadata=option("Time between two changes of the number of lent units")
    )
