"""Units that a demand needs under the SLO, and requests that a unit can serve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.demand.trace import Demand
from workloads.demand.what_if import busiest_hour
from workloads.fleet.state.services import Service


def units_needed(demand: Demand, services: Sequence[Service]) -> FloatArray:
    """Units that each minute's demand needs under the SLO; (services, minutes)."""
    _check(demand, services)
    rows = []
    for number, service in enumerate(services):
        work = service.capacity.work(demand.prompt_tokens[number], demand.output_tokens[number])
        rows.append(demand.requests[number] / 60.0 * work / service.capacity.rate_slo_per_s)
    return np.array(rows)


def scaled_to_fleet(
    demand: Demand, services: Sequence[Service], units: int, *, peak_share: float = 1.0
) -> Demand:
    """Scale demand so that its busiest hour needs a share of the fleet."""
    if not 0 < peak_share < 100:
        raise InputError(f"a peak share of {peak_share} is not in (0, 100); 1 fills the fleet.")
    peak = busiest_hour(units_needed(demand, services).sum(axis=0))
    if peak <= 0:
        raise InputError("the demand has no requests, which nothing can scale; check its columns.")
    return demand.times(peak_share * units / peak)


def rates_max(demand: Demand, services: Sequence[Service]) -> FloatArray:
    """Requests that one unit serves at saturation [1/s]; (services, minutes).

    They change with the prompt and output lengths of the minute.
    """
    rows = []
    for number, service in enumerate(services):
        work = service.capacity.work(demand.prompt_tokens[number], demand.output_tokens[number])
        rows.append(service.capacity.rate_max_per_s / work)
    return np.array(rows)


def _check(demand: Demand, services: Sequence[Service]) -> None:
    if len(services) != len(demand.services):
        raise InputError(
            f"{len(services)} services for a demand of {len(demand.services)} "
            f"({', '.join(demand.services)}); give one for each."
        )
