"""Several kinds of units in one fleet: laws, placement, and what users state wrongly."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.examples import examples
from tests.support.toy_fleet import FREE, PRICES
from workloads.demand import constant
from workloads.fleet.inputs.jobs import evaluation_job
from workloads.fleet.inputs.prices import Prices
from workloads.fleet.policies.predictive import (
    JobNeed,
    Outlook,
    expected_by_forecast,
    first_step,
    predictive,
)
from workloads.fleet.policies.rules import forecast, static, threshold
from workloads.fleet.policies.view import Decision, Limits, Situation
from workloads.fleet.results import kind_shares, role_chip_ms, role_units, summary, timeline
from workloads.fleet.simulation import simulate
from workloads.fleet.state.services import BatchWork, Failures, Fleet, Kind, Service, speeds_of
from workloads.fleet.state.world import Role
from workloads.options.fleet import PolicyInputs
from workloads.serving.tables import fixed_rate

MINUTES = 480


def _kind(name, units, rate=2.0, **others):
    """Return a kind whose units serve at a rate, and evaluate what is left."""
    fleet = Fleet(units, chips_per_unit=others.pop("chips", 64), costs=others.pop("costs", FREE))
    fleet = replace(fleet, failures=others.pop("failures", None))
    jobs = others.pop("jobs", (evaluation_job(units),))
    service = Service("chat", fixed_rate(rate), weights_bytes=1e12)
    return Kind(name, (service,), fleet, jobs, PRICES, **others)


def _demand(peak_per_s):
    """Return eight hours of a day's demand with a peak."""
    wave = 1 + np.sin(np.arange(MINUTES) * 2 * np.pi / MINUTES)
    return constant(60.0, minutes=MINUTES).times(peak_per_s * wave / 2)


@pytest.mark.parametrize("parts", [(7, 5), (1, 11), (4, 4, 4)])
@pytest.mark.parametrize("policy", [threshold, forecast, lambda: static(6)])
def test_kinds_of_the_same_units_are_one_kind_of_their_sum(parts, policy):
    demand = _demand(20.0)
    whole = simulate(demand, [_kind("all", 12)], policy())
    divided = simulate(demand, [_kind(f"part {n}", n) for n in parts], policy())
    assert np.array_equal(role_chip_ms(whole), role_chip_ms(divided))
    for name in ("served", "shed", "backlog", "capacity"):
        assert np.array_equal(getattr(whole.queues[0], name), getattr(divided.queues[0], name))
    numbers = [summary(run) for run in (whole, divided)]
    for name in ("served_tokens", "training_chip_hours", "cost_usd", "slo_attainment"):
        assert numbers[0][name] == pytest.approx(numbers[1][name], rel=1e-13)
    assert numbers[1]["usd_per_million_tokens"] == pytest.approx(
        numbers[0]["usd_per_million_tokens"], rel=0.05
    )  # each kind shares its own broken and idle hours between serving and training


@given(
    units=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    rates=st.lists(st.sampled_from([0.5, 2.0, 3.1]), min_size=3, max_size=3),
    chips=st.lists(st.sampled_from([8, 64, 144]), min_size=3, max_size=3), never=st.booleans(),
    load=st.floats(0.1, 1.5), seed=st.integers(0, 5),
)  # fmt: skip
@examples(25)
def test_every_kind_keeps_its_chips_and_all_tokens_count(units, rates, chips, never, load, seed):
    kinds = [
        _kind(
            f"kind {n}", *(units[n], rates[n]), chips=chips[n],
            failures=Failures(2e5 * (n + 1), 3600.0), serves=n == 0 or not never,
        ) for n in range(len(units))
    ]  # fmt: skip
    demand = _demand(load * sum(n * rate for n, rate in zip(units, rates, strict=False)))
    run = simulate(demand, kinds, threshold(), rng=np.random.default_rng(seed))
    for kind in run.kinds:
        total = role_chip_ms(replace(run, kinds=(kind,)))
        chip_ms = np.arange(MINUTES + 1) * 60_000 * kind.units * kind.chips_per_unit
        assert np.array_equal(total.sum(axis=1), chip_ms)
        assert kind.speed.any() or total[-1, Role.SERVING] == 0
    numbers = summary(run)
    parts = numbers["served_tokens"] + numbers["queued_tokens"] + numbers["shed_tokens"]
    assert parts == numbers["offered_tokens"]
    assert np.allclose(kind_shares(run, 0).sum(axis=0), 1.0)
    if len(kinds) > 1:
        rows = numbers["kinds"]
        for name in ("chip_hours", "served_tokens", "cost_usd", "energy_joules", "failures"):
            assert sum(row[name] for row in rows) == pytest.approx(numbers[name], rel=1e-12)
        frame = timeline(run)
        for role in ("serving", "evaluation", "broken"):
            each = sum(frame[f"{kind.name}_{role}_units"] for kind in kinds)
            assert np.allclose(each, frame[f"{role}_units"])


