"""Properties of every policy and mix of jobs: sums, scale and growth."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.toy_fleet import SERVICE, check_conserved, scaled_to_fleet, simulate
from topologies.clusters.names import cluster
from workloads.demand import Demand, azure_code
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, evaluation_job
from workloads.fleet.inputs.prices import Prices
from workloads.fleet.policies.registry import KINDS
from workloads.fleet.policies.rules import threshold
from workloads.fleet.policies.view import Limits
from workloads.fleet.processes.failures import Window
from workloads.fleet.processes.moves import Calm
from workloads.fleet.results import role_units, summary, timeline
from workloads.fleet.scenario import policy_of, run, scenario
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.services import Failures, Fleet
from workloads.fleet.state.world import Role
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions

ECONOMICS = Economics(750.0, 400.0, 1.12, 0.001)
RATE = 5.0
JOBS = """name,units,min_units,step_units,reclaim,priority,tokens_per_s,work_tokens,deadline_h
long,40,2,2,shrink,0,40,,
gang,4,4,1,pause,1,4,,
due,6,2,2,checkpoint,2,6,6e4,5
"""
SETTINGS = {"power_cap": 1.4}


def _prices(_start, minutes):
    return Prices(30.0 + 20.0 * np.sin(np.arange(minutes) / 90.0))


def _demand(seed, *, days, units):
    """Waves of random height and phase with noise, whose mean needs so many units."""
    rng = np.random.default_rng(seed)
    minute = np.arange(round(days * 1440))
    wave = 1.2 + np.sin(minute / 1440 * 2 * np.pi + rng.uniform(0, 6)) * rng.uniform(0.2, 0.9)
    wave = wave + 0.2 * np.sin(minute / 97.0 + rng.uniform(0, 6))
    wave = wave * rng.gamma(60, 1 / 60, len(minute))
    requests = np.rint(wave / wave.mean() * units * RATE * 60.0)[None]
    prompt = np.full_like(requests, 1000.0)
    return Demand(("chat",), "2024-05-10T00:00", requests, prompt, prompt / 5)


def _prepared(demand, folder, *, units=24, days=0.4, failing=True):
    (jobs := folder / "jobs.csv").write_text(JOBS)
    failures = "domains" if failing else "off"
    options = FleetOptions(
        FleetInputs(unit_rate=RATE, training=jobs, failures=failures),
        DemandInputs(days=days, start_day=1.0, batch_share="10%", batch_deadline="4h"),
    )
    built = scenario(cluster(f"trn2-ultraserver:{units}"), demand, options)
    built = replace(built.changed(lambda _: {"economics": ECONOMICS}), tariff=_prices)
    return built.at(built.horizon)


def _run(prepared, name, seed=0):
    return run(prepared, policy_of(name, prepared, **SETTINGS), seed=seed)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize("name", KINDS)
def test_units_chip_hours_and_tokens_are_conserved(name, seed, tmp_path):
    # The busiest hours need more than there is, so that requests wait and are shed.
    prepared = _prepared(_demand(seed, days=1.5, units=18.0), tmp_path)
    done = _run(prepared, name, seed)
    check_conserved(done)
    assert done.units == 24
    numbers = summary(done, prepared.prices)
    assert sum(numbers["chip_hours_by_role"].values()) == pytest.approx(numbers["chip_hours"])
    batch = numbers["batch"]
    for what in ("requests", "tokens"):
        outcome = sum(batch[f"{kind}_{what}"] for kind in ("served", "waiting", "late"))
        assert outcome == batch[f"arrived_{what}"]
    trained = sum(tally.tokens for _, tally in done.jobs)
    assert numbers["training_tokens"] == pytest.approx(trained)
    due = done.jobs[2]
    assert due[1].tokens <= due[0].work_tokens * (1 + 1e-6)
    held = sum(tally.held_unit_ms for _, tally in done.jobs) / 3.6e6 * 64
    roles = numbers["chip_hours_by_role"]
    assert held <= roles["training"] + roles["loading"] + roles["checkpointing"] + 1e-6
    assert timeline(done)["power_w"].max() <= 24 * 64 * 750 * 1.12 * (1 + 1e-9)


WINDOWS = st.builds(
    Window, st.just("any"), st.floats(0, 4e4), st.floats(60, 2e4), st.integers(0, 32), st.booleans()
)


@given(
    reclaim=st.sampled_from(["checkpoint", "preempt", "shrink", "pause"]), gang=st.integers(1, 10),
    seed=st.integers(0, 5), headroom=st.floats(0, 1), notice=st.sampled_from([5.0, float("inf")]),
    costs=st.sampled_from([ChangeCosts.from_catalogue(4), *map(ChangeCosts.fixed, (0.0, 900.0))]),
    breaks=st.booleans(), window=st.none() | WINDOWS,
)  # fmt: skip
@examples(15)
def test_jobs_and_windows_conserve(reclaim, gang, seed, headroom, notice, costs, breaks, window):
    load = scaled_to_fleet(azure_code().between(600, 1320), [SERVICE], 30)
    words = {"reclaim": reclaim, "state_bytes": 1e13}
    jobs = [TrainingJob(f"a{n}", gang, gang, priority=n, **words) for n in range(2)]
    jobs.append(TrainingJob("b", 20, 2, 2, reclaim=reclaim, checkpoint="peer", standby="warm"))
    jobs.append(evaluation_job(5))
    fleet = Fleet(
        32, costs=costs, limits=Limits(notice_s=notice),
        failures=Failures(40_000.0, 600.0) if breaks else None,
        maintenance=(window,) if window else (),
    )  # fmt: skip

    def outcome() -> FleetRun:
        rng = np.random.default_rng(seed)
        return simulate(load, [SERVICE], fleet, threshold(headroom=headroom), jobs=jobs, rng=rng)

    done = outcome()
    check_conserved(done)
    # Minutes whose orders change nothing are left out; giving them all comes to the same.
    with mock.patch.object(Calm, "lasts", return_value=False) as lasts:
        always = outcome()
    assert lasts.call_count == done.minutes
    for one, other in zip(done.kinds, always.kinds, strict=True):
        assert (one.spent_server_ms == other.spent_server_ms).all()
        assert one.changes == other.changes
        assert one.jobs == other.jobs
    maintained, out = done.kinds[0].maintained, role_units(done)[:, Role.MAINTENANCE]
    if window is None:
        assert maintained == out.max() == 0
    else:
        # Windows are as long as whole milliseconds.
        assert out.sum() * 60 <= maintained * (window.length_s + 6e-4) + 1e-6
        assert maintained <= (32 if window.rolling else window.units)
