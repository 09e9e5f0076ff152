"""Two policies meet the same failures, and their difference has an interval of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.support.toy_fleet import SERVICE, scaled_to_fleet, simulate
from workloads.demand import azure_code
from workloads.fleet.front import daily_training, paired_interval
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import default_jobs
from workloads.fleet.policies.rules import static, threshold
from workloads.fleet.policies.view import Policy
from workloads.fleet.processes.failures import Failures, Fleet
from workloads.fleet.results import summary
from workloads.fleet.simulation import FleetRun

UNITS = 60
FAILING = Failures(43_200.0, 60.0)


def _run(policy: Policy, *, failures: Failures = FAILING, days: int = 3, seed: int = 0) -> FleetRun:
    load = scaled_to_fleet(azure_code().between(0, days * 1440), [SERVICE], UNITS)
    costs = replace(ChangeCosts.from_catalogue(4), miss_share=0.3)
    return simulate(
        load,
        [SERVICE],
        Fleet(UNITS, costs=costs, failures=failures),
        policy,
        jobs=default_jobs(UNITS),
        rng=np.random.default_rng(seed),
    )


def test_failures_do_not_depend_on_the_policy() -> None:
    """Repairs that take no time leave no unit that is down, so that every draw counts."""
    at_once = replace(FAILING, repair_s=0.0)
    counts = [
        _run(policy, failures=at_once, days=1).failures
        for policy in (static(5), static(55), threshold(headroom=0.3))
    ]
    assert counts[0] > 50
    assert len(set(counts)) == 1
    assert _run(static(5), failures=at_once, days=1, seed=1).failures != counts[0]


def test_the_days_of_a_run_sum_to_its_training() -> None:
    run = _run(threshold())
    total = summary(run)["training_chip_hours"]
    assert daily_training(run).sum() == pytest.approx(total)
    assert len(daily_training(run)) == 3


def test_a_difference_is_surer_than_two_runs_of_their_own() -> None:
    """Headrooms of 10 and 20 %: three days of which two are a weekend."""
    one, two = (daily_training(_run(threshold(headroom=share))) for share in (0.1, 0.2))
    paired = paired_interval(one, two)
    alone = [paired_interval(days, np.zeros(3)) for days in (one, two)]
    assert paired is not None
    assert alone[0] is not None
    assert alone[1] is not None
    assert 0 < paired.low < paired.high  # less headroom trains more, for sure
    assert alone[0].low < alone[1].high  # which the two by themselves do not say
    assert (paired.high - paired.low) < 0.1 * (alone[0].high - alone[0].low)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12), st.integers(0, 9))
def test_the_interval_is_student_s(values: list[float], seed: int) -> None:
    other = np.random.default_rng(seed).normal(size=len(values))
    ends = paired_interval(np.array(values), other)
    assert ends is not None
    expected = stats.ttest_rel(values, other).confidence_interval(0.8)
    assert (ends.low, ends.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)
    assert paired_interval(np.array(values[:1]), other[:1]) is None
