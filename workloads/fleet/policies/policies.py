"""Policies: plain functions from what an operator knows to how many units should serve."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from topologies.errors import InputError
from workloads.demand.trace import period_means
from workloads.fleet.policies.forecast import DAY, predict
from workloads.fleet.policies.view import Policy, View

FloatArray = npt.NDArray[np.float64]

NAMES = ("static", "clock", "threshold", "forecast", "oracle")
"""Built-in policies."""


def static(units: npt.ArrayLike) -> Policy:
    """Keep the same units serving, whatever happens."""
    fixed = np.atleast_1d(np.asarray(units, float))
    return lambda view: fixed


def clock(
    day: npt.ArrayLike,
    night: npt.ArrayLike,
    *,
    night_from: float = 0.0,
    night_to: float = 8.0,
    weekend_all_night: bool = False,
) -> Policy:
    """Two sizes by the clock: ``night`` from one hour (UTC) to another, ``day`` otherwise.

    Fixed evening hours are all that is disclosed of Project Rainier, and 00:30–08:30 local time is
    what DeepSeek showed.
    """
    by_day, by_night = (np.atleast_1d(np.asarray(units, float)) for units in (day, night))

    def policy(view: View) -> FloatArray:
        inside = (view.hour - night_from) % 24.0 < (night_to - night_from) % 24.0
        return by_night if inside or (weekend_all_night and view.weekday >= 5) else by_day

    return policy


def threshold(*, headroom: float = 0.10, hysteresis: float = 0.05, hold_s: float = 900.0) -> Policy:
    """React to the load of the last minute.

    Parameters
    ----------
    headroom : float
        Serve with so much more than the load needs.
    hysteresis : float
        Give units up only when so large a share of them is not needed.
    hold_s : float
        And only what was not needed at any time in the last so many seconds [s].
    """
    _refuse_below_zero(headroom=headroom, hysteresis=hysteresis, hold_s=hold_s)

    def policy(view: View) -> FloatArray:
        held = max(1, round(hold_s / 60.0))
        need = view.load[:, -1] * (1 + headroom) + view.backlog / 10.0
        past = view.load[:, -held:].max(axis=1) * (1 + headroom)
        have = (view.serving + view.coming).astype(float)
        lower = np.maximum(need, past)
        return np.where(need > have, need, np.where(lower < have * (1 - hysteresis), lower, have))

    return policy


def forecast(
    *,
    quantile: float = 0.999,
    every: int = 15,
    headroom: float = 0.05,
    most: float = 3.0,
    lead_s: float | None = None,
) -> Policy:
    """Serve what the next interval is expected to need, with a margin learned from past errors.

    The expectation is the larger of the last 15 minutes and the same time of an earlier day: a
    week ago if known, else the last day of the same kind (working day or weekend); see
    :func:`workloads.fleet.policies.forecast.predict`. The margin is a quantile of (what came / what
    had been expected) over all that has been seen, at least 1; the first hours of a run without a
    history know little.

    Parameters
    ----------
    quantile : float
        Of past errors.
    every : int
        Minutes between decisions.
    headroom : float
        Serve with so much more on top.
    most : float
        Largest margin that errors may teach.
    lead_s : float, optional
        Time until an order counts [s]; by default what the fleet expects.
    """
    if not 0 < quantile <= 1 or every < 1:
        raise InputError(
            f"forecast with quantile {quantile} and every {every} min; the quantile lies in (0, 1] "
            "and every is at least 1."
        )

    def policy(view: View) -> FloatArray | None:
        if view.minute % every and view.minute > 0:
            return None
        lead = max(1, -(-round((view.lead_s if lead_s is None else lead_s) * 1000) // 60_000))
        first_weekday = (view.weekday - (view.history + view.minute) // DAY) % 7
        expected = [
            _with_margin(load, every, lead, first_weekday, quantile, most) for load in view.load
        ]
        result: FloatArray = np.array(expected) * (1 + headroom) + view.backlog / 10.0
        return result

    return policy


def _with_margin(
    load: FloatArray, every: int, lead: int, first_weekday: int, quantile: float, most: float
) -> float:
    expected, came = predict(load, every=every, lead=lead, first_weekday=first_weekday)
    known = np.isfinite(came) & (expected > 0)
    margin = 1.0
    if known.any():
        margin = float(np.quantile(came[known] / expected[known], quantile))
    return float(expected[-1] * np.clip(margin, 1.0, most))


def oracle(
    need: FloatArray, *, lead_s: float = 0.0, shortest_valley_s: float = 0.0, ramp: int = 0
) -> Policy:
    """Know the future: serve exactly what is needed, ordered early enough.

    Parameters
    ----------
    need : float array (services, minutes)
        Units that each minute of the run will need.
    lead_s : float
        Order so much ahead [s].
    shortest_valley_s : float
        Valleys shorter than this are not lent [s]: a change there and back would not pay.
    ramp : int
        Most units that can be ordered in a minute, 0 for any number.
    """
    lead = int(-(-lead_s // 60.0)) if np.isfinite(lead_s) else need.shape[1]
    window = min(
        int(shortest_valley_s // 60.0) if np.isfinite(shortest_valley_s) else 2**30, need.shape[1]
    )
    plan = np.ceil(need - 1e-9)
    if window > 1:
        padded = np.pad(plan, ((0, 0), (window, window)), mode="edge")
        plan = ndimage.grey_closing(padded, size=(1, window))[:, window:-window]
    if lead:
        ahead = np.pad(plan, ((0, 0), (0, lead)), mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(ahead, lead + 1, axis=1)
        plan = windows.max(axis=2)
    if ramp:
        steps = ramp * np.arange(plan.shape[1], dtype=float)
        plan = np.maximum.accumulate((plan - steps)[:, ::-1], axis=1)[:, ::-1] + steps

    def policy(view: View) -> FloatArray:
        wanted: FloatArray = plan[:, min(view.minute, plan.shape[1] - 1)]
        return wanted

    return policy


def best_static(need: FloatArray, *, headroom: float = 0.0) -> FloatArray:
    """Units that the busiest hour needs: what a fleet that never changes has to keep serving."""
    result: FloatArray = period_means(need, 60).max(axis=1) * (1 + headroom)
    return result


def _refuse_below_zero(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise InputError(f"{name} is {value}; it must be at least 0.")
