"""The demand on a fleet: its models, its batch tier, the part that is run, and its scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError
from workloads.confidence.interval import LEVEL
from workloads.confidence.sensitivity import Uncertain
from workloads.demand import Demand, Horizon
from workloads.demand.trace import MINUTES_PER_DAY, MINUTES_PER_WEEK, period_means
from workloads.fleet.state.services import BatchTier, BatchWork, Service, pools_from, units_needed
from workloads.models.model import Model

USUAL_PEAK_SHARE = 0.9
"""Share of the fleet that the busiest hour needs by default, for a demand that is only a shape."""


@dataclass(frozen=True)
class Sizing:
    """A demand compared with a fleet, in its busiest hour."""

    demand_scale: float  # factor on the demand as it was read; 1 where it was not scaled
    # demand_peak_requests_per_s, demand_peak_tokens_per_s: mean rates of all services in the
    # busiest clock hour, the one that needs most units
    demand_peak_requests_per_s: float
    demand_peak_tokens_per_s: float
    # capacity_requests_per_s, capacity_tokens_per_s: rates that the whole fleet sustains under the
    # SLO, with requests like those of that hour
    capacity_requests_per_s: float
    capacity_tokens_per_s: float
    # unit_capacity_requests_per_s, unit_capacity_tokens_per_s: the same rates of one unit
    unit_capacity_requests_per_s: float
    unit_capacity_tokens_per_s: float
    units_needed_peak: float  # units that the busiest hour needs, not rounded

    def document(self) -> dict[str, float]:
        """Every number by its key in the command line's JSON."""
        return asdict(self)


def sizing(
    demand: Demand, services: Sequence[Service], units: float, *, scale: float = 1.0
) -> Sizing:
    """Compare a demand with a fleet of ``units`` units."""
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


def _hourly(by_minute: FloatArray, minute: int) -> float:
    """Mean rate, from amounts by the minute, in the hour of the run that holds a minute [1/s]."""
    first = minute // 60 * 60
    window = by_minute[:, first : first + 60]
    return float(window.sum() / (window.shape[1] * 60.0))


def scaled_to_fleet(
    horizon: Horizon,
    placements: Sequence[tuple[Sequence[Service], float]],
    peak_share: float | None,
) -> tuple[Horizon, Sizing]:
    """Scale the demand of a run and of the time before it, and compare it with the fleet."""
    # ``placements``: services and units of each way to serve; the least of them sets the scale, and
    # the first is compared.
    factor = 1.0
    services, units = placements[0]
    if peak_share is not None or not horizon.demand.absolute:
        share = USUAL_PEAK_SHARE if peak_share is None else peak_share
        if not 0 < share < 100:
            raise InputError(f"a peak share of {share:g} is not in (0, 100); 1 fills the fleet.")
        factor = min(
            share * units / sizing(horizon.demand, each, units).units_needed_peak
            for each, units in placements
        )
    history = None if horizon.history is None else horizon.history.times(factor)
    demand = horizon.demand.times(factor)
    return Horizon(demand, history), sizing(demand, services, units, scale=factor)


def cut_to_period(demand: Demand, days: float | None, start_day: float) -> Horizon:
    """Cut the run, and the history before it, out of a demand; by default up to a week of it."""
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


FEWEST_PAIRS = 3
"""Least number of pairs of stretches of a demand from which their differences are taken."""


