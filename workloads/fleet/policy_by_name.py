"""Policies by name, set up for a scenario."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from topologies.errors import InputError, suggestion
from workloads.fleet.policies.policies import (
    NAMES,
    best_static,
    clock,
    forecast,
    oracle,
    static,
    threshold,
)
from workloads.fleet.policies.user_policy import load_policy
from workloads.fleet.policies.view import Policy
from workloads.fleet.scenario import Scenario

FloatArray = npt.NDArray[np.float64]


def policy_of(
    name: str,
    made: Scenario,
    *,
    headroom: float | None = None,
    hysteresis: float | None = None,
    hold_s: float | None = None,
    quantile: float = 0.999,
    night: tuple[float, float] = (0.0, 8.0),
    night_share: float = 0.5,
    static_units: float | None = None,
) -> Policy:
    """Return a built-in policy by name, set up for a scenario, or a user's from a file.

    ``static`` keeps what the busiest hour needs, or ``static_units``; ``clock`` keeps that by day
    and ``night_share`` of it by night; ``oracle`` knows the run's demand and the costs of changes.
    """
    if name.endswith(".py"):
        return load_policy(name)
    need = made.need
    busiest = best_static(need, headroom=headroom or 0.0)
    if name == "static":
        if static_units is None:
            return static(busiest)
        return static(busiest * static_units / busiest.sum())
    if name == "clock":
        return clock(busiest, busiest * night_share, night_from=night[0], night_to=night[1])
    if name == "threshold":
        return threshold(
            headroom=0.10 if headroom is None else headroom,
            hysteresis=0.05 if hysteresis is None else hysteresis,
            hold_s=900.0 if hold_s is None else hold_s,
        )
    if name == "forecast":
        return forecast(quantile=quantile, headroom=0.05 if headroom is None else headroom)
    if name == "oracle":
        return _oracle(made, need * (1 + (headroom or 0.0)))
    raise InputError(
        f"unknown policy {name!r}; choose {', '.join(NAMES)} or a file such as mine.py."
        + suggestion(name, NAMES)
    )


def _oracle(made: Scenario, need: FloatArray) -> Policy:
    """Order ahead by the change time; lend no valley shorter than a change there and back."""
    lead = made.lead_s
    back = made.costs.drain_s + made.costs.join_s + made.costs.restart_s
    return oracle(
        need,
        lead_s=lead + 60.0 if lead else 0.0,
        shortest_valley_s=lead + back,
        ramp=made.limits.changes_per_minute,
    )
