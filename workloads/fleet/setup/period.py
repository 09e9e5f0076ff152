"""The part of a demand that is run: cut out, scaled to the fleet, and given noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.demand import Demand, Horizon, with_noise
from workloads.demand.trace import MINUTES_PER_DAY, MINUTES_PER_WEEK
from workloads.fleet.setup.sizing import Sizing, scale_factor, sizing
from workloads.fleet.state.services import Service


@dataclass(frozen=True)
class Period:
    """The part of a demand that is run, and its size.

    Attributes
    ----------
    days : float, optional
        Length [days]; by default up to a week, infinity for all of the demand.
    start_day : float
        Day of the demand on which the run begins [days]. Earlier days are history, which policies
        know.
    scale_to_peak : float, optional
        Share of the fleet that the busiest hour of the run is scaled to need. By default a demand
        with counts of requests runs as it is, and one that is only a shape is scaled to 0.9.
    noise : float or "measured"
        Relative spread of Gamma noise on top of Poisson arrivals; 0 takes the demand as it is,
        "measured" the spread of the demand itself.
    seed : int
        Seed of the noise.
    """

    days: float | None = None
    start_day: float = 0.0
    scale_to_peak: float | None = None
    noise: float | str = 0.0
    seed: int = 0


def scaled_to_fleet(
    horizon: Horizon, services: Sequence[Service], units: int, period: Period
) -> tuple[Horizon, Sizing]:
    """Scale the demand of a run and of the time before it, and compare it with the fleet."""
    factor = scale_factor(horizon.demand, services, units, scale_to_peak=period.scale_to_peak)
    history = None if horizon.history is None else horizon.history.times(factor)
    demand = horizon.demand.times(factor)
    return Horizon(demand, history), sizing(demand, services, units, scale=factor)


def cut_to_period(demand: Demand, period: Period) -> Horizon:
    """Cut the run, and the history before it, out of a demand."""
    days, start_day = period.days, period.start_day
    first = round(start_day * MINUTES_PER_DAY)
    remaining = demand.minutes - first
    if days is None:
        length = min(remaining, MINUTES_PER_WEEK)
    else:
        length = remaining if math.isinf(days) else round(days * MINUTES_PER_DAY)
    whole_weeks = demand.minutes % MINUTES_PER_WEEK == 0 and length % MINUTES_PER_WEEK == 0
    if length > MINUTES_PER_WEEK and whole_weeks and first + length > demand.minutes:
        demand = demand.repeated(first + length)
    if first >= demand.minutes:
        raise InputError(
            f"day {start_day:g} is not before the end of a demand of "
            f"{demand.minutes / MINUTES_PER_DAY:g} days; choose an earlier start."
        )
    if length < 1 or first < 0 or first + length > demand.minutes:
        raise InputError(
            f"{length / MINUTES_PER_DAY:g} days from day {start_day:g} of a demand of "
            f"{demand.minutes / MINUTES_PER_DAY:g} days; choose fewer days or an earlier start. "
            "A demand of whole weeks is repeated for a run of whole weeks."
        )
    history = demand.between(0, first) if first else None
    return Horizon(demand.between(first, first + length), history)


def draw_noise(demand: Demand, spread: FloatArray | float, seed: int) -> Demand:
    """Draw the requests of each minute; the same seed draws the same noise for every what-if."""
    if not np.any(spread):
        return demand
    return with_noise(demand, np.random.default_rng([seed, 1]), relative_sd=spread)
