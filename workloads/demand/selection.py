"""The demand that a user names: one trace, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from topologies.errors import InputError
from workloads.demand.bundled import demand
from workloads.demand.trace import Demand, mix


def demand_from(
    names: Sequence[str],
    *,
    service: str | None = None,
    weights: Sequence[float] = (),
    average_minutes: int = 1,
) -> Demand:
    """Read one demand, or put several side by side.

    Counts of files stand as they are. Where weights are given, or a bundled trace is alone or among
    its like, the result is a shape without a size of its own (``absolute`` is False).

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
    """
    if not names:
        raise InputError("no demand given; name a bundled trace or a CSV file.")
    parts = [demand(name, service=service) for name in names]
    if weights:
        if len(weights) != len(parts) or min(weights) <= 0:
            raise InputError(
                f"{len(weights)} weights for {len(parts)} demands; give one above 0 each."
            )
        parts = [
            replace(each.times(weight / each.requests.sum(axis=0).mean()), absolute=False)
            for each, weight in zip(parts, weights, strict=True)
        ]
    _check_sizes(parts, names)
    joined = mix(parts) if len(parts) > 1 else parts[0]
    if average_minutes > joined.minutes:
        raise InputError(
            f"cannot average over {average_minutes:,} minutes: the demand has {joined.minutes:,}."
        )
    return joined.averaged(average_minutes) if average_minutes > 1 else joined


def _check_sizes(parts: Sequence[Demand], names: Sequence[str]) -> None:
    """Refuse counts beside shapes: nothing says how large the one is against the other."""
    if len({part.absolute for part in parts}) > 1:
        shapes = [name for part, name in zip(parts, names, strict=True) if not part.absolute]
        raise InputError(
            f"{shapes[0]} is a shape without a size for this fleet and stands beside counts; "
            "give --weight for each demand."
        )
