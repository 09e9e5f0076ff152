"""``price``: serves by forecast, and trains only in the cheapest hours of the coming day."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.forecasting import forecast
from workloads.fleet.policies.kind import PolicyKind, Situation
from workloads.fleet.policies.view import Decision, Policy, View, units_wanted
from workloads.options.fleet import PolicyInputs


def price_aware(serve: Policy, *, share: float = 0.5) -> Policy:
    """Train in the cheapest share of the coming day's minutes, serve by another policy.

    Where a tariff has the same price for many hours and only a part of them belongs to the share,
    that part is trained at the beginning of the hours, rounded up to whole hours.

    ``serve``: decides how many units serve. ``share``: share of the minutes, in [0, 1]; with 1
    training never pauses.
    """
    if not 0 <= share <= 1:
        raise InputError(f"a price share of {share:g} is not in [0, 1]; 0.5 trains half the day.")

    divided = _Divided()

    def policy(view: View) -> Decision:
        """Units as the serving policy wants, training in the cheap share of a day."""
        ahead = view.prices_usd_per_mwh[:MINUTES_PER_DAY]
        cheaper, equal = int((ahead < ahead[0]).sum()), int((ahead == ahead[0]).sum())
        left = share * len(ahead) - cheaper
        if 0 < left < equal:
            cheap = divided.trains(view.minute, _stretch(ahead), left / equal)
        else:
            cheap = left > 0
        return Decision(units_wanted(serve, view), training=None if cheap else 0)

    return policy


def _stretch(ahead: FloatArray) -> int:
    """Minutes from now on for which the price stays as it is."""
    changes = np.flatnonzero(ahead != ahead[0])
    return int(changes[0]) if len(changes) else len(ahead)


@dataclass
class _Divided:
    """Stretch of equal prices of which only a part is trained, from its first minute on."""

    train_until: int = 0
    ends: int = 0

    def trains(self, minute: int, stretch: int, part: float) -> bool:
        """Return whether this minute is trained; a new stretch is divided when the last ended."""
        if minute == 0 or minute >= self.ends:
            hours = math.ceil(stretch * part / 60)
            self.train_until, self.ends = minute + 60 * hours, minute + stretch
        return minute < self.train_until


def _build(settings: PolicyInputs, situation: Situation) -> Policy:
    if not situation.priced:
        raise InputError("policy price needs prices of electricity; add --price FILE.csv.")
    headroom = 0.05 if settings.headroom is None else settings.headroom
    serve = forecast(quantile=settings.quantile, headroom=headroom)
    return price_aware(serve, share=settings.price_share)


KIND = PolicyKind(
    "price",
    "serves by forecast, trains in the cheapest hours",
    _build,
    bound="mpc-oracle",
)
