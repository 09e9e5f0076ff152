"""Policy ``price``: the share of the day in which it trains, on tariffs with equal prices too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workloads.fleet.policies.rules import price_aware, static
from workloads.fleet.policies.view import View

DAY = 1440
HOURS = np.arange(24)
NIGHT_TARIFF = np.where(HOURS < 8, 20.0, 100.0)
FLAT = np.full(24, 50.0)
RISING = 20.0 + HOURS


def _trained_hours(hourly: np.ndarray[Any, Any], share: float, days: int = 3) -> list[float]:
    """Hours of each day in which the policy trains."""
    prices = np.repeat(np.tile(hourly, days + 1), 60)
    policy = price_aware(static(1), share=share)
    trains = np.zeros(days * DAY, bool)
    for minute in range(days * DAY):
        view = View(
            minute=minute, weekday=0, hour=minute % DAY / 60, load=np.ones((1, minute + 1)),
            history=0, serving=np.ones(1, int), coming=np.zeros(1, int), backlog=np.zeros(1),
            units=4, broken=0, lead_s=600.0, prices_usd_per_mwh=prices[minute:],
        )  # fmt: skip
        decision = policy(view)
        trains[minute] = decision.training is None  # type: ignore[union-attr]
    return (trains.reshape(days, DAY).sum(axis=1) / 60).tolist()


@pytest.mark.parametrize(
    ("hourly", "share", "hours"),
    [
        (NIGHT_TARIFF, 0.0, 0),
        (NIGHT_TARIFF, 0.25, 6),
        (NIGHT_TARIFF, 8 / 24, 8),
        (NIGHT_TARIFF, 0.5, 12),
        (NIGHT_TARIFF, 1.0, 24),
        (FLAT, 0.0, 0),
        (FLAT, 0.5, 12),
        (FLAT, 1.0, 24),
        (RISING, 0.25, 6),
        (RISING, 0.5, 12),
    ],
)
def test_the_stated_share_of_each_day_trains(
    hourly: np.ndarray[Any, Any], share: float, hours: float
) -> None:
    assert _trained_hours(hourly, share) == [hours] * 3
