"""The fleet against published results and closed forms of switching."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.toy_fleet import FREE, SERVICE, simulate
from workloads.demand import constant, deepseek_day, deepseek_nodes, demand, period_means
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, evaluation_job
from workloads.fleet.policies.forecast import lendable
from workloads.fleet.policies.rules import threshold
from workloads.fleet.policies.view import Limits
from workloads.fleet.results import changes_frame, role_server_ms
from workloads.fleet.state.services import Fleet, Service
from workloads.fleet.state.world import Role
from workloads.serving.tables import fixed_rate


def test_deepseek_day_from_a_built_in_policy():
    """278 nodes at load share 1.0; steps of 30 nodes above a floor of 68; changes are free."""
    service = Service("deepseek", fixed_rate(1000.0))
    load = deepseek_day().times(278 * 1000.0 * 60.0)
    limits = Limits(floor=68, cap=278, block=30)
    fleet = Fleet(278, chips_per_unit=8, costs=FREE, limits=limits)
    policy = threshold(headroom=0.10, hysteresis=0.0, hold_s=0.0)
    run = simulate(load, [service], fleet, policy, jobs=[evaluation_job(278)])
    serving = np.diff(role_server_ms(run.kinds[0])[:, Role.SERVING]) / 60_000
    assert serving.mean() == pytest.approx(226.75, rel=0.01)
    hours = serving.reshape(24, 60).mean(axis=1)
    published = deepseek_nodes().reshape(24, 4).mean(axis=1)
    assert np.abs(hours - published).mean() <= 3.0
    assert serving.mean() == pytest.approx(228.0, abs=0.3)
    assert np.abs(hours - published).mean() == pytest.approx(1.9, abs=0.4)


TABLE = {
    "code": {
        "reactive": [(1.44, 0.57), (1.55, 0.55), (1.89, 0.50), (2.42, 0.44)],
        "with yesterday": [(1.32, 0.54), (1.51, 0.50), (1.69, 0.46), (2.26, 0.38)],
    },
    "conv": {
        "reactive": [(1.16, 0.29), (1.20, 0.27), (1.22, 0.25), (1.31, 0.21)],
        "with yesterday": [(1.16, 0.22), (1.16, 0.22), (1.15, 0.23), (1.25, 0.16)],
    },
}


@pytest.mark.parametrize("name", ["code", "conv"])
def test_headroom_against_lead_time(name):
    """The published study of the Azure week; one cell of the 32 differs by more than rounding."""
    frame = lendable(demand(f"azure-{name}").requests[0])
    for controller, rows in TABLE[name].items():
        mine = frame[frame["controller"] == controller]
        headroom = np.array([row[0] for row in rows])
        freed = np.array([row[1] for row in rows])
        assert np.abs(mine["headroom"].to_numpy() - headroom).max() < 0.02
        assert np.abs(mine["freed"].to_numpy() - freed).max() < 0.015
        assert np.median(np.abs(mine["headroom"].to_numpy() - headroom)) < 0.006


def test_a_load_storm_takes_fifty_minutes_from_the_store_and_minutes_from_nvme():
    """1,000 UltraServers × 4 instances × 0.75 TB = 3 PB through 1 TB/s."""
    step = constant(60 * 3.5 * 1000, minutes=120).times(np.repeat([0.0, 1.0], 60))
    latency = {}
    for source in ("store", "nvme", "host"):
        costs = replace(
            ChangeCosts.from_catalogue(4, source=source), mode_switch_s=0.0, runtime_start_s=0.0,
            warm_up_s=0.0, compile_hit_s=0.0,
        )  # fmt: skip
        fleet, job = Fleet(1000, costs=costs), TrainingJob("t", units=1000, reclaim="preempt")
        run = simulate(
            step, [SERVICE], fleet, lambda view: 1000.0 if view.minute >= 5 else 0.0, jobs=[job]
        )
        latency[source] = changes_frame(run)["latency_s"].max()
        if source == "store":
            assert run.loaded_bytes == pytest.approx(3e15)
    assert latency["store"] == pytest.approx(3000, rel=0.001)
    assert latency["nvme"] == pytest.approx(85, rel=0.01)
    assert latency["host"] == pytest.approx(61, rel=0.01)


def test_period_means_spread_evenly():
    assert period_means(np.array([1.0, 3.0, 5.0]), 2).tolist() == [2.0, 2.0, 5.0]
