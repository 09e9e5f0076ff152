"""Intervals of a fleet's results: points without uncertainty, brute force with it, and pairs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import cluster_sim as cs
from cluster_sim import processes
from tests.support.commands import document_of
from tests.support.forks import forks
from tests.support.toy_fleet import SERVICE, scaled_to_fleet, simulate
from workloads.confidence.sensitivity import AS_STATED, Uncertain
from workloads.demand import Horizon, azure_code
from workloads.fleet.front import daily_training, paired_interval
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import default_jobs
from workloads.fleet.intervals import (
    STATED,
    Causes,
    _at_ends,
    failing,
    fleet_intervals,
    loaded,
    miniature,
    slowed,
)
from workloads.fleet.policies.rules import static, threshold
from workloads.fleet.results import summary
from workloads.fleet.scenario import policy_of, run
from workloads.fleet.setup.demand import demand_level
from workloads.fleet.state.services import Failures, Fleet

KNOWN = Causes(AS_STATED, AS_STATED, AS_STATED, AS_STATED)
SPREAD = Uncertain(0.8, 1.25, "assumed by this test")
ALL = Causes(SPREAD, SPREAD, SPREAD, Uncertain(0.5, 2.0))
__all__ = ["forks"]


@pytest.fixture(scope="module")
def fleet():
    """Half a day of a fleet whose jobs are rated, as if by a simulated step."""
    done = cs.run_fleet("trn2-ultraserver:64", unit_rate=5.0, days=0.5, start_day=2.0)
    jobs = tuple(_rated(job) for job in done.scenario.jobs)
    built = done.scenario.changed(lambda _: {"jobs": jobs})
    return replace(done, scenario=built, run=run(built, _forecast(built)))


def _rated(job):
    return replace(job, tokens_per_s=((1, 5e4),), step_tokens=16e6, step_time=SPREAD)


def _forecast(scenario):
    return policy_of("forecast", scenario)


def _ends(fleet, causes):
    return fleet_intervals(fleet.scenario, fleet.summary, _forecast, causes=causes)


def test_without_uncertainty_every_interval_is_a_point_and_nothing_is_repeated(fleet):
    repeated = []

    def watch(each, _):
        """Note what is repeated."""
        repeated.extend(each)
        return repeated

    ends = fleet_intervals(fleet.scenario, fleet.summary, _forecast, causes=KNOWN, watch=watch)
    assert not repeated
    for name in STATED:
        value = fleet.summary[name]
        if value is not None:
            assert ends[name]["low"] == pytest.approx(value, rel=1e-12)
            assert ends[name]["high"] == pytest.approx(value, rel=1e-12)


@pytest.mark.usefixtures("forks")
def test_the_number_of_processes_changes_neither_intervals_nor_comparison(fleet, monkeypatch):
    answers = []
    for workers in (1, 3):
        monkeypatch.setattr(processes, "available_workers", lambda workers=workers: workers)
        answers.append((_ends(fleet, ALL), replace(fleet).regret))
    assert answers[0] == answers[1]


def test_the_step_time_scales_tokens_and_nothing_else(fleet):
    ends, tokens = _ends(fleet, replace(KNOWN, step_time=SPREAD)), fleet.summary["training_tokens"]
    assert ends["training_tokens"]["low"] == pytest.approx(tokens * 0.8, rel=0.005)
    assert ends["training_tokens"]["high"] == pytest.approx(tokens * 1.25, rel=0.005)
    hours = fleet.summary["training_chip_hours"]
    assert ends["training_chip_hours"]["low"] == pytest.approx(hours, rel=1e-12)
    assert ends["usd_per_training_step"]["high"] == pytest.approx(
        fleet.summary["usd_per_training_step"] / 0.8, rel=0.005
    )


def test_the_price_scales_money_and_nothing_else(fleet):
    ends, results = _ends(fleet, replace(KNOWN, price=SPREAD)), fleet.summary
    for name in STATED:
        low, high = (0.8, 1.25) if name.startswith(("cost", "usd")) else (1.0, 1.0)
        if results[name] is not None:
            assert ends[name]["low"] == pytest.approx(results[name] * low, rel=0.005), name
            assert ends[name]["high"] == pytest.approx(results[name] * high, rel=0.005), name


@pytest.mark.parametrize("words", ["fleet --days 0.1", "lend --until 06:00 --confidence 70%"])
def test_answers_carry_the_range_of_a_price_and_name_its_row(words):
    """The price of a Trn3 of 144 chips is assumed: 504 USD/h, 432 to 648."""
    shared = ["--cluster=trn3-gen2:20", "--demand=azure-code", "--unit-rate=5", "--failures=off"]
    document = document_of([*words.split(), *shared, "--json"])
    price = document["interval"]["inputs"]["price"]
    assert (price["low"], price["high"]) == pytest.approx((432 / 504, 648 / 504))
    assert price["basis"].startswith("trn3-gen2 price 504 USD/h (assumed")
    name = "usd" if "usd" in document else "cost_usd"
    ends = document["interval"][name]
    assert ends["high"] / document[name] == pytest.approx(648 / 504, rel=0.01)


def _by_brute_force(fleet, causes, draws):
    """Return the results of runs with all inputs drawn together, and failures of other seeds."""
    inputs = (causes.demand, causes.capacity, causes.step_time, causes.failures)
    scores = np.random.default_rng(3).normal(size=(len(inputs), draws))
    rows = []
    for seed, values in enumerate(
        zip(*(a.factors(s) for a, s in zip(inputs, scores, strict=True)), strict=True)
    ):
        demand, capacity, step, failures = (float(value) for value in values)
        changed = failing(slowed(loaded(fleet.scenario, 1 / capacity), step), failures)
        past = changed.horizon.history and changed.horizon.history.times(demand)
        requests = changed.demand.times(demand)
        changed = replace(changed, demand=requests, horizon=Horizon(requests, past))
        done = run(changed, _forecast(changed), seed=seed)
        rows.append(summary(done))
    return rows


@pytest.mark.slow
def test_the_interval_is_that_of_brute_force(fleet):
    ends, rows = _ends(fleet, ALL), _by_brute_force(fleet, ALL, 300)
    for name in (
        *("training_tokens", "training_chip_hours", "inference_chip_hours", "served_tokens"),
        *("usd_per_million_tokens", "usd_per_million_trained_tokens", "energy_joules"),
    ):
        values = np.array([row[name] for row in rows], float)
        low, high = np.quantile(values, (0.1, 0.9))
        width = high - low
        assert abs(ends[name]["low"] - low) < 0.12 * width, name
        assert abs(ends[name]["high"] - high) < 0.12 * width, name
        inside = (values >= ends[name]["low"]) & (values <= ends[name]["high"])
        assert inside.mean() == pytest.approx(0.8, abs=0.1), name


def test_a_large_fleet_is_repeated_in_a_smaller_one_of_the_same_kind():
    """With and without, ends differ by less than 4 % of the result."""
    words = {"policy": "static", "unit_rate": 5.0, "days": 0.2, "scale_to_peak": 0.6}
    large = cs.run_fleet("trn2-ultraserver:2500", **words)
    small = miniature(large.scenario)
    assert small.cluster.domains == 1000
    assert miniature(small) is small
    assert small.need.max() / 1000 == pytest.approx(large.scenario.need.max() / 2500)
    questions = [each for each in _at_ends(small, ALL, 0) if each.cause == "failures"]
    for each in questions:  # whose score is by how much more often parts fail
        assert each.scenario.fleet.failures == failing(small, 1 + each.score).fleet.failures
    names = ("training_chip_hours", "inference_chip_hours", "energy_joules", "training_goodput")
    by_small, by_large = (
        fleet_intervals(large.scenario, large.summary, lambda changed: policy_of("static", changed),
                        causes=ALL, stated_sizes=stated)
        for stated in (False, True)
    )  # fmt: skip
    for name in names:
        for end in ("low", "high"):
            value = large.summary[name]
            assert by_small[name][end] == pytest.approx(by_large[name][end], abs=0.04 * value)


def test_a_demand_of_weeks_differs_from_week_to_week_and_a_short_one_is_as_stated():
    """Weeks that grow by a tenth differ by that; a single day says nothing of the next."""
    week = np.tile(np.repeat([1.0, 3.0], 720), 7)
    growing = np.concatenate([week * 1.1**number for number in range(8)])
    level = demand_level(growing, "2024-01-01T00:00", 7 * 1440)
    assert (level.low, level.high) == pytest.approx((1 / 1.1, 1.1))
    assert demand_level(growing[:1440], "2024-01-01T00:00", 600).is_point
    days = np.repeat([10.0, 11.0, 10.0, 11.0, 10.0, 4.0, 4.4], 1440)  # from a Monday
    level = demand_level(days, "2024-01-01T00:00", 1440)
    assert level.high == pytest.approx(1.1)
    assert "5 days" in level.basis


UNITS = 60
FAILING = Failures(43_200.0, 60.0)


def _run(policy, *, failures=FAILING, days=3, seed=0):
    load = scaled_to_fleet(azure_code().between(0, days * 1440), [SERVICE], UNITS)
    costs = replace(ChangeCosts.from_catalogue(4), miss_share=0.3)
    fleet, rng = Fleet(UNITS, costs=costs, failures=failures), np.random.default_rng(seed)
    return simulate(load, [SERVICE], fleet, policy, jobs=default_jobs(UNITS), rng=rng)


def test_failures_do_not_depend_on_the_policy():
    """Repairs that take no time leave no unit that is down, so that every draw counts."""
    at_once = replace(FAILING, repair_s=0.0)
    policies = (static(5), static(55), threshold(headroom=0.3))
    counts = [_run(policy, failures=at_once, days=1).failures for policy in policies]
    assert counts[0] > 50
    assert len(set(counts)) == 1
    assert _run(static(5), failures=at_once, days=1, seed=1).failures != counts[0]


def test_a_difference_is_surer_than_two_runs_of_their_own():
    """Headrooms of 10 and 20 %: three days of which two are a weekend."""
    runs = [_run(threshold(headroom=share)) for share in (0.1, 0.2)]
    one, two = (daily_training(run) for run in runs)
    assert one.sum() == pytest.approx(summary(runs[0])["training_chip_hours"])
    assert len(one) == 3
    paired = paired_interval(one, two)
    alone = [paired_interval(days, np.zeros(3)) for days in (one, two)]
    assert 0 < paired.low < paired.high  # less headroom trains more, for sure
    assert alone[0].low < alone[1].high  # which the two by themselves do not say
    assert (paired.high - paired.low) < 0.1 * (alone[0].high - alone[0].low)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12), st.integers(0, 9))
def test_the_interval_is_student_s(values, seed):
    other = np.random.default_rng(seed).normal(size=len(values))
    ends = paired_interval(np.array(values), other)
    expected = stats.ttest_rel(values, other).confidence_interval(0.8)
    assert (ends.low, ends.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)
    assert paired_interval(np.array(values[:1]), other[:1]) is None
