"""Server time and tokens are conserved, whatever fails, and the same seed gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.toy_fleet import SERVICE, check_conserved, scaled_to_fleet, simulate
from workloads.demand import azure_code, azure_mix
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, default_jobs, evaluation_job
from workloads.fleet.policies.rules import clock, forecast, threshold
from workloads.fleet.policies.view import Limits, Policy
from workloads.fleet.processes.failures import Failures, Fleet
from workloads.fleet.results import changes_frame, jobs_frame, timeline
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.world import Role

POLICIES: dict[str, Policy] = {
    "threshold": threshold(headroom=0.2),
    "forecast": forecast(),
    "clock": clock(200, 40, night_from=0, night_to=8),
}


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("source", ["nvme", "store"])
def test_unit_time_and_tokens_are_conserved_with_failures(name: str, source: str) -> None:
    load = scaled_to_fleet(azure_code().between(0, 1440), [SERVICE], 200)
    run = simulate(
        load,
        [SERVICE],
        Fleet(
            200,
            costs=replace(ChangeCosts.from_catalogue(4, source=source), miss_share=0.1),
            limits=Limits(reserve=3, min_lease_s=1800, changes_per_minute=20),
            failures=Failures(unit_mtbf_s=86400.0, repair_s=3600.0),
        ),
        POLICIES[name],
        jobs=default_jobs(200),
    )
    assert run.failures > 100
    check_conserved(run)
    frame = timeline(run)
    assert len(frame) == 1440
    assert frame["power_w"].between(0, 200 * 64 * 750 * 1.12).all()
    assert jobs_frame(run)["goodput"].between(0, 1).all()


@given(
    reclaim=st.sampled_from(["checkpoint", "preempt", "shrink", "pause"]),
    gang=st.integers(1, 10),
    step=st.integers(1, 4),
    seed=st.integers(0, 5),
    headroom=st.floats(0, 1),
    notice=st.sampled_from([5.0, float("inf")]),
)
@examples(6)
def test_any_mix_of_jobs_conserves(
    reclaim: str, gang: int, step: int, seed: int, headroom: float, notice: float
) -> None:
    load = scaled_to_fleet(azure_code().between(600, 1320), [SERVICE], 30)
    jobs = [
        TrainingJob(f"a{n}", gang, gang, reclaim=reclaim, priority=n, state_bytes=1e13)
        for n in range(2)
    ]
    jobs.append(TrainingJob("b", 20, 2, step, reclaim=reclaim, checkpoint="peer", standby="warm"))
    jobs.append(evaluation_job(5))
    run = simulate(
        load,
        [SERVICE],
        Fleet(32, limits=Limits(notice_s=notice), failures=Failures(40_000.0, 600.0)),
        threshold(headroom=headroom),
        jobs=jobs,
        rng=np.random.default_rng(seed),
    )
    check_conserved(run)


def test_same_seed_same_bits_and_another_seed_other_failures() -> None:
    load = scaled_to_fleet(azure_code().between(480, 1200), [SERVICE], 100)

    def once(seed: int) -> FleetRun:
        return simulate(
            load,
            [SERVICE],
            Fleet(100, failures=Failures(86400.0, 3600.0)),
            threshold(),
            jobs=default_jobs(100),
            rng=np.random.default_rng(seed),
        )

    first, again, other = (once(seed).kinds[0].spent_server_ms for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_two_services_share_a_fleet_and_pass_units_to_each_other() -> None:
    load = scaled_to_fleet(azure_mix().between(0, 1440), [SERVICE] * 2, 300)
    services = [SERVICE, replace(SERVICE, name="code")]
    run = simulate(load, services, Fleet(320), threshold(headroom=0.2), jobs=default_jobs(320))
    check_conserved(run)
    assert set(changes_frame(run)["to"]) == {"chat", "code", "lent"}
    serving = run.kinds[0].spent_server_ms[-1, len(Role) :]
    assert serving.min() > 0
