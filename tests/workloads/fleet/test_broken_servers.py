"""Servers that are down: what a unit loses with one, and who works on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.toy_fleet import SERVICE, scaled_to_fleet, simulate
from workloads.demand import azure_code, constant
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, evaluation_job
from workloads.fleet.policies.rules import static, threshold
from workloads.fleet.policies.view import View
from workloads.fleet.processes.failures import Failures, Fleet
from workloads.fleet.results import role_server_ms, summary
from workloads.fleet.state.world import Role


def test_a_lost_server_takes_its_share_and_no_more() -> None:
    """40 serving units, one server of four down for ever in each that fails."""
    flat = constant(1.0, minutes=600)
    load = scaled_to_fleet(flat, [SERVICE], 40)
    forever = Failures(unit_mtbf_s=20 * 3600.0, repair_s=1e12, servers=4)
    run = simulate(load, [SERVICE], Fleet(40, failures=forever), static(40))
    total = role_server_ms(run.kinds[0])
    lost = np.diff(total[:, Role.BROKEN]) // 60_000
    assert run.failures > 5
    assert lost[-1] == run.failures
    assert np.array_equal(total.sum(axis=1), np.arange(601) * 40 * 4 * 60_000)
    capacity = run.queues[0].capacity[-1] / run.queues[0].capacity[0]
    assert capacity == pytest.approx(1 - run.failures / 160, abs=0.01)
    hours = summary(run)
    assert hours["broken_chip_hours"] == pytest.approx(total[-1, Role.BROKEN] * 16 / 3.6e6)


def test_a_gang_loses_the_whole_unit_which_then_works_on() -> None:
    gang = TrainingJob(
        "gang", units=20, min_units=10, reclaim="shrink", checkpoint="peer", standby="warm"
    )
    load = scaled_to_fleet(constant(1.0, minutes=600), [SERVICE], 2)
    forever = Failures(unit_mtbf_s=20 * 3600.0, repair_s=1e12, servers=4)
    jobs = (gang, evaluation_job(22))
    run = simulate(load, [SERVICE], Fleet(22, failures=forever), static(2), jobs=jobs)
    total = np.diff(role_server_ms(run.kinds[0]), axis=0)[-1] / 60_000
    ((_, tally),) = run.jobs
    assert tally.failures > 0
    assert total[Role.EVALUATION] > 0
    assert total[Role.TRAINING] % 4 == 0
    assert total[Role.TRAINING] == 4 * (20 - tally.failures)
    assert total.sum() == 22 * 4


def test_serving_is_topped_up_for_servers_that_are_down() -> None:
    load = scaled_to_fleet(constant(1.0, minutes=1440), [SERVICE], 40)
    often = Failures(unit_mtbf_s=40 * 3600.0, repair_s=10 * 3600.0, servers=4)
    run = simulate(
        load,
        [SERVICE],
        Fleet(60, costs=ChangeCosts.fixed(0.0), failures=often),
        static(40),
        jobs=(evaluation_job(60),),
    )
    serving = np.diff(role_server_ms(run.kinds[0])[:, Role.SERVING])[60:] / (4 * 60_000)
    assert serving.min() > 38.0
    assert serving.mean() == pytest.approx(40.0, abs=0.6)


def test_one_server_a_unit_is_the_whole_unit() -> None:
    load = scaled_to_fleet(azure_code().between(0, 1440), [SERVICE], 50)
    runs = [
        simulate(
            load,
            [SERVICE],
            Fleet(50, failures=Failures(unit_mtbf_s=36_000.0, repair_s=3600.0, servers=servers)),
            threshold(),
        )
        for servers in (1, 4)
    ]
    broken = [role_server_ms(run.kinds[0])[-1, Role.BROKEN] / run.kinds[0].servers for run in runs]
    assert broken[1] < 0.6 * broken[0]


def test_broken_server_time_is_that_of_independent_servers() -> None:
    """Each of 2,000 servers is down for repair / (time to failure + repair) of the time."""
    load = scaled_to_fleet(constant(1.0, minutes=3 * 1440), [SERVICE], 500)
    seen: list[int] = []

    def policy(view: View) -> float:
        seen.append(view.broken)
        return 500.0

    failures = Failures(unit_mtbf_s=10 * 3600.0, repair_s=4 * 3600.0, servers=4)
    run = simulate(load, [SERVICE], Fleet(500, failures=failures), policy)
    settled = np.diff(role_server_ms(run.kinds[0])[1440:, Role.BROKEN]).mean() / 60_000
    assert settled == pytest.approx(2000 * 4 / (40 + 4), rel=0.06)
    assert np.mean(seen[1440:]) == pytest.approx(settled / 4, rel=0.02)
