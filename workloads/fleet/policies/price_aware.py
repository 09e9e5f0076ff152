"""``price``: serves by forecast, and trains only in the cheapest hours of the coming day."""

from __future__ import annotations

import numpy as np

from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.forecasting import forecast
from workloads.fleet.policies.kind import PolicyKind, Settings, Situation
from workloads.fleet.policies.view import Decision, Policy, View, units_wanted


def price_aware(serve: Policy, *, share: float = 0.5) -> Policy:
    """Train in the cheapest share of the coming day's minutes, serve by another policy.

    Parameters
    ----------
    serve : Policy
        Decides how many units serve.
    share : float
        Share of the minutes, in [0, 1]; with 1 training never pauses.
    """
    if not 0 <= share <= 1:
        raise InputError(f"a price share of {share:g} is not in [0, 1]; 0.5 trains half the day.")

    def policy(view: View) -> Decision:
        ahead = view.prices_usd_per_mwh[:MINUTES_PER_DAY]
        cheap = share > 0 and ahead[0] <= np.quantile(ahead, share)
        return Decision(units_wanted(serve, view), training=None if cheap else 0)

    return policy


def _build(settings: Settings, situation: Situation) -> Policy:
    if not situation.priced:
        raise InputError("policy price needs prices of electricity; add --price FILE.csv.")
    headroom = 0.05 if settings.headroom is None else settings.headroom
    serve = forecast(quantile=settings.quantile, headroom=headroom)
    return price_aware(serve, share=settings.price_share)


KIND = PolicyKind(
    "price", "serves by forecast, trains in the cheapest hours", _build, bound="mpc-oracle"
)
