"""Changes of roles: flat demand, limits, spikes, reclaimed jobs and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.toy_fleet import (
    FLAT_DAY,
    FREE,
    SERVICE,
    scaled_to_fleet,
    share_of_time,
    simulate,
)
from topologies.errors import InputError
from workloads.demand import azure_code, azure_conv, constant
from workloads.demand.what_if import raised
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, default_jobs, evaluation_job
from workloads.fleet.policies.rules import best_static, clock, forecast, oracle, static, threshold
from workloads.fleet.policies.view import Limits, Policy
from workloads.fleet.processes.failures import Fleet
from workloads.fleet.results import changes_frame, summary, timeline
from workloads.fleet.simulation import Signals
from workloads.fleet.state.services import units_needed
from workloads.fleet.state.world import Role


@pytest.mark.parametrize(
    "policy",
    [
        threshold(),
        forecast(),
        static(60),
        clock(60, 60),
        oracle(np.full((1, 1440), 50.0), lead_s=600, shortest_valley_s=3600),
    ],
    ids=["threshold", "forecast", "static", "clock", "oracle"],
)
def test_flat_demand_changes_no_roles(policy: Policy) -> None:
    run = simulate(FLAT_DAY, [SERVICE], Fleet(100), policy, jobs=default_jobs(100))
    assert run.changes == ()
    assert summary(run)["slo_attainment"] == 1.0


@pytest.mark.parametrize("policy", [threshold(), forecast(), clock(90, 10)])
def test_an_infinite_change_cost_is_the_static_split(policy: Policy) -> None:
    load = scaled_to_fleet(azure_conv().between(480, 960), [SERVICE], 90)
    never = ChangeCosts.fixed(float("inf"))
    need = units_needed(load, [SERVICE])
    runs = [
        simulate(load, [SERVICE], Fleet(100, costs=never), each, jobs=default_jobs(100))
        for each in (policy, static(best_static(need)))
    ]
    assert np.array_equal(runs[0].kinds[0].spent_server_ms, runs[1].kinds[0].spent_server_ms)
    assert summary(runs[0]) == summary(runs[1])
    assert runs[0].changes == ()


def test_a_spike_at_night_queues_while_units_come_back() -> None:
    flat = constant(60 * 3.5 * 30, minutes=360)
    load = raised(flat, 120, 30, 2.0)
    run = simulate(load, [SERVICE], Fleet(100), threshold(), jobs=default_jobs(100))
    undisturbed = simulate(flat, [SERVICE], Fleet(100), threshold(), jobs=default_jobs(100))
    frame = timeline(run)
    assert summary(undisturbed)["slo_attainment"] == 1.0
    assert frame["queued_requests"][:120].max() == 0
    assert frame["queued_requests"][120:150].max() > 0
    assert frame["slo_attainment"][120:135].min() < 0.5
    assert summary(run)["slo_attainment_worst_15min"] < 0.5
    assert run.changes[0].ready_ms > run.changes[0].ordered_ms


def test_faster_changes_serve_better() -> None:
    load = scaled_to_fleet(azure_code().between(0, 1440), [SERVICE], 100)
    kept = []
    for seconds in (0.0, 600.0, 3600.0):
        run = simulate(
            load,
            [SERVICE],
            Fleet(110, costs=ChangeCosts.fixed(seconds)),
            threshold(),
            jobs=default_jobs(110),
        )
        kept.append(summary(run)["slo_attainment"])
    assert kept[0] > kept[1] > kept[2]


def test_limits_on_changes_per_minute_and_lease() -> None:
    step = constant(60 * 3.5 * 80, minutes=120).times(np.repeat([0.1, 1.0], 60))
    limited = simulate(
        step,
        [SERVICE],
        Fleet(100, costs=FREE, limits=Limits(changes_per_minute=5)),
        threshold(),
        jobs=[evaluation_job(100)],
    )
    per_minute = changes_frame(limited).groupby("ordered_s")["units"].sum()
    assert per_minute.max() == 5
    down_up = constant(60 * 3.5 * 80, minutes=180).times(np.repeat([1.0, 0.1, 1.0], 60))
    policy = threshold(hold_s=0.0, hysteresis=0.0)
    leased = simulate(
        down_up,
        [SERVICE],
        Fleet(88, costs=FREE, limits=Limits(min_lease_s=7200.0)),
        policy,
        jobs=[evaluation_job(100)],
    )
    assert set(changes_frame(leased)["to"]) == {"lent"}


def test_paused_gangs_resume_without_loss_and_preempted_ones_lose() -> None:
    wave = constant(60 * 3.5 * 90, minutes=480).times(np.repeat([0.3, 1.0, 0.3, 1.0], 120))
    lost = {}
    for reclaim in ("pause", "preempt", "checkpoint"):
        jobs = [
            TrainingJob(f"j{n}", 20, 20, reclaim=reclaim, tokens_per_s=((20, 20.0),))
            for n in range(3)
        ]
        limits = Limits(cap=95)
        run = simulate(wave, [SERVICE], Fleet(100, limits=limits), threshold(), jobs=jobs)
        lost[reclaim] = sum(tally.lost_tokens for _, tally in run.jobs)
        assert sum(tally.reclaims for _, tally in run.jobs) >= 2
        if reclaim == "pause":
            assert share_of_time(run, Role.PAUSED) > 0
    assert lost["pause"] == lost["checkpoint"] == 0.0
    assert lost["preempt"] > 0


def test_history_teaches_the_forecast() -> None:
    week = azure_code()
    load = scaled_to_fleet(week, [SERVICE], 300)
    before, after = load.between(0, 5 * 1440), load.between(5 * 1440, 7 * 1440)
    kept = [
        summary(
            simulate(
                after,
                [SERVICE],
                Fleet(330),
                forecast(),
                signals=Signals(history=past),
                jobs=default_jobs(330),
            )
        )["slo_attainment"]
        for past in (before, None)
    ]
    assert kept[0] > kept[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fleet": Fleet(0)}, "0 units"),
        ({"services": []}, "0 services for a demand of 1"),
        ({"jobs": [TrainingJob("big", 200, 150)]}, "needs 150 units, unit has 100 units"),
        ({"jobs": [evaluation_job(3), evaluation_job(3)]}, "2 evaluation jobs"),
    ],
)
def test_a_fleet_without_units_and_jobs_too_large_for_it_are_refused(
    arguments: dict[str, object], message: str
) -> None:
    accepted = {"services": [SERVICE], "fleet": Fleet(100), **arguments}
    with pytest.raises(InputError, match=message):
        simulate(FLAT_DAY, policy=static(1), **accepted)  # type: ignore[arg-type]
