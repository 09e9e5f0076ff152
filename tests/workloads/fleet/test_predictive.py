"""Policy ``mpc`` against other policies: valleys, prices, deadlines, power, and foresight."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.toy_fleet import simulate, view_of
from topologies.clusters.names import cluster
from topologies.support.arrays import FloatArray
from workloads.demand import azure_code, constant
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.inputs.prices import Prices
from workloads.fleet.policies.predictive import (
    SAFE,
    JobNeed,
    Outlook,
    _batch_needs,
    _relative_prices,
    _units_by_power,
    _whole,
    expected_by_forecast,
    first_step,
    predictive,
)
from workloads.fleet.policies.view import Decision, JobView, KindView, Situation
from workloads.fleet.results import regret, summary
from workloads.fleet.scenario import policy_of, run, scenario
from workloads.fleet.state.services import Fleet, Service
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions, PolicyInputs
from workloads.serving import fixed_rate

DAY = 1440
LEAD_S, BACK_S = 900.0, 900.0
STEADY = Situation(np.ones((1, 1)), lead_s=LEAD_S, back_s=BACK_S)


def _run(valley, policy):
    """Run a day of 20 needed units, but for valleys of 10 units every four hours."""
    low = np.arange(DAY) % 240 < valley
    day = np.where(low, 600.0, 1200.0)[None, :]
    demand = replace(constant(1.0, minutes=DAY), requests=day)
    costs = replace(ChangeCosts.fixed(0.0), runtime_start_s=LEAD_S, resize_s=120.0)
    columns = ("requests", "prompt_tokens", "output_tokens")
    weeks = {name: np.tile(getattr(demand, name), 7) for name in columns}
    history = replace(demand, start="2023-12-25T00:00", **weeks)
    return simulate(
        demand, [Service("chat", fixed_rate(1.0))], Fleet(40, costs=costs), policy,
        jobs=[TrainingJob("run", 40, 1, tokens_per_s=((1, 1.0),), reclaim="shrink")],
        history=history,
    )  # fmt: skip


def _planning():
    """Plan by the forecast, without headroom."""
    return predictive(expected_by_forecast(headroom=0.0), PolicyInputs(), STEADY)


def test_a_programme_without_a_solution_serves_the_need(monkeypatch):
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **_words: SimpleNamespace(x=None))
    run = _run(60, _planning())
    assert run.queues[0].served.sum() == run.queues[0].arrivals.sum()


def _ahead(need, price, **changes):
    """Solve the programme for steps of a quarter of an hour and ten units, none of which serves."""
    steps = len(need)
    outlook = Outlook(
        minutes=np.full(steps, 15.0), need=np.array([need]), kept=np.array([[need[0]]]),
        training=np.zeros(1), units=np.array([10.0]), lead=0.0, back=0.0, price=np.array(price),
    )  # fmt: skip
    return first_step(replace(outlook, **changes))


def test_the_programme_is_solved_right():
    """Against every integer plan of a small case: 4 units needed, a valley of two steps, then 3."""
    need, units, lead = np.array([4, 1, 1, 3]), 5, 1.5
    plans = np.stack(np.meshgrid(*[np.arange(units + 1)] * 4, indexing="ij"), -1).reshape(-1, 4)
    back = np.maximum(np.diff(plans, prepend=4, axis=1), 0).sum(axis=1)
    trained = (units - plans).sum(axis=1) - lead * back
    trained = np.where((plans >= need).all(axis=1), trained, -np.inf)
    best = plans[int(np.argmax(trained))]
    outlook = Outlook(
        np.full(4, 15.0), need[None].astype(float), np.array([[4.0]]), np.array([1.0]),
        np.array([5.0]), 15 * lead, 0.0, np.zeros(4),
    )  # fmt: skip
    assert first_step(outlook).kept[0] == pytest.approx(best[0])
    # Two pools that want more than there is share it.
    both = replace(outlook, need=np.full((2, 4), 6.0), kept=np.array([[5.0, 5.0]]))
    both = replace(both, units=np.array([10.0]))
    assert first_step(both).kept.sum() == pytest.approx(10.0)


def test_the_programme_weighs_prices_deadlines_and_power():
    dear_first, half = [1.0, 0.0], {"share": 0.5}
    assert _ahead([0, 0], [0.0, 1.0], **half).training == pytest.approx(10)
    assert _ahead([0, 0], dear_first, **half).training == pytest.approx(0)
    assert _ahead([0, 0], dear_first).training == pytest.approx(10)  # all that can is wanted
    # Five units that train go on where a start costs a step, and stop where it costs nothing.
    assert _ahead(
        [0, 0], dear_first, **half, training=np.full(1, 5.0), back=15.0
    ).training == pytest.approx(5)
    assert _ahead([0, 0], dear_first, **half, training=np.full(1, 5.0)).training == pytest.approx(0)
    # 60 unit-minutes due within the dear step are done there, by four units; the rest waits.
    due = {"share": 0.5, "jobs": (JobNeed(6.0, 60.0, 1),)}
    urgent = _ahead([0, 0], dear_first, **due)
    assert (urgent.training, urgent.jobs.tolist()) == (pytest.approx(4), [pytest.approx(4)])
    # Of two deadlines the nearer one goes first where power lets five units train.
    two = (JobNeed(5.0, 75.0, 1), JobNeed(5.0, 75.0, 2))
    tight = _ahead([0, 0], [0.0, 0.0], jobs=two, power_units=np.full(2, 5.0))
    assert tight.jobs.tolist() == [pytest.approx(5), pytest.approx(0)]
    assert tight.training == pytest.approx(5)


def test_a_plan_charges_a_job_for_the_units_that_begin():
    """A start takes 10 of 15 minutes: 200 unit-minutes in two steps then take all ten units."""
    late = {"share": 0.0, "back": 10.0, "jobs": (JobNeed(10.0, 200.0, 2, now=0.0),)}
    assert _ahead([0, 0], [1.0, 0.0], **late).jobs.tolist() == [pytest.approx(10)]
    # Of ten that work, x go on in the dear step: 15 x + 150 - 10 (10 - x) = 200.
    late |= {"jobs": (JobNeed(10.0, 200.0, 2, now=10.0),), "training": np.full(1, 10.0)}
    assert _ahead([0, 0], [1.0, 0.0], **late).jobs.tolist() == [pytest.approx(6)]


def test_batch_work_gets_no_more_units_than_it_has_work_for():
    """60 unit-minutes are four units for a step, whatever else begins or stops beside them."""
    for training, batch, share in ((0.0, 0.0, 1.0), (10.0, 0.0, 1.0), (10.0, 4.0, 0.0)):
        step = _ahead(
            [0, 0], [0.0, 0.0], share=share, back=10.0, jobs=(JobNeed(10.0, 60.0, 1),),
            training=np.full(1, training), batch=np.full(1, batch),
        )  # fmt: skip
        assert step.jobs.tolist() == [pytest.approx(4)]
        assert step.training == pytest.approx(10 if share else 4)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.floats(0, 50))
def test_a_job_gets_a_size_at_which_it_does_what_the_plan_wants(
    least: int, more: int, step: int, units: float
) -> None:
    job = TrainingJob("run", least + more, least, step)
    size = _whole(units, JobView("run", job.units, least, 0, step_units=step))
    most = job.fits(job.units)
    assert job.fits(size) in {0, *range(least, most + 1, step)}
    assert job.fits(size) >= min(units, most) - 1e-6 or (size == 0 and units < least / 2)


def test_a_plan_serves_and_trains_on_whole_units():
    """Of ten units 7.3 have to serve: eight do, and two are left to train."""
    none, one = np.zeros(1, np.int64), np.ones(1)
    kind = KindView("unit", 10, 0, none, none, 0, one, 900.0, 300.0, "", one, np.ones(1440))
    view = view_of(prices_usd_per_mwh=np.ones(1440), kinds=(kind,))
    expected = np.full((1, 24 + 18 * 4), 7.3)
    plan = predictive(lambda *_: (expected, expected), PolicyInputs(price_share=1.0), STEADY)
    decision = plan(view)
    assert isinstance(decision, Decision)
    assert math.ceil(float(np.sum(decision.serving))) == 8
    assert decision.training == [2]


JOBS = """name,units,min_units,step_units,reclaim,priority,tokens_per_s,work_tokens,deadline_h
endless,80,5,5,shrink,0,80,,
first,30,5,5,shrink,1,30,9e5,20
second,20,20,1,pause,1,20,4e5,28
"""


def _scenario(folder, **demand):
    """A hundred units from a Saturday on, with two days of history and two deadlines."""
    (jobs := folder / "jobs.csv").write_text(JOBS)
    options = FleetOptions(
        FleetInputs(unit_rate=5.0, training=jobs, failures="off"),
        DemandInputs(days=1.25, start_day=2.0, scale_to_peak=0.6, **demand),
    )
    return scenario(cluster("trn2-ultraserver:100"), azure_code(), options)


def test_deadlines_are_met_that_other_policies_miss(tmp_path):
    prepared = _scenario(tmp_path)
    names = ("forecast", "mpc", "mpc-oracle", "static")
    runs = {name: run(prepared, policy_of(name, prepared)) for name in names}
    met = {name: summary(done, prepared.prices) for name, done in runs.items()}
    assert [each["jobs_in_time"] for each in met.values()][:3] == [0, 2, 2]
    assert met["mpc"]["training_tokens"] > 0.9 * met["forecast"]["training_tokens"]
    missed = regret(met["mpc"], met["mpc-oracle"], met["static"])
    assert missed["regret_training_chip_hours"] > 0


def _noisy_prices(_start, minutes):
    """Power that is dear in the last third of a day, and changes in every quarter of an hour."""
    quarter = np.arange(minutes) // 15
    noise = np.random.default_rng(0).normal(0, 15, minutes // 15 + 1)[quarter]
    return Prices(np.where(quarter % 96 < 64, 40.0, 90.0) + noise)


def test_prices_are_weighed_with_deadlines_and_changes(tmp_path):
    economics = Economics(750.0, 400.0, 1.12, 0.001)
    plain = _scenario(tmp_path).changed(lambda _: {"economics": economics})
    priced = replace(plain, tariff=_noisy_prices).at(plain.horizon)
    wanted = [(name, {}) for name in ("forecast", "price", "mpc")]
    always, cheap, planned, due = (
        summary(run(priced, policy_of(name, priced, **share)), priced.prices)
        for name, share in [*wanted, ("mpc", {"price_share": 0.0})]
    )
    assert planned["jobs_in_time"] > cheap["jobs_in_time"]
    assert planned["training_usd_per_mwh"] < 0.95 * always["training_usd_per_mwh"]
    assert planned["electricity_usd"] < always["electricity_usd"]
    assert planned["training_goodput"] > cheap["training_goodput"]
    with_deadlines = 9e5 + 4e5  # all of it in time, and hardly more
    assert due["jobs_in_time"] == 2
    assert with_deadlines * (1 - 1e-9) <= due["training_tokens"] < 1.01 * with_deadlines
    assert planned["training_tokens"] > 1.2 * with_deadlines


@given(st.lists(st.floats(0, 50), min_size=1, max_size=2 * DAY), st.integers(1, 30))
def test_batch_work_is_due_by_its_deadlines_and_none_is_lost(added, steps):
    due, minutes = np.cumsum(added), np.full(steps, 60.0)
    waiting = view_of(units=20, load=np.full((1, 10 * DAY), 10.0), batch_due=due)
    needs = list(_batch_needs(waiting, minutes))
    end = min(len(due), 60 * steps)
    within = due[end - 1] + (due[-1] - due[end - 1]) * min(1.0, 60 * steps / len(due))
    assert sum(need.work for need in needs) == pytest.approx(SAFE * within)
    for need in needs:  # what is due by a step is asked for by then
        earlier = sum(each.work for each in needs if each.steps <= need.steps)
        assert earlier >= SAFE * due[min(60 * need.steps, end) - 1] * (1 - 1e-9) or need.steps == 1


@given(
    st.lists(st.floats(-100, 1000), min_size=2, max_size=1440),
    st.floats(-50, 5000),
    st.sampled_from([1e-3, 0.92, 100.0]),
)
def test_a_plan_knows_prices_but_not_their_unit_or_level(prices, more, unit):
    """A tariff shifted, in cents or in another currency is the same tariff; a flat one is none."""
    minutes, one = np.concatenate([np.full(24, 15.0), np.full(18, 60.0)]), np.ones(1)
    none = np.zeros(1, np.int64)
    kind = KindView("unit", 20, 0, none, none, 0, one, 900.0, 300.0, "", one)

    def scaled(tariff: FloatArray) -> FloatArray:
        kinds = (kind._replace(prices_usd_per_mwh=tariff),)
        view = view_of(prices_usd_per_mwh=tariff, kinds=kinds)
        return np.ravel(_relative_prices(view, minutes, one))

    tariff = np.round(prices, 2)
    plan = scaled(tariff)
    if plan.any() and np.ptp(tariff) > 1.0:
        assert scaled(tariff * unit) == pytest.approx(plan, abs=1e-9)
        assert scaled(tariff + more) == pytest.approx(plan, abs=1e-6)
    assert not scaled(np.full(1440, more)).any()


def test_a_policy_limits_single_jobs(tmp_path):
    prepared = _scenario(tmp_path)
    seen = []

    def policy(view):
        seen.append({job.name: job.size for job in view.jobs})
        late = view.minute >= 120
        return Decision(20.0, jobs={"endless": 0, "first": 10} if late else {"second": 0})

    run(prepared, policy)
    assert seen[60] == {"endless": 80, "first": 0, "second": 0}
    assert (seen[240]["endless"], seen[240]["first"], seen[240]["second"]) == (0, 10, 20)


def test_units_that_compute_take_of_a_cap_what_their_kind_draws_more():
    """Rises of 100 and 300 W, half and three halves of the mean; 2 kW are left for ten means."""
    none = np.zeros(1, np.int64)
    kinds = [
        KindView("", 10, 0, none, none, 0, np.ones(1), busy_w, idle_w, "", np.ones(1))
        for busy_w, idle_w in ((200.0, 100.0), (500.0, 200.0))
    ]
    view = view_of(units=20, kinds=tuple(kinds), unit_busy_w=400.0, unit_idle_w=200.0)
    computing = np.array([[0.0, 2.0], [0.0, 2.0]])
    assert _units_by_power(view, 10 * 100 + 10 * 200 + 2000.0, computing).tolist() == [10, 10 - 4]