def demand_level(need: FloatArray, start: str, minutes: int) -> Uncertain:
    """Return the factor between the need of a stretch of a demand and of the one before it."""
    # The ends are the conformal quantile of the ratios of two stretches as long as the run, whole
    # weeks apart. Where the demand has less than three such pairs, they are that of single days and
    # the last day of the same kind, working day or weekend, as if all days of a run shared it.
    # ``need`` (minutes of the demand,): units. ``start``: first minute, UTC.
    days = need[: len(need) // MINUTES_PER_DAY * MINUTES_PER_DAY].reshape(-1, MINUTES_PER_DAY)
    daily, length = days.sum(axis=1), max(1, -(-minutes // MINUTES_PER_DAY))
    apart = -(-length // 7) * 7
    if len(daily) >= length + apart + FEWEST_PAIRS - 1:
        sums = np.convolve(daily, np.ones(length), "valid")
        pairs = [(after, after - apart) for after in range(apart, len(sums))]
        what = f"{len(pairs)} pairs of {length} days, {apart} days apart"
    else:
        sums = daily
        first = (pd.Timestamp(start) + pd.Timedelta(hours=12)).weekday()
        weekend = (first + np.arange(len(daily))) % 7 >= 5
        alike = [np.flatnonzero(weekend[:day] == weekend[day]) for day in range(len(daily))]
        pairs = [(day, int(before[-1])) for day, before in enumerate(alike) if len(before)]
        what = f"{len(pairs)} days and the last of their kind"
    logs = [abs(math.log(sums[a] / sums[b])) for a, b in pairs if sums[a] > 0 and sums[b] > 0]
    if len(logs) < FEWEST_PAIRS:
        return Uncertain(basis="demand as given, too short to tell how its days differ")
    level = min(1.0, LEVEL * (len(logs) + 1) / len(logs))
    factor = math.exp(float(np.quantile(logs, level)))
    return Uncertain(1 / factor, factor, f"demand: {what}")


Share = tuple[Model, float | None]
"""A model with its share of a service's requests; without any, all models have equal shares."""


def divided(demand: Demand, shares: Sequence[Share]) -> tuple[Demand, tuple[Model, ...]]:
    """Return a demand with a model for each of its services.

    One model answers every service. As many models as services answer them in order. Several models
    for one service divide its requests; each then has a service of its own. Raises InputError for
    another number of models, or shares that do not add up to 1.
    """
    models, parts = tuple(model for model, _ in shares), [share for _, share in shares]
    if len(models) == 1:
        _shares(parts)
        return demand, models * len(demand.services)
    if len(models) == len(demand.services) and all(part is None for part in parts):
        return demand, models
    if len(demand.services) > 1:
        raise InputError(
            f"{len(models)} models for {len(demand.services)} services "
            f"({', '.join(demand.services)}); give one model, or one for each without a share."
        )
    column = np.array(_shares(parts))[:, None]
    return (
        replace(
            demand,
            services=tuple(model.name for model in models),
            requests=demand.requests * column,
            prompt_tokens=np.repeat(demand.prompt_tokens, len(models), axis=0),
            output_tokens=np.repeat(demand.output_tokens, len(models), axis=0),
        ),
        models,
    )


def _shares(shares: Sequence[float | None]) -> list[float]:
    """Return shares that sum to 1; if none is stated, they are equal."""
    stated = [share for share in shares if share is not None]
    if not stated:
        return [1.0 / len(shares)] * len(shares)
    if len(stated) != len(shares) or abs(sum(stated) - 1) > 1e-6:
        raise InputError(
            f"shares of models {', '.join(f'{share:g}' for share in stated)}; give every model "
            "one, such as llama-3.1-405b=20%,llama-3.1-8b=80%, that add up to 1."
        )
    return stated


NAME = "batch"


def batch_work(
    demand: Demand, services: Sequence[Service], tier: BatchTier | None
) -> BatchWork | None:
    """Return the batch work of a run."""
    if tier is None:
        return None
    models = {pool.weights or pool.name for pool in pools_from(services)}
    if len(models) > 1:
        raise InputError(
            f"a batch tier on a fleet that serves {len(models)} models; its requests need one "
            "model. Give one --model."
        )
    tier_demand = tier.demand or demand.times(tier.share / (1 - tier.share))
    if tier_demand.minutes < demand.minutes:
        raise InputError(
            f"a batch demand of {tier_demand.minutes / MINUTES_PER_DAY:.3g} days for a run of "
            f"{demand.minutes / MINUTES_PER_DAY:.3g}; give one that is as long."
        )
    joined = _one_service(tier_demand.between(0, demand.minutes))
    capacity = services[0].capacity
    work = capacity.work(joined.prompt_tokens[0], joined.output_tokens[0])
    return BatchWork(joined, capacity.rate_max_per_s / work, tier.deadline_minutes)


def _one_service(demand: Demand) -> Demand:
    total = demand.requests.sum(axis=0, keepdims=True)
    weights = np.where(total > 0, demand.requests, 1.0)
    prompt, output = (
        (weights * column).sum(axis=0, keepdims=True) / weights.sum(axis=0, keepdims=True)
        for column in (demand.prompt_tokens, demand.output_tokens)
    )
    return replace(
        demand, services=(NAME,), requests=total, prompt_tokens=prompt, output_tokens=output
    )
