"""The batch tier: requests that may be answered at any time within a day, at a lower price."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY, Demand

MINUTE_S = 60.0


@dataclass(frozen=True, eq=False)
class BatchTier:
    """Requests that may wait, and for how long.

    ``share``: share of the demand's requests that may wait; the interactive services lose them.
    ``demand``: requests that may wait and arrive on top of the demand, instead of a share of it.
    ``deadline_s``: time within which a request has to be answered; after it the request expires
        [s].
    """

    share: float = 0.0
    demand: Demand | None = None
    deadline_s: float = MINUTES_PER_DAY * MINUTE_S

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1 or (self.share > 0) == (self.demand is not None):
            raise InputError(
                f"a batch tier of {self.share:.3g} of the requests"
                f"{' and of a demand of its own' if self.demand is not None else ''}; give a share "
                "above 0 and below 1, or a demand."
            )
        if not self.deadline_s >= MINUTE_S or self.deadline_s == float("inf"):
            raise InputError(
                f"a batch deadline of {self.deadline_s:g} s must be at least a minute, such as 24h."
            )

    @property
    def deadline_minutes(self) -> int:
        """Whole minutes within which a request has to be answered."""
        return int(self.deadline_s // MINUTE_S)


@dataclass(frozen=True, eq=False)
class BatchWork:
    """Requests of a batch tier in a run.

    ``demand``: one service, as long as the run.
    ``rate_per_s`` (minutes,): requests that one saturated unit answers, at the prompt and output
        lengths of that minute [1/s].
    """

    demand: Demand
    rate_per_s: FloatArray
    deadline_minutes: int = MINUTES_PER_DAY
