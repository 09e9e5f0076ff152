"""``forecast``: the larger of the load now and that of an earlier day, with a learned margin."""

from __future__ import annotations

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.forecast import predict
from workloads.fleet.policies.kind import PolicyKind, Situation
from workloads.fleet.policies.view import Policy, View
from workloads.options.fleet import PolicyInputs


def forecast(
    *,
    quantile: float = 0.999,
    every: int = 15,
    headroom: float = 0.05,
    most: float = 3.0,
    lead_s: float | None = None,
) -> Policy:
    """Serve the expected need of the next interval, with a margin learned from past errors.

    The expectation is the larger of the load of the last 15 minutes and that of the same time of an
    earlier day: a week ago if known, else the last day of the same kind (working day or weekend);
    see :func:`workloads.fleet.policies.forecast.predict`. The margin is a quantile of the ratios of
    observed to expected load in all intervals so far, at least 1; a run without a history has few
    of them in its first hours.

    Parameters
    ----------
    quantile : float
        Quantile of the past ratios.
    every : int
        Minutes between decisions.
    headroom : float
        Share of the need that is served with on top.
    most : float
        Largest margin that is learned.
    lead_s : float, optional
        Time from an order until it takes effect [s]; by default the one that the fleet expects.
    """
    if not 0 < quantile <= 1 or every < 1:
        raise InputError(
            f"forecast with quantile {quantile} and every {every} min; the quantile lies in (0, 1] "
            "and every is at least 1."
        )

    def policy(view: View) -> FloatArray | None:
        """Units for the forecast, at the minutes that the policy acts."""
        if view.minute % every and view.minute > 0:
            return None
        lead = max(1, -(-round((view.lead_s if lead_s is None else lead_s) * 1000) // 60_000))
        first_weekday = (view.weekday - (view.history + view.minute) // MINUTES_PER_DAY) % 7
        expected = [
            with_margin(load, every, lead, first_weekday, quantile, most) for load in view.load
        ]
        # Units to work off the waiting requests within ten minutes come on top.
        result: FloatArray = np.array(expected) * (1 + headroom) + view.backlog / 10.0
        return result

    return policy


def with_margin(
    load: FloatArray, every: int, lead: int, first_weekday: int, quantile: float, most: float
) -> float:
    """Expected load of the next interval, times the learned margin between 1 and ``most``."""
    expected, came = predict(load, every=every, lead=lead, first_weekday=first_weekday)
    comparable = np.isfinite(came) & (expected > 0)
    margin = 1.0
    if comparable.any():
        margin = float(np.quantile(came[comparable] / expected[comparable], quantile))
    return float(expected[-1] * np.clip(margin, 1.0, most))


def _build(settings: PolicyInputs, _situation: Situation) -> Policy:
    headroom = 0.05 if settings.headroom is None else settings.headroom
    return forecast(quantile=settings.quantile, headroom=headroom)


KIND = PolicyKind(
    "forecast",
    "the larger of now and an earlier day, by past errors",
    _build,
)
