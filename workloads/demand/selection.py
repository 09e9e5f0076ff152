"""The demand that a user asks for: one trace, or several side by side, with a what-if."""

from __future__ import annotations

from collections.abc import Sequence

from topologies.errors import InputError, suggestion
from workloads.demand.bundled import demand
from workloads.demand.trace import MINUTES_PER_DAY, Demand, mix
from workloads.demand.whatif import failover, monday_only, spike

WHAT_IFS = ("plus-30", "spike", "failover", "monday")


def demand_of(
    names: Sequence[str],
    *,
    service: str | None = None,
    weights: Sequence[float] = (),
    average_minutes: int = 1,
    what_if: str = "",
) -> Demand:
    """Read one demand, or put several side by side, weighted by their mean requests.

    Parameters
    ----------
    names : sequence of str
        Bundled names or files.
    service : str, optional
        Keep this service of each.
    weights : sequence of float
        Shares of the requests; by default the traces' own.
    average_minutes : int
        60 for hourly means.
    what_if : str
        One of ``WHAT_IFS``: 30 % more; twice the demand for 30 minutes from 02:00 on the second
        day; from the middle on for 12 hours another region's load as well; Monday alone.
    """
    if not names:
        raise InputError("no demand given; name a bundled trace or a CSV file.")
    made = [demand(name, service=service) for name in names]
    if weights:
        if len(weights) != len(made) or min(weights) <= 0:
            raise InputError(
                f"{len(weights)} weights for {len(made)} demands; give one above 0 each."
            )
        made = [
            each.times(weight / each.requests.sum(axis=0).mean())
            for each, weight in zip(made, weights, strict=True)
        ]
    joined = mix(made) if len(made) > 1 else made[0]
    if average_minutes > joined.minutes:
        raise InputError(
            f"cannot average over {average_minutes:,} minutes: the demand has {joined.minutes:,}."
        )
    return _what_if(joined.averaged(average_minutes) if average_minutes > 1 else joined, what_if)


def _what_if(made: Demand, name: str) -> Demand:
    if not name:
        return made
    if name == "plus-30":
        return made.times(1.3)
    if name == "spike":
        return spike(made, at="02:00", minutes=30, day=min(1, made.minutes // MINUTES_PER_DAY - 1))
    if name == "failover":
        return failover(made, minute=made.minutes // 2, minutes=720)
    if name == "monday":
        return monday_only(made)
    raise InputError(
        f"unknown what-if {name!r}; choose from {', '.join(WHAT_IFS)}." + suggestion(name, WHAT_IFS)
    )
