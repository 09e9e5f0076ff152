"""Policies that follow a rule; each is a function of a view, with a function that configures it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY, largest_within, period_means
from workloads.fleet.policies import predictive
from workloads.fleet.policies.forecast import EVERY, Margins
from workloads.fleet.policies.view import (
    Decision,
    Policy,
    PolicyKind,
    Situation,
    View,
    units_wanted,
)
from workloads.options.fleet import PolicyInputs

USUAL_HEADROOM = 0.05  # headroom of policies that forecast, as a share of the need


def static(units: npt.ArrayLike) -> Policy:
    """Keep the same number of units serving at all times."""
    fixed = np.atleast_1d(np.asarray(units, float))
    return lambda view: fixed


def best_static(need: FloatArray, *, headroom: float = 0.0) -> FloatArray:
    """Units that the busiest hour needs of each pool; (pools,)."""
    return np.asarray(period_means(need, 60).max(axis=1) * (1 + headroom))


def _static(settings: PolicyInputs, situation: Situation) -> Policy:
    busiest = best_static(situation.need, headroom=settings.headroom or 0.0)
    if settings.static_units is None:
        return static(busiest)
    return static(busiest * settings.static_units / busiest.sum())


def clock(
    day: npt.ArrayLike, night: npt.ArrayLike, *, night_from: float = 0.0, night_to: float = 8.0
) -> Policy:
    """Serve with ``night`` units from one hour (UTC) to another, with ``day`` units otherwise."""
    # Fixed evening hours are all that has been disclosed of Project Rainier; DeepSeek has shown
    # 00:30–08:30 local time.
    by_day, by_night = (np.atleast_1d(np.asarray(units, float)) for units in (day, night))

    def policy(view: View) -> FloatArray:
        """Return the units that serve in a minute."""
        inside = (view.hour - night_from) % 24.0 < (night_to - night_from) % 24.0
        return by_night if inside else by_day

    return policy


def _clock(settings: PolicyInputs, situation: Situation) -> Policy:
    busiest = best_static(situation.need, headroom=settings.headroom or 0.0)
    first, last = settings.night_hours
    return clock(busiest, busiest * settings.night_share, night_from=first, night_to=last)


def threshold(*, headroom: float = 0.10, hysteresis: float = 0.05, hold_s: float = 900.0) -> Policy:
    """React to the load of the last minute, with ``headroom`` as a share of the need on top."""
    # Units are given up once a share ``hysteresis`` of them has been idle for ``hold_s`` [s].
    for name, value in (("headroom", headroom), ("hysteresis", hysteresis), ("hold_s", hold_s)):
        if not value >= 0:
            raise InputError(f"{name} is {value}; it must be at least 0.")

    def policy(view: View) -> FloatArray:
        """Return the units that serve in a minute."""
        hold_minutes = max(1, round(hold_s / 60.0))
        # Units to work off the waiting requests within ten minutes come on top.
        need = view.load[:, -1] * (1 + headroom) + view.backlog / 10.0
        past = view.load[:, -hold_minutes:].max(axis=1) * (1 + headroom)
        have = view.serving + view.coming
        lower = np.maximum(need, past)
        # Units of other speeds make ``have`` fractional, and orders are rounded up: it would grow.
        held = np.maximum(need, np.floor(have + 1e-9))
        return np.where(lower < have * (1 - hysteresis), lower, held)

    return policy


def _threshold(settings: PolicyInputs, _situation: Situation) -> Policy:
    names = ("headroom", "hysteresis", "hold_s")
    stated = {name: getattr(settings, name) for name in names}
    return threshold(**{name: value for name, value in stated.items() if value is not None})


def forecast(*, quantile: float = 0.999, headroom: float = USUAL_HEADROOM) -> Policy:
    """Serve the expected need of the next interval, with a margin learned from past errors."""
    # The expectation is the larger of the load of the last 15 minutes and that of the same time of
    # an earlier day (``predict``). The margin is a ``quantile`` of the ratios of observed to
    # expected load in all intervals so far, from 1 to 3; a run without a history has few of them
    # in its first hours.
    if not 0 < quantile <= 1:
        raise InputError(f"forecast with quantile {quantile}; it must lie in (0, 1].")

    margins = Margins(quantile)

    def policy(view: View) -> FloatArray | None:
        """Return the units that serve in a minute."""
        if view.minute % EVERY and view.minute > 0:
            return None
        # Units to work off the waiting requests within ten minutes come on top.
        when = view.minute, view.lead_minutes, view.first_weekday
        return np.asarray(margins.expected(view.load, *when) * (1 + headroom) + view.backlog / 10.0)

    return policy


def _forecast(settings: PolicyInputs, _situation: Situation) -> Policy:
    headroom = USUAL_HEADROOM if settings.headroom is None else settings.headroom
    return forecast(quantile=settings.quantile, headroom=headroom)


def price_aware(serve: Policy, *, share: float = 0.5) -> Policy:
    """Train in the cheapest share of the coming day's minutes, serve by another policy."""
    # Kinds of units in regions with prices of their own have cheap minutes of their own.
    rules: list[Callable[[int, FloatArray], bool]] = []

    def policy(view: View) -> Decision:
        """Return the units that serve in a minute, and those that train."""
        series = [kind.prices_usd_per_mwh for kind in view.kinds] or [view.prices_usd_per_mwh]
        rules.extend(_in_cheap_minutes(share) for _ in series[len(rules) :])
        cheap = [
            is_cheap(view.minute, ahead) for is_cheap, ahead in zip(rules, series, strict=True)
        ]
        alike = None if cheap[0] else 0
        training = alike if len({*cheap}) == 1 else [view.units * each for each in cheap]
        return Decision(units_wanted(serve, view), training=training)

    return policy


