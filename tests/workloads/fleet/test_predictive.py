"""``mpc`` beside ``forecast``: the same in long valleys, and fewer moves in short ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from workloads.demand import constant
from workloads.fleet import ChangeCosts, Fleet, FleetRun, Service, Signals, simulate
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.policies.forecasting import forecast
from workloads.fleet.policies.predictive import predictive
from workloads.fleet.policies.view import Policy
from workloads.serving import fixed_rate

DAY = 1440
LEAD_S, BACK_S = 900.0, 900.0


def _run(valley: int, policy: Policy) -> FleetRun:
    """Run a day of 20 needed units, but for valleys of 10 units every four hours."""
    low = np.arange(DAY) % 240 < valley
    day = np.where(low, 600.0, 1200.0)[None, :]
    demand = replace(constant(1.0, minutes=DAY), requests=day)
    costs = replace(ChangeCosts.fixed(0.0), runtime_start_s=LEAD_S, resize_s=120.0)
    history = replace(demand, requests=np.tile(day, 7), start="2023-12-25T00:00")
    history = replace(
        history,
        prompt_tokens=np.tile(demand.prompt_tokens, 7),
        output_tokens=np.tile(demand.output_tokens, 7),
    )
    return simulate(
        demand,
        [Service("chat", fixed_rate(1.0))],
        Fleet(40, costs=costs),
        policy,
        jobs=[TrainingJob("run", 40, 1, tokens_per_s=((1, 1.0),), reclaim="shrink")],
        signals=Signals(history=history),
    )


def _tokens(run: FleetRun) -> float:
    return sum(tally.tokens for _, tally in run.jobs)


def _moved(run: FleetRun) -> int:
    return sum(one.units for one in run.changes)


def test_a_valley_that_ends_before_lent_units_train_is_not_lent() -> None:
    """Of an hour, half is over when the forecast lends 16 more units; they come back untrained."""
    changing = predictive(change_s=LEAD_S + BACK_S, headroom=0.0)
    planned, followed = _run(60, changing), _run(60, forecast(headroom=0.0))
    assert _tokens(planned) == _tokens(followed)
    assert _moved(planned) < _moved(followed) / 3
    assert _moved(followed) - _moved(planned) == 6 * 2 * 16  # there and back in each of six valleys


def test_in_long_valleys_both_order_the_same() -> None:
    changing = predictive(change_s=LEAD_S + BACK_S, headroom=0.0)
    planned, followed = _run(120, changing), _run(120, forecast(headroom=0.0))
    assert _tokens(planned) == pytest.approx(_tokens(followed), rel=0.02)
