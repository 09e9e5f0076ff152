"""Demand by the names that a user gives: one trace, or several side by side."""

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
    """Read one demand, or several that arrive side by side.

    Files with counts of requests are taken as they are; a bundled trace, which is only a shape, is
    scaled to the same mean beside them. With weights, or with bundled traces alone, the result is
    itself a shape (``absolute`` is False).

    Parameters
    ----------
    names : sequence of str
        Bundled names or files.
    service : str, optional
        The only service that is kept of each.
    weights : sequence of float
        Shares of the requests; by default those of the traces.
    average_minutes : int
        Length of the periods over which requests are averaged; 60 for hourly means.
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
    parts = _sized(parts, names)
    joined = mix(parts) if len(parts) > 1 else parts[0]
    if average_minutes > joined.minutes:
        raise InputError(
            f"cannot average over {average_minutes:,} minutes: the demand has {joined.minutes:,}. "
            "Average over fewer."
        )
    return joined.averaged(average_minutes) if average_minutes > 1 else joined


def _sized(parts: Sequence[Demand], names: Sequence[str]) -> list[Demand]:
    """Scale shapes that stand beside counts to the mean requests of a demand with counts."""
    sizes = [float(part.requests.sum(axis=0).mean()) for part in parts]
    counted = [size for part, size in zip(parts, sizes, strict=True) if part.absolute]
    if not counted or len(counted) == len(parts):
        return list(parts)
    mean = sum(counted) / len(counted)
    result = []
    for part, size, name in zip(parts, sizes, names, strict=True):
        if not part.absolute:
            note = (
                f"{name}, a shape without a size for this fleet, was taken as large as the counts "
                f"beside it, {mean / 60:,.3g} requests/s on average; --weight sets shares."
            )
            part = replace(part.times(mean / size), absolute=True, notes=(*part.notes, note))
        result.append(part)
    return result
