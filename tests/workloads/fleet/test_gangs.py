"""Gangs of night jobs: sizes that failures allow, what a failure loses, copies in host memory."""

from dataclasses import replace

import numpy as np
import pytest
import simpy

import cluster_sim as cs
from tests.support.refusals import refused
from tests.support.toy_fleet import simulate
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.demand import constant
from workloads.fleet.inputs.costs import AT_ONCE, ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, default_jobs
from workloads.fleet.policies.rules import static
from workloads.fleet.scenario import notes, scenario
from workloads.fleet.setup.night_work import (
    LEAST_GOODPUT,
    gang_goodput,
    gang_mtbf_s,
    gang_note,
    host_memory_note,
    most_units,
)
from workloads.fleet.state.services import Domain, Failures, Fleet, Service
from workloads.fleet.state.world import Gang, Ledger, Role
from workloads.job.checkpoints import State, peer_copies
from workloads.job.job import Recovery
from workloads.models.huggingface import named
from workloads.options.fleet import FleetInputs, FleetOptions
from workloads.serving.tables import fixed_rate

COSTS = ChangeCosts.of(cluster("trn2-ultraserver:8"))
SERVICE, FREE = Service("chat", fixed_rate(3.5), 1e9), ChangeCosts.fixed(0.0)


def _fleet(units, unit_mtbf_s):
    return Fleet(units, costs=COSTS, failures=Failures(unit_mtbf_s, 600.0))


def _job(units, checkpoint):
    return TrainingJob(
        "gang", units=units, min_units=units, tokens_per_s=((1, 1e5),), step_tokens=16e6,
        state_bytes=5.6e12, checkpoint=checkpoint, standby="warm", checkpoint_every_s=1800.0,
    )  # fmt: skip


def test_the_closed_form_is_the_goodput_of_a_simulated_gang():
    """Some 130 failures a run, with spare units to replace those under repair."""
    unit_mtbf_s = 4e5
    job, fleet = _job(100, "peer"), _fleet(140, unit_mtbf_s)
    days = 130 * unit_mtbf_s / job.units / 86400
    shares = []
    for seed in range(2):
        demand, rng = constant(60.0, minutes=round(days * 1440)), np.random.default_rng(seed)
        run = simulate(demand, [SERVICE], fleet, static(1), jobs=[job], rng=rng)
        ((_, tally),) = run.jobs
        assert tally.failures > 90
        shares.append(tally.useful_unit_ms / tally.held_unit_ms)
    expected = gang_goodput(job, job.units, fleet)
    assert gang_goodput(job, job.units, replace(fleet, failures=None)) == 1.0
    assert 0.6 < expected < 0.97
    assert np.mean(shares) == pytest.approx(expected, abs=0.03)


def test_all_kinds_of_failures_stop_a_gang():
    failures = Failures(
        1000.0, 1.0, servers=4,
        domains=(Domain("rack", 500.0, 1.0, units=5),),
        interruptions={"switch": 100.0},
    )  # fmt: skip
    # 10 units: 1/100 s of their own, 2 racks with 1/500 s each, a fifth of the fleet's 1/100 s.
    assert gang_mtbf_s(failures, 10, 50) == pytest.approx(1 / (0.01 + 0.004 + 0.002))


def test_the_size_is_the_largest_that_computes_for_nine_tenths_of_its_time():
    job, fleet = _job(5000, "peer"), _fleet(10_000, 2.8e6)
    most = most_units(job, fleet)
    assert 100 < most < 5000
    assert gang_goodput(job, most, fleet) >= LEAST_GOODPUT > gang_goodput(job, most + 1, fleet)
    assert most_units(_job(most, "peer"), fleet) == most
    assert most_units(job, replace(fleet, failures=None)) == 5000
    assert most_units(job, _fleet(10_000, 100.0)) == 1


