"""The policy ``threshold`` gives up units only when more than its hysteresis are idle."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.fleet.policies.rules import threshold
from workloads.fleet.policies.view import View


def wished(load: float, **options: float) -> float:
    """Units that the policy wants of 100 that serve, after an hour of a load without headroom."""
    view = View(
        minute=60, weekday=0, hour=1.0, load=np.full((1, 60), load), history=0,
        serving=np.array([100]), coming=np.array([0]), backlog=np.zeros(1),
        units=200, broken=0, lead_s=0.0,
    )  # fmt: skip
    wishes = np.asarray(threshold(headroom=0.0, **options)(view), float)
    return float(wishes[0])


@pytest.mark.parametrize(
    ("hysteresis", "load", "units"),
    [
        (0.05, 96.0, 100.0),
        (0.05, 94.0, 94.0),
        (0.2, 81.0, 100.0),
        (0.2, 79.0, 79.0),
        (0.0, 99.0, 99.0),
    ],
)
def test_units_stay_while_fewer_than_the_hysteresis_are_idle(
    hysteresis: float, load: float, units: float
) -> None:
    assert wished(load, hysteresis=hysteresis) == units


def test_more_load_than_units_is_followed_at_once() -> None:
    assert wished(130.0, hysteresis=0.5) == 130.0
