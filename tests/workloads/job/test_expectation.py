"""Goodput by closed forms is near the simulated one, and smooth where that is random."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.job import Cause, FailureRates, Job, Recovery, Stragglers, simulate
from workloads.job.goodput import smooth_goodput

DAY_S = 86400.0


@pytest.mark.parametrize("mtbf_h", [3.0, 12.0, 100.0])
@pytest.mark.parametrize("slow", [Stragglers(), Stragglers(1 / (20 * DAY_S), 0.2, 6 * 3600.0)])
def test_closed_forms_are_within_half_a_point_of_the_simulation(
    mtbf_h: float, slow: Stragglers
) -> None:
    trial = Job(
        rates=FailureRates((Cause("chip", 1 / (mtbf_h * 3600), True),)),
        recovery=Recovery(400.0, 30.0, 600.0, 0.2, 4 * 3600.0),
        interval_s=1800.0,
        stall_s=10.0,
        write_s=60.0,
        units=64,
        spares=200,
        span_s=200 * DAY_S,
        stragglers=slow,
    )
    runs = [simulate(trial, np.random.default_rng(seed)).goodput for seed in range(6)]
    assert smooth_goodput(trial) == pytest.approx(float(np.mean(runs)), abs=0.005)


@pytest.mark.parametrize("found_after_s", [0.0, 1800.0])
def test_a_straggler_slows_half_an_interval_and_the_time_until_it_is_found(
    found_after_s: float,
) -> None:
    """It is replaced with the next checkpoint, here at no cost but what the interval had left."""
    trial = Job(
        rates=FailureRates(()),
        recovery=Recovery(0.0, 0.0, 0.0, 0.0, 0.0),
        interval_s=3600.0,
        stall_s=0.0,
        write_s=0.0,
        units=64,
        spares=200,
        span_s=400 * DAY_S,
        stragglers=Stragglers(1 / (10 * 3600.0), 0.5, found_after_s),
    )
    goodput = simulate(trial, np.random.default_rng(0)).goodput
    assert smooth_goodput(trial) == pytest.approx(goodput, abs=0.005)