def test_the_second_kind_serves_only_what_the_first_cannot():
    kinds = [_kind("first", 4, 3.0), _kind("second", 6, 1.5)]
    run = simulate(constant(60 * 3.0 * 6, minutes=30), kinds, static(6))
    assert [float(kind.service_units[-1, 0]) for kind in run.kinds] == [4.0, 4.0]
    assert run.queues[0].served.tolist() == [60 * 18] * 30
    low = simulate(constant(60 * 3.0 * 2, minutes=30), kinds, static(2))
    assert [float(kind.service_units[-1, 0]) for kind in low.kinds] == [2.0, 0.0]


def test_units_that_break_are_replaced_from_the_next_kind():
    fails = Failures(3e4, 1e9)
    kinds = [_kind("first", 5, failures=fails), _kind("second", 5)]
    run = simulate(constant(60 * 2.0 * 5, minutes=MINUTES), kinds, static(5))
    broken = role_units(run)[-1, Role.BROKEN]
    assert broken >= 1
    assert run.kinds[1].service_units[-1, 0] == broken
    assert run.queues[0].served[-1] == run.queues[0].capacity[-1] == 600


def test_a_policy_sees_the_kinds_and_may_place_them_itself():
    seen = []
    kinds = [_kind("first", 4, 3.0), _kind("second", 6, 1.5)]
    run = simulate(constant(450.0, minutes=10), kinds, lambda view: seen.append(view) or [[1], [3]])
    assert [float(kind.service_units[-1, 0]) for kind in run.kinds] == [1.0, 3.0]
    first, second = seen[-1].kinds
    assert (first.name, first.units, second.speed.tolist()) == ("first", 4, [0.5])
    assert (first.serving.tolist(), second.serving.tolist()) == ([1], [3])
    assert seen[-1].serving.tolist() == [1 + 3 * 0.5]
    with pytest.raises(cs.InputError, match="a number for each of 1 services"):
        simulate(constant(60.0, minutes=2), kinds, lambda view: [[1], [1], [1]])


def test_a_limit_on_training_is_spent_where_units_serve_last():
    kinds = [_kind("first", 4), _kind("second", 3)]
    run = simulate(constant(60.0, minutes=10), kinds, lambda _: Decision([1], training=4))
    lent = [role_units(replace(run, kinds=(kind,)))[-1, Role.EVALUATION] for kind in run.kinds]
    assert lent == [1.0, 3.0]


@pytest.mark.parametrize(("limits", "placed"), [
    (Limits(), [[1], [0]]),
    (Limits(floor=3), [[3], [0]]),
    (Limits(floor=6), [[4], [4]]),  # four of the first, and four that serve as two of it
    (Limits(cap=2), [[1], [0]]),
])  # fmt: skip
def test_floor_and_cap_hold_for_all_kinds_together(limits, placed):
    kinds = [_kind("first", 4, 3.0), _kind("second", 6, 1.5)]
    kinds = [replace(kind, fleet=replace(kind.fleet, limits=limits)) for kind in kinds]
    for policy in (static(1), lambda _: [[1], [0]]):
        run = simulate(constant(60.0, minutes=2), kinds, policy)
        assert [kind.service_units[-1].tolist() for kind in run.kinds] == placed
    crowded = simulate(constant(60.0, minutes=2), kinds, lambda _: [[3], [4]])
    first, second = (kind.service_units[-1, 0] for kind in crowded.kinds)
    assert first + second / 2 == (2 if limits.cap else max(5, limits.floor))


def test_electricity_of_training_is_weighed_by_the_draw_of_each_kind():
    kinds = [_kind("small", 2), _kind("large", 3, chips=128, serves=False)]
    kinds[1] = replace(kinds[1], economics=replace(PRICES, busy_w=1500.0))
    dear = np.repeat([10.0, 50.0], 5)
    # All units of the first kind serve in the dear minutes.
    run = simulate(constant(0.001, minutes=10), kinds, lambda view: 2 if view.minute >= 5 else 0)
    numbers = summary(run, Prices(dear))
    always, by_turns = 3 * 128 * 1500.0, 2 * 64 * 750.0
    paid = (10 * (always + by_turns) + 50 * always) / (2 * always + by_turns)
    assert numbers["training_usd_per_mwh"] == pytest.approx(paid)
    rows = numbers["kinds"]
    assert [row["training_usd_per_mwh"] for row in rows] == [10.0, 30.0]
    assert sum(row["electricity_usd"] for row in rows) == pytest.approx(numbers["electricity_usd"])


