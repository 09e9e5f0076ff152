"""Size of a demand relative to a fleet, and the factor by which it is scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.demand.trace import Demand, period_means
from workloads.fleet.state.needs import units_needed
from workloads.fleet.state.services import Service

USUAL_PEAK_SHARE = 0.9
"""Share of the fleet that the busiest hour needs by default, for a demand that is only a shape."""


@dataclass(frozen=True)
class Sizing:
    """A demand compared with a fleet, in its busiest hour.

    Attributes
    ----------
    demand_scale : float
        Factor on the demand as it was read; 1 where it was not scaled.
    demand_peak_requests_per_s, demand_peak_tokens_per_s : float
        Mean rates of all services in the busiest clock hour, the one that needs most units.
    capacity_requests_per_s, capacity_tokens_per_s : float
        Rates that the whole fleet sustains under the SLO, with requests like those of that hour.
    unit_capacity_requests_per_s, unit_capacity_tokens_per_s : float
        The same rates of one unit.
    units_needed_peak : float
        Units that the busiest hour needs, not rounded.
    """

    demand_scale: float
    demand_peak_requests_per_s: float
    demand_peak_tokens_per_s: float
    capacity_requests_per_s: float
    capacity_tokens_per_s: float
    unit_capacity_requests_per_s: float
    unit_capacity_tokens_per_s: float
    units_needed_peak: float

    def document(self) -> dict[str, float]:
        """Every number by its key in the command line's JSON."""
        return asdict(self)


def sizing(
    demand: Demand, services: Sequence[Service], units: int, *, scale: float = 1.0
) -> Sizing:
    """Compare a demand with a fleet of ``units`` units.

    Raises
    ------
    InputError
        For a demand without requests.
    """
    need = period_means(units_needed(demand, services).sum(axis=0), 60)
    hour = int(np.argmax(need))
    if need[hour] <= 0:
        raise InputError("the demand has no requests; check its columns.")
    requests = _hourly(demand.requests, hour)
    tokens = _hourly(demand.requests * (demand.prompt_tokens + demand.output_tokens), hour)
    return Sizing(
        demand_scale=scale,
        demand_peak_requests_per_s=requests,
        demand_peak_tokens_per_s=tokens,
        capacity_requests_per_s=requests / need[hour] * units,
        capacity_tokens_per_s=tokens / need[hour] * units,
        unit_capacity_requests_per_s=requests / float(need[hour]),
        unit_capacity_tokens_per_s=tokens / float(need[hour]),
        units_needed_peak=float(need[hour]),
    )


def scale_factor(
    demand: Demand, services: Sequence[Service], units: int, *, scale_to_peak: float | None
) -> float:
    """Return the factor by which a demand is scaled to a fleet.

    Parameters
    ----------
    scale_to_peak : float, optional
        Share of the fleet that the busiest hour shall need. By default it is 0.9 for a demand that
        is only a shape, and one with counts of requests is not scaled.

    Raises
    ------
    InputError
        For a share that is not above 0, and a demand without requests.
    """
    if scale_to_peak is None:
        if demand.absolute:
            return 1.0
        scale_to_peak = USUAL_PEAK_SHARE
    if not 0 < scale_to_peak < 100:
        raise InputError(
            f"a peak share of {scale_to_peak:g} is not in (0, 100); 1 fills the fleet."
        )
    return scale_to_peak * units / sizing(demand, services, units).units_needed_peak


def scale_note(sized: Sizing, *, absolute: bool, units: int) -> str:
    """Sentence that says how a demand was scaled; empty where it was not."""
    if sized.demand_scale == 1.0:
        return ""
    what = "demand" if absolute else "demand, a shape without a size for this fleet,"
    return (
        f"{what} was scaled by {sized.demand_scale:.6g}: its busiest hour needs "
        f"{sized.units_needed_peak / units:.0%} of the fleet; --scale-to-peak sets another share."
    )


def _hourly(by_minute: FloatArray, minute: int) -> float:
    """Mean rate, from amounts by the minute, in the hour of the run that holds a minute [1/s]."""
    first = minute // 60 * 60
    window = by_minute[:, first : first + 60]
    return float(window.sum() / (window.shape[1] * 60.0))
