"""The batch tier: exact accounts, closed forms, deadlines, and where its units come from."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.refusals import refused
from tests.support.toy_fleet import scaled_to_fleet, simulate
from topologies.clusters.names import cluster
from workloads.demand import azure_code, constant
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, evaluation_job
from workloads.fleet.lending.answer import Night
from workloads.fleet.lending.front import lend_on
from workloads.fleet.policies.rules import forecast, static
from workloads.fleet.policies.view import Decision
from workloads.fleet.results import role_units, summary, timeline
from workloads.fleet.scenario import scenario
from workloads.fleet.setup.demand import batch_work
from workloads.fleet.state.services import BatchTier, BatchWork, Failures, Fleet, Service
from workloads.fleet.state.world import Role
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions
from workloads.serving import fixed_rate

SERVICE = Service("chat", fixed_rate(2.0), 1e9)
FREE = ChangeCosts.fixed(0.0)
ECONOMICS = Economics(500.0, 100.0, usd_per_million_tokens=2.0, batch_discount=0.5)


def _work(requests_per_minute, minutes, hours=24.0):
    """Requests of 1,100 tokens, of which a unit answers two a second, or 120 a minute."""
    demand = constant(requests_per_minute, minutes=minutes)
    return BatchWork(demand, np.full(minutes, 2.0), int(hours * 60))


def _run(batch, units=10, serve=4, **options):
    """Serve one request a minute on some units, and lend the others."""
    minutes = batch.demand.minutes
    jobs = options.pop("jobs", (evaluation_job(units),))
    policy = options.pop("policy", static(serve))
    fleet = Fleet(units, costs=options.pop("costs", FREE), **options)
    demand = constant(1.0, minutes=minutes)
    return simulate(demand, [SERVICE], fleet, policy, jobs=jobs, batch=batch, economics=ECONOMICS)


def _account(run):
    document = summary(run)["batch"]
    for what in ("requests", "tokens"):
        parts = [document[f"{kind}_{what}"] for kind in ("served", "waiting", "late")]
        assert document[f"arrived_{what}"] == sum(parts)
    return document


def test_a_night_with_room_serves_everything_in_unit_time_of_its_work():
    """240 requests a minute are the work of two units; six are free."""
    account = _account(_run(_work(240.0, 1440)))
    work_h = account["served_requests"] / 120 / 60 * 64
    assert (account["late_requests"], account["arrived_requests"]) == (0, 240 * 1440)
    assert account["waiting_requests"] <= 240 * 16
    assert account["chip_hours"] == pytest.approx(work_h, rel=0.02)
    assert account["wait_s"]["p99"] <= 31 * 60
    assert account["revenue_usd"] == account["served_tokens"] / 1e6 * 2.0 * 0.5


def test_a_constant_night_without_enough_units_expires_what_the_closed_form_says():
    """Arrivals a, capacity c < a, deadline D: from D / (1 − c/a) on, a − c a minute expire."""
    arriving, served, deadline = 900.0, 6 * 120.0, 120
    run = _run(_work(arriving, 1440, hours=deadline / 60))
    account = _account(run)
    begins = deadline / (1 - served / arriving)
    late = (arriving - served) * (1440 - begins)
    assert account["served_requests"] == pytest.approx(served * 1440, rel=0.015)
    assert account["late_requests"] == pytest.approx(late, rel=0.03)
    assert int(np.flatnonzero(run.batch.late)[0]) == pytest.approx(begins, rel=0.03)
    assert account["wait_s"]["max"] <= deadline * 60 == account["deadline_s"]


def test_training_keeps_its_units_until_a_deadline_asks_for_them():
    """Work of one unit for 24 hours, on six that train: it takes a sixth of them, and no more."""
    jobs = [TrainingJob("elastic", 6, reclaim="shrink")]
    run = _run(_work(120.0, 2 * 1440, hours=4), jobs=jobs)
    account, units = _account(run), role_units(run)
    assert account["late_requests"] == 0
    assert units[600:, Role.BATCH].mean() == pytest.approx(1.0, abs=0.2)
    assert units[600:, Role.TRAINING].mean() == pytest.approx(5.0, abs=0.2)
    assert account["wait_s"]["p99"] > 1800


def test_a_policy_sees_the_deadlines_and_may_say_how_many_units():
    seen = []

    def policy(view):
        seen.append(float(view.batch_due[-1]) if len(view.batch_due) else -1.0)
        assert np.all(np.diff(view.batch_due) >= 0)
        return Decision(4.0, batch=3)

    jobs = [TrainingJob("elastic", 6, reclaim="shrink")]
    run = _run(_work(480.0, 600), jobs=jobs, policy=policy)
    assert seen[0] == 0.0
    assert seen[1] == pytest.approx(4.0)
    assert role_units(run)[30:, Role.BATCH].max() == pytest.approx(3.0)
    assert role_units(run)[30:, Role.TRAINING].min() == pytest.approx(3.0)


@examples(5)
@given(
    share=st.floats(0.02, 0.6),
    hours=st.floats(0.1, 30.0),
    reclaim=st.sampled_from(("shrink", "checkpoint", "preempt", "pause")),
    seed=st.integers(0, 2**16),
)
def test_requests_tokens_and_time_are_conserved(share, hours, reclaim, seed):
    tier = BatchTier(share, deadline_s=hours * 3600)
    arrivals = azure_code().between(0, 1440)
    demand = scaled_to_fleet(arrivals.times(1 - share), [SERVICE], 24, peak_share=0.8)
    work = batch_work(demand, [SERVICE], tier)
    costs, failures = ChangeCosts.from_catalogue(4), Failures(40_000.0, 600.0, servers=4)
    run = simulate(
        demand, [SERVICE], Fleet(32, costs=costs, failures=failures), forecast(),
        jobs=[TrainingJob("run", 8, 2, reclaim=reclaim), evaluation_job(32)], batch=work,
        rng=np.random.default_rng(seed),
    )  # fmt: skip
    account = _account(run)
    total = role_units(run).sum(axis=1)
    assert total == pytest.approx(32.0)
    assert account["arrived_requests"] == pytest.approx(work.demand.requests.sum(), abs=1)
    frame = timeline(run)
    assert frame["batch_waiting_requests"].min() >= 0
    assert frame["batch_served_requests"].sum() == account["served_requests"]


TWO = [SERVICE, Service("code", fixed_rate(1.0), 1e9)]
NINE, FIVE = constant(1.0, minutes=9), constant(1.0, minutes=5)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: BatchTier(0.0), "give a share above 0"),
    (lambda: BatchTier(1.0), "below 1"),
    (lambda: BatchTier(0.2, FIVE), "and of a demand of its own"),
    (lambda: BatchTier(0.2, None, 30.0), "at least a minute"),
    (lambda: batch_work(NINE, TWO, BatchTier(0.1)), "Give one --model"),
    (lambda: batch_work(NINE, [SERVICE], BatchTier(demand=FIVE)), "as long"),
])  # fmt: skip
def test_mistakes_are_refused(call, message):
    refused(message, call)


def test_batch_work_of_the_last_day_needs_its_part_of_the_loans():
    """One unit's work all day, 24 unit-hours, beside a night on which 50 of 100 units are free."""
    minutes = 10 * 1440
    tier = BatchTier(demand=constant(120.0, minutes=minutes))
    fleet, demand = FleetInputs(unit_rate=2.0, failures="off"), DemandInputs(days=float("inf"))
    options = FleetOptions(fleet, demand)
    built = scenario(cluster("trn2-ultraserver:100"), constant(6000.0, minutes=minutes), options)
    built = replace(built, tier=tier).at(built.horizon)
    loan = lend_on(built, Night("06:00")).summary()
    assert loan["lent_unit_hours"] == pytest.approx(50 * 6, rel=0.2)
    assert loan["batch"] == {"unit_hours": pytest.approx(24.0), "fits": True, "nights_too_short": 0}