def _in_cheap_minutes(share: float) -> Callable[[int, FloatArray], bool]:
    """Return a rule whether a minute is in the cheapest share of the prices ahead of it."""
    # Where a tariff has the same price for many hours and only a part of them belongs to the share,
    # that part is trained at the beginning of the hours, rounded up to whole hours. With a share of
    # 1 training never pauses.
    # A stretch of equal prices of which a part is trained: where that ends, and the stretch.
    train_until, stretch_ends = 0, 0

    def is_cheap(minute: int, prices: FloatArray) -> bool:
        """Return whether a minute is among the cheapest of its day."""
        nonlocal train_until, stretch_ends
        ahead = prices[:MINUTES_PER_DAY]
        cheaper, equal = int((ahead < ahead[0]).sum()), int((ahead == ahead[0]).sum())
        left = share * len(ahead) - cheaper
        if not 0 < left < equal:
            return left > 0
        if minute == 0 or minute >= stretch_ends:
            changes = np.flatnonzero(ahead != ahead[0])
            stretch = int(changes[0]) if len(changes) else len(ahead)  # minutes at this price
            train_until = minute + 60 * math.ceil(stretch * (left / equal) / 60)
            stretch_ends = minute + stretch
        return minute < train_until

    return is_cheap


def _price(settings: PolicyInputs, situation: Situation) -> Policy:
    if not situation.priced:
        raise InputError("policy price needs prices of electricity; add --price FILE.csv.")
    return price_aware(_forecast(settings, situation), share=settings.price_share)


def _power_cap(settings: PolicyInputs, situation: Situation) -> Policy:
    """Keep the draw of the site under a cap by training on fewer units; serving goes first."""
    # Units that serve count with their full draw, so that the load of a minute moves no gang.
    if settings.power_cap_w is None:
        raise InputError("policy power-cap needs the most that the site may draw; add --power-cap.")
    serve, cap_w = _forecast(settings, situation), settings.power_cap_w
    return lambda view: Decision(units_wanted(serve, view), power_w=cap_w)


def oracle(
    need: FloatArray, *, lead_s: float = 0.0, shortest_valley_s: float = 0.0, ramp: int = 0
) -> Policy:
    """Serve exactly the need of each minute, with units ordered in time."""
    lead = int(-(-lead_s // 60.0)) if np.isfinite(lead_s) else need.shape[1]
    window = min(
        int(shortest_valley_s // 60.0) if np.isfinite(shortest_valley_s) else 2**30, need.shape[1]
    )
    plan = np.ceil(need - 1e-9)
    if window > 1:
        import pandas as pd  # names of policies are listed without it

        # A morphological closing fills exactly the valleys that are narrower than the window: the
        # least of the maxima of all windows with a minute. Both windows end at their row.
        padded = pd.DataFrame(np.pad(plan, ((0, 0), (window, window)), mode="edge").T)
        closed = padded.rolling(window).max().rolling(window).min()
        plan = closed.to_numpy().T[:, 2 * window - 1 : -1]
    if lead:
        plan = np.array([largest_within(row, ahead=lead) for row in plan])
    if ramp:
        # From behind: a minute has at least what the next one has, less one minute's orders.
        steps = ramp * np.arange(plan.shape[1], dtype=float)
        plan = np.maximum.accumulate((plan - steps)[:, ::-1], axis=1)[:, ::-1] + steps

    def policy(view: View) -> FloatArray:
        """Return the units that serve in a minute."""
        return np.asarray(plan[:, min(view.minute, plan.shape[1] - 1)])

    return policy


def _oracle(settings: PolicyInputs, situation: Situation) -> Policy:
    """Order ahead by the change time; lend no valley shorter than a change there and back."""
    lead_s = situation.lead_s
    return oracle(
        situation.need * (1 + (settings.headroom or 0.0)),
        lead_s=lead_s + 60.0 if lead_s else 0.0,
        shortest_valley_s=lead_s + situation.back_s,
        ramp=situation.ramp,
    )


POLICIES = (
    PolicyKind("static", "what the busiest hour needs, always", _static),
    PolicyKind("clock", "the busiest hour's need by day, a share of it at night", _clock),
    PolicyKind("threshold", "the last minute's load, and a headroom", _threshold),
    PolicyKind("forecast", "the larger of now and an earlier day, by past errors", _forecast),
    predictive.KIND,
    PolicyKind("price", "serves by forecast, trains in the cheapest hours", _price, "mpc-oracle"),
    PolicyKind(
        "power-cap", "serves by forecast, trains within the site's power", _power_cap, "mpc-oracle"
    ),
    PolicyKind("oracle", "the future, ordered early enough: an upper bound", _oracle),
    predictive.FORESIGHT,
)
"""Built-in policies; a new one is a function and an entry here."""