def test_speed_is_the_ratio_of_rates():
    kinds = [_kind("a", 1, 2.0), _kind("b", 1, 3.0), replace(_kind("c", 1, 5.0), serves=False)]
    assert speeds_of(constant(6.0, minutes=3), kinds)[:, 0] == pytest.approx([1.0, 1.5, 0.0])


def _planning():
    """Plan by the forecast, at no time of a change."""
    situation = Situation(np.ones((1, 1)), lead_s=0.0, back_s=0.0)
    return predictive(expected_by_forecast(), PolicyInputs(), situation)


def test_a_plan_serves_with_the_kind_whose_training_is_worth_least():
    quarter = np.full(2, 15.0)
    ahead = Outlook(
        minutes=quarter, need=np.full((1, 2), 3.0), kept=np.zeros((2, 1)), training=np.zeros(2),
        units=np.array([4.0, 8.0]), lead=0.0, back=0.0, price=np.zeros(2),
        other_units=np.full(2, 9.0), speed=np.array([[1.0], [0.5]]),
        away=np.zeros((2, 1), bool), rise=np.ones(2), worth=np.array([1.0, 0.2]),
        batch=np.zeros(2),
    )  # fmt: skip
    step = first_step(ahead)
    assert (step.kept.tolist(), step.training.tolist()) == ([[0.0], [6.0]], [4.0, 2.0])
    dear = first_step(replace(ahead, worth=np.array([1.0, 0.8])))
    assert (dear.kept.tolist(), dear.training.tolist()) == ([[3.0], [0.0]], [1.0, 8.0])
    # Four units' power is spent where a watt trains most, and a job runs on its kind alone.
    tight = replace(ahead, rise=np.array([2.0, 1.0]), power_units=np.full(2, 8.0))
    assert first_step(tight).training.tolist() == [4.0, 0.0]
    job = JobNeed(2.0, 30.0, 1, (0.0, 1.0))
    assert first_step(replace(ahead, jobs=(job,))).jobs.tolist() == [2.0]


def _batch(rate, per_minute):
    """Return requests that may wait two hours."""
    return BatchWork(constant(per_minute, minutes=MINUTES), np.full(MINUTES, rate), 120)


@pytest.mark.parametrize("policy", [threshold, _planning])
@pytest.mark.parametrize("speeds", [(2.0, 2.0), (2.0, 1.0)])
def test_batch_requests_run_on_every_kind_that_serves(policy, speeds):
    kinds = [_kind(f"kind {n}", 6, rate) for n, rate in enumerate(speeds)]
    kinds.append(replace(_kind("trains", 3), serves=False))
    run = simulate(_demand(12.0), kinds, policy(), batch=_batch(2.0, 240.0))
    queue = run.batch
    assert queue.arrivals.sum() == queue.served.sum() + queue.late.sum() + queue.waiting[-1]
    assert queue.late.sum() == 0
    spent = [role_chip_ms(replace(run, kinds=(kind,)))[-1, Role.BATCH] for kind in run.kinds]
    assert spent[1] > 0 == spent[2]
    possible = sum(ms / (64_000 * 2.0) * rate * 2 for ms, rate in zip(spent, speeds, strict=False))
    assert queue.served.sum() <= possible + 1


FLEET = ("trn2-ultraserver:6", "trn3-gen2:3")


def _fleet(clusters=FLEET, policy="threshold", **words):
    usual = {"unit_rate": 5.0, "days": 0.2, "failures": "off"}
    return cs.run_fleet(clusters, "azure-code", policy=policy, **{**usual, **words})


def test_a_run_can_be_sent_to_another_process(tmp_path):
    rows = "".join(f"{hour},{hour}\n" for hour in range(24))
    (tmp_path / "prices.csv").write_text("hour,usd_per_mwh\n" + rows)
    fleet = _fleet(failures="on", price=tmp_path / "prices.csv")
    sent = pickle.loads(pickle.dumps(fleet))
    assert sent.summary == fleet.summary
    assert sent.frame().equals(fleet.frame())


def test_the_cheapest_the_fastest_and_the_stated_serve_first():
    by_price, by_chips = (_fleet(serve_on=word).scenario.kinds for word in ("cheapest", "fastest"))
    assert [kind.name for kind in by_price] == ["trn2-ultraserver", "trn3-gen2"]
    assert [kind.name for kind in by_chips] == ["trn2-ultraserver", "trn3-gen2"]
    stated = _fleet(serve_on="trn3-gen2")
    names = [(kind.name, kind.serves) for kind in stated.scenario.kinds]
    assert names == [("trn3-gen2", True), ("trn2-ultraserver", False)]
    rows = {row["kind"]: row for row in stated.summary["kinds"]}
    assert rows["trn2-ultraserver"]["served_tokens"] == 0
    assert rows["trn3-gen2"]["served_tokens"] == stated.summary["served_tokens"]
