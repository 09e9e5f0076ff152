"""What-ifs on a demand, and the noise of arrivals as measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY, Demand, FloatArray, period_means

LARGEST_NOISE = 10.0
"""Relative spread beyond which nearly all minutes of a Gamma–Poisson are empty."""


def spike(
    demand: Demand, *, at: str = "02:00", factor: float = 2.0, minutes: int = 10, day: int = 0
) -> Demand:
    """Multiply demand for a few minutes from ``at`` (UTC) on one day, counted from the start."""
    hours, _, rest = at.partition(":")
    if not (hours.isdigit() and rest.isdigit() and int(hours) < 24 and int(rest) < 60):
        raise InputError(f"spike at {at!r} is not a time of day; write it as 02:00.")
    begin = _minute_of_day(demand, int(hours) * 60 + int(rest)) + day * MINUTES_PER_DAY
    return _raised(demand, begin, minutes, factor)


def failover(demand: Demand, *, minute: int, minutes: int, factor: float = 2.0) -> Demand:
    """Another region fails: its load arrives here as well from ``minute`` on."""
    return _raised(demand, minute, minutes, factor)


def monday_only(demand: Demand) -> Demand:
    """Cut out the first whole Monday, the day that yesterday says least about."""
    weekday = demand.index.day_of_week.to_numpy()
    midnight = (demand.index.hour.to_numpy() == 0) & (demand.index.minute.to_numpy() == 0)
    starts = np.flatnonzero(midnight & (weekday == 0))
    starts = starts[starts + MINUTES_PER_DAY <= demand.minutes]
    if not len(starts):
        raise InputError("the demand has no whole Monday; choose more days.")
    return demand.between(int(starts[0]), int(starts[0]) + MINUTES_PER_DAY)


def measured_noise(demand: Demand) -> FloatArray:
    """Relative standard deviation of the minutes around their hourly trend; (services,).

    The trend is the centred mean of 61 minutes; hours with under one request a minute are left out.
    Azure 2024: 0.116 (code) and 0.070 (conversation), against 0.032 and 0.020 of a Poisson stream.
    """
    kernel = np.ones(61) / 61
    noise = []
    for requests in demand.requests:
        trend = np.convolve(requests, kernel, "same")[30:-30]
        inside = requests[30:-30]
        busy = trend > 1.0
        noise.append(np.std(inside[busy] / trend[busy] - 1.0) if busy.any() else 0.0)
    return np.asarray(noise)


def with_noise(
    demand: Demand, rng: np.random.Generator, *, relative_sd: float | FloatArray
) -> Demand:
    """Draw each minute's requests from a Gamma–Poisson of the demand's mean.

    Parameters
    ----------
    rng : numpy.random.Generator
        The only source of randomness.
    relative_sd : float or float array (services,)
        Standard deviation of the Gamma factor, of mean 1; the Poisson part comes on top. Zero
        leaves plain Poisson counts.
    """
    spread = np.broadcast_to(np.asarray(relative_sd, float), (len(demand.services),))
    if not np.all((spread >= 0) & (spread <= LARGEST_NOISE)):
        raise InputError(
            f"a noise of {spread.max()} is not between 0 and {LARGEST_NOISE:g}; "
            f"give a relative spread such as 0.1."
        )
    factors = np.ones_like(demand.requests)
    for row, sd in enumerate(spread.tolist()):
        if sd > 0:
            shape = 1.0 / sd**2
            factors[row] = rng.gamma(shape, 1.0 / shape, demand.minutes)
    return replace(demand, requests=rng.poisson(demand.requests * factors).astype(float))


def busiest_hour(load: FloatArray) -> float:
    """Largest hourly mean of a series by the minute."""
    return float(period_means(load, 60).max())


def _raised(demand: Demand, begin: int, minutes: int, factor: float) -> Demand:
    if not 0 <= begin < demand.minutes or minutes < 1 or factor < 0:
        raise InputError(
            f"cannot multiply {minutes} minutes from minute {begin} by {factor}: the demand has "
            f"{demand.minutes} minutes, and a factor is at least 0."
        )
    factors = np.ones(demand.minutes)
    factors[begin : begin + minutes] = factor
    return demand.times(factors)


def _minute_of_day(demand: Demand, minute: int) -> int:
    first = demand.index[0]
    return int((minute - first.hour * 60 - first.minute) % MINUTES_PER_DAY)