@pytest.mark.parametrize("units", [1, 20, 63, 64, 100, 127, 128, 7812, 100_000])
@pytest.mark.parametrize("most", [(1e6, 1e6), (7, 3)])
def test_default_jobs_have_five_eighths_of_a_fleet_of_any_size(units, most):
    """Less than a gang remains, so that a unit more is a unit more of work, but for this."""
    jobs = default_jobs(units, most=most)
    assert len({job.name for job in jobs}) == len(jobs)
    gang = min(most[1], max(1, units // 64))
    together = sum(job.units for job in jobs if not job.evaluation)
    assert 0 <= max(1, 5 * units // 8) - together < gang
    for kind, largest in zip(("pretraining", "post-training"), most, strict=True):
        assert all(job.units <= largest for job in jobs if job.name.startswith(kind))
    assert all(job.fits(job.units) > 0 for job in jobs)


def test_a_fleet_whose_gangs_were_made_smaller_says_so():
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


def _gang(job, costs):
    env = simpy.Environment()
    ledger = Ledger(10, 1)
    return env, ledger, Gang(0, job, env, ledger, costs, 10**9)


def test_a_gang_checkpoints_and_loses_what_it_did_not_save():
    """100 s of training, 8 s and 2 s of copying, and a stop without notice 40 s later."""
    job = TrainingJob("j", units=4, min_units=4, tokens_per_s=((4, 8.0),), checkpoint_every_s=100)
    costs = replace(FREE, checkpoint_stall_s=8.0, host_bytes_per_s=10.0)
    env, ledger, gang = _gang(replace(job, state_bytes=80.0), costs)
    gang.place(np.arange(4))
    env.run(until=150_000)
    units = gang.stop(keep=False)
    env.run(until=200_000)
    assert units.tolist() == [0, 1, 2, 3]
    gang.settle()
    assert (gang.tally.tokens, gang.tally.lost_tokens) == (800.0, 320.0)
    assert (gang.tally.held_unit_ms, gang.tally.useful_unit_ms) == (4 * 150_000, 4 * 100_000)
    ledger.advance(150_000)
    assert ledger.spent_server_ms[Role.CHECKPOINTING] == 4 * 10_000


def test_a_restart_waits_and_a_restore_is_shorter():
    job = TrainingJob("j", units=2, min_units=2, reclaim="pause", tokens_per_s=((2, 1.0),))
    env, _, gang = _gang(job, replace(FREE, restart_s=600.0, restore_s=60.0))
    gang.admit(np.arange(2))
    env.run(until=700_000)
    gang.stop(keep=True, in_host=True)
    env.run(until=800_000)
    gang.admit(np.arange(2))
    env.run(until=900_000)
    gang.settle()
    assert (gang.tally.tokens, gang.tally.starts) == (100 + 40, 2)


def test_a_failure_stops_all_and_shrinks_to_what_fits():
    job = TrainingJob(
        "j", units=9, min_units=3, step_units=3, tokens_per_s=((9, 9.0),), checkpoint_every_s=1e6
    )
    env, _, gang = _gang(job, replace(FREE, recovery=replace(AT_ONCE, restart_s=100.0)))
    gang.place(np.arange(9))
    env.run(until=50_000)
    left = gang.fail(np.array([0]), np.empty(0, np.int64))
    assert (gang.size, len(left)) == (6, 2)
    env.run(until=200_000)
    gang.settle()
    assert (gang.tally.tokens, gang.tally.lost_tokens) == (6 * 50, 9 * 50)


def test_peers_lose_what_was_computed_since_the_last_copy():
    """Two units make a step of 5 tokens in 2.5 s: after 51 s, 1 s of work is in no copy."""
    job = TrainingJob(
        "j", units=2, tokens_per_s=((1, 1.0),), step_tokens=5.0, checkpoint="peer", standby="warm"
    )
    env, _, gang = _gang(job, ChangeCosts.fixed(0.0))
    gang.place(np.arange(2))
    env.run(until=51_000)
    gang.fail(np.array([0]), np.array([5]))
    assert (gang.size, gang.tally.lost_tokens) == (2, 2.0)


def test_a_night_job_recovers_as_a_job_of_weeks_does():
    """Detection, start or warm start, and reading from peers or store, by one definition."""
    machine, catalogue = cluster("trn2-ultraserver:8"), shipped_catalogue()
    costs = ChangeCosts.of(machine)
    step_s, state_bytes = 4.0, 2e12
    usual = TrainingJob("j", units=4, min_units=4, tokens_per_s=((4, 10.0),))
    usual = replace(usual, step_tokens=10.0 * step_s, state_bytes=state_bytes)
    state = State(state_bytes, 0.0, state_bytes / min(1e12, 16 * 10e9), writers=16)
    copies = peer_copies(state, machine, 16, step_s=step_s, start_s=380.0)
    detection_s = Recovery.from_catalogue(catalogue, 0.0).detection_s
    for checkpoint, standby, cold, restart_s in (
        ("async", "cold", False, 380.0 + state.read_s),
        ("peer", "cold", False, copies.restart_s),
        ("peer", "warm", False, copies.restart_s - 260.0),
        ("peer", "warm", True, copies.restart_s),
    ):
        job = replace(usual, checkpoint=checkpoint, standby=standby)
        env, ledger, gang = _gang(job, costs)
        gang.place(np.arange(4))
        env.run(until=103_000)
        gang.fail(np.array([0]), np.array([5]), cold=cold)
        lost_s = gang.tally.lost_tokens / 10.0
        expected = copies.lost_s(103.0) if checkpoint == "peer" else 103.0
        assert lost_s == pytest.approx(expected)
        env.run(until=2_000_000)
        ledger.advance(2_000_000)
        loading_ms = ledger.spent_server_ms[Role.LOADING]
        assert loading_ms / 4 == pytest.approx(1000 * (detection_s + restart_s), abs=2)


def test_a_partner_that_fails_in_a_recovery_costs_the_work_since_the_checkpoint():
    """Of two units the second is always the partner."""
    job = TrainingJob("j", units=2, tokens_per_s=((2, 1.0),), checkpoint="peer")
    env, _, gang = _gang(job, ChangeCosts.from_catalogue(1))
    gang.place(np.arange(2))
    env.run(until=100_500)
    gang.fail(np.array([0]), np.array([5]), rng=np.random.default_rng(0))
    assert gang.tally.lost_tokens == pytest.approx(0.5)
    env.run(until=110_000)
    gang.fail(np.array([1]), np.array([6]), rng=np.random.default_rng(0))
    assert gang.tally.lost_tokens == pytest.approx(100.5)


def _prepared(folder, row):
    file = folder / "jobs.csv"
    file.write_text(f"name,units,min_units,state_bytes,reclaim,checkpoint,tokens_per_s\n{row},10\n")
    options = FleetOptions(FleetInputs(unit_rate=10.0, training=file))
    model = named("llama-3.1-8b")
    return scenario(cluster("trn2-ultraserver:4"), constant(60.0), options, models=model)


@pytest.mark.parametrize(("row", "message"), [
    ("a,2,1,8e12,pause,async", "state of a pause take 2,000 GB .* reclaim checkpoint"),
    ("a,2,1,5e12,,peer", "job a: copies at peers take 5,000 GB .* room for 1,759"),
    # Copies of 1.2 TB and a state of 0.6 TB fit alone, and not together.
    ("a,2,1,1.6e12,pause,peer", "copies at peers and the state of a pause take 2,000 GB"),
])  # fmt: skip
def test_copies_and_states_are_held_against_host_memory(tmp_path, row, message):
    """8 TB over four servers are 2 TB a server, and 7 TB 1.75; the host has room for 1.76 TB."""
    refused(message, _prepared, tmp_path, row)
    assert _prepared(tmp_path, "a,2,1,7e12,pause,async").jobs[0].reclaim == "pause"


def test_default_jobs_that_do_not_fit_say_so():
    jobs = default_jobs(64)
    assert host_memory_note(jobs, 64) == ""
    saved = [replace(job, reclaim="checkpoint") if job.reclaim == "pause" else job for job in jobs]
    assert "instead of pausing" in host_memory_note(saved, 64)
    copied = [replace(job, checkpoint="async") for job in jobs]
    assert "no copies at peers" in host_memory_note(copied, 64)
