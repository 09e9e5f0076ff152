"""Default training gangs are no larger than failures allow, and the answer says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cluster_sim as cs
from tests.support.toy_fleet import simulate
from topologies.clusters.names import cluster
from workloads.demand import constant
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, default_jobs
from workloads.fleet.policies.rules import static
from workloads.fleet.processes.failures import Domain, Failures, Fleet, Interruption
from workloads.fleet.scenario import notes
from workloads.fleet.setup.night_work import (
    LEAST_GOODPUT,
    gang_goodput,
    gang_mtbf_s,
    gang_note,
    most_units,
)
from workloads.fleet.state.services import Service
from workloads.options.fleet import FleetOptions
from workloads.serving.tables import fixed_rate

COSTS = ChangeCosts.of(cluster("trn2-ultraserver:8"))
SERVICE = Service("chat", fixed_rate(3.5), 1e9)


def _fleet(units: int, unit_mtbf_s: float) -> Fleet:
    return Fleet(units, costs=COSTS, failures=Failures(unit_mtbf_s, 600.0))


def _job(units: int, checkpoint: str) -> TrainingJob:
    return TrainingJob(
        "gang",
        units=units,
        min_units=units,
        tokens_per_s=((1, 1e5),),
        step_tokens=16e6,
        state_bytes=5.6e12,
        checkpoint=checkpoint,
        standby="warm",
        checkpoint_every_s=1800.0,
    )


@pytest.mark.parametrize(
    ("checkpoint", "unit_mtbf_s"),
    [pytest.param("async", 8e5, marks=pytest.mark.slow), ("peer", 4e5)],
)
def test_the_closed_form_is_the_goodput_of_a_simulated_gang(
    checkpoint: str, unit_mtbf_s: float
) -> None:
    """Some 130 failures a run, with spare units to replace those under repair."""
    job, fleet = _job(100, checkpoint), _fleet(140, unit_mtbf_s)
    days = 130 * unit_mtbf_s / job.units / 86400
    shares = []
    for seed in range(2):
        run = simulate(
            constant(60.0, minutes=round(days * 1440)),
            [SERVICE],
            fleet,
            static(1),
            jobs=[job],
            rng=np.random.default_rng(seed),
        )
        ((_, tally),) = run.jobs
        assert tally.failures > 90
        shares.append(tally.useful_unit_ms / tally.held_unit_ms)
    expected = gang_goodput(job, job.units, fleet)
    assert gang_goodput(job, job.units, replace(fleet, failures=None)) == 1.0
    assert 0.6 < expected < 0.97
    assert np.mean(shares) == pytest.approx(expected, abs=0.03)


def test_all_kinds_of_failures_stop_a_gang() -> None:
    failures = Failures(
        1000.0, 1.0, servers=4,
        domains=(Domain("rack", 500.0, 1.0, units=5),),
        interruptions=(Interruption("switch", 100.0),),
    )  # fmt: skip
    # 10 units: 1/100 s of their own, 2 racks with 1/500 s each, a fifth of the fleet's 1/100 s.
    assert gang_mtbf_s(failures, 10, 50) == pytest.approx(1 / (0.01 + 0.004 + 0.002))


def test_the_size_is_the_largest_that_computes_for_nine_tenths_of_its_time() -> None:
    job, fleet = _job(5000, "peer"), _fleet(10_000, 2.8e6)
    most = most_units(job, fleet)
    assert 100 < most < 5000
    assert gang_goodput(job, most, fleet) >= LEAST_GOODPUT > gang_goodput(job, most + 1, fleet)
    assert most_units(_job(most, "peer"), fleet) == most
    assert most_units(job, replace(fleet, failures=None)) == 5000
    assert most_units(job, _fleet(10_000, 100.0)) == 1


@pytest.mark.parametrize("units", [1, 20, 63, 64, 100, 7812, 100_000])
def test_smaller_gangs_are_more_and_use_as_much_of_the_fleet(units: int) -> None:
    usual = default_jobs(units)
    assert default_jobs(units, most=(units, units)) == usual
    small = default_jobs(units, most=(7, 3))
    names = [job.name for job in small]
    assert len(set(names)) == len(names)
    for kind, most in (("pretraining", 7), ("post-training", 3)):
        before, after = (
            [job.units for job in jobs if job.name.startswith(kind)] for jobs in (usual, small)
        )
        assert max(after, default=0) <= most
        assert sum(before) - most < sum(after) <= sum(before)
    assert all(job.fits(job.units) > 0 for job in small)


def test_a_fleet_whose_gangs_were_made_smaller_says_so() -> None:
    large = cs.run_fleet(
        "trn2-ultraserver:30000", "azure-code", policy="static", days=0.02, unit_rate=1.0
    ).scenario
    sizes = {job.name: job.units for job in large.jobs}
    assert sizes["pretraining-1"] < 30_000 // 8
    (note,) = [each for each in notes(large, FleetOptions()) if "gangs" in each]
    assert note == gang_note(large.jobs, large.fleet)
    assert f"at most {sizes['pretraining-1']:,} units" in note
    assert "one of 3,750 would compute for 68% of its time, less than 90%" in note
    assert gang_note(default_jobs(1000), replace(large.fleet, units=1000)) == ""
