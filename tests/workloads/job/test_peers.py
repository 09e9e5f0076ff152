"""Copies in the memory of peers and their room, warm spares: exact cases, closed forms, pairs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.refusals import refused
from tests.support.toy_training import TOY, plan
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.job import Cause, FailureRates, Job, Recovery, expected_goodput, simulate
from workloads.job.checkpoints import (
    PeerCopies,
    State,
    held_bytes,
    job_state,
    peer_copies,
    room_for_copies,
    trained_parameters,
)
from workloads.job.goodput import smooth_goodput
from workloads.options.job import JobInputs

COPIES = PeerCopies(every_s=10.0, copy_s=4.0, restart_s=60.0, bytes_per_server=1e9)


def job(mtbf_s: float, *, replaces: bool = True, **changes: Any) -> Job:
    usual = Job(
        rates=FailureRates((Cause("chip", 1 / mtbf_s, replaces),)),
        recovery=Recovery(restart_s=600, explicit_s=30, timeout_s=0, hang_share=0, repair_s=500),
        interval_s=1800, stall_s=0, write_s=100, units=64, spares=100, span_s=3e7, peers=COPIES,
    )  # fmt: skip
    return replace(usual, **changes)


def test_a_checkpoint_holds_the_state_of_what_is_trained_on_all_stages():
    matrices = 8 * (2 * 1024 * 1024 + 2 * 1024 * 256)  # of queries, outputs, keys and values
    for part, parameters in (("attention", matrices), ("output", 32_000 * 1024)):
        assert trained_parameters(TOY, plan(pp=2, train_only=part)) == parameters
    assert trained_parameters(TOY, plan(pp=2)) == TOY.parameters


@pytest.mark.parametrize(("zero", "parts"), [(0, 2), (1, 8)])
@pytest.mark.parametrize(("name", "rate"), [("dgx-h100", 22e9), ("trn2.48xlarge", 0.77e9)])
def test_an_asynchronous_checkpoint_stops_a_job_for_the_copy_of_each_part(zero, parts, name, rate):
    """Beside 2 s; ZeRO divides the optimizer among all chips, else those of one replica have it."""
    state = job_state(TOY, plan(tp=2, dp=4, zero=zero), cluster(name))
    assert state.stall_s == pytest.approx(2 + 14 * TOY.parameters / (parts * rate))


def test_goodput_is_that_of_the_closed_form():
    """A failure loses half the time between copies and the copy on its way."""
    trial = job(20_000.0, replaces=False)
    outcome = simulate(trial, np.random.default_rng(0))
    form = expected_goodput(10.0, 20_000.0, checkpoint_s=0, restart_s=60, detection_s=30 + 4)
    assert outcome.goodput == pytest.approx(form, abs=0.001)
    assert smooth_goodput(trial) == pytest.approx(form)
    lost_s = outcome.parts_ms["lost_work"] / 1000 / sum(outcome.failures.values())
    assert lost_s == pytest.approx(10.0 / 2 + 4.0, rel=0.05)


def test_a_pair_is_lost_as_often_as_both_of_it_are_out():
    """Two units of N that are out at once are a pair with probability 1 / (N - 1)."""
    # Recoveries of 90 s: the next failure comes within one with probability 1 - exp(-90 / mtbf).
    mtbf_s, units = 3000.0, 16
    trial = job(mtbf_s, units=units, spares=100_000, span_s=5e7)
    outcome = simulate(trial, np.random.default_rng(2))
    recoveries = sum(outcome.failures.values())
    overlapped = -np.expm1(-90.0 / mtbf_s) * recoveries
    assert outcome.pairs_lost == pytest.approx(overlapped / (units - 1), rel=0.25)


def test_two_units_are_always_a_pair():
    """Then the second failure in a recovery costs what the store does not hold, and its restart."""
    trial = job(1000.0, units=2, span_s=1e6)
    outcome = simulate(trial, np.random.default_rng(3))
    assert outcome.pairs_lost > 10
    lost_s = outcome.parts_ms["lost_work"] / 1000
    usual_s = 9.0 * sum(outcome.failures.values())
    assert lost_s > usual_s + 100.0 * outcome.pairs_lost


def test_warm_spares_save_the_start_where_they_are_enough():
    cold = job(20_000.0)
    warm = replace(cold, recovery=replace(cold.recovery, warm_saves_s=40.0))
    restarts = [
        simulate(trial, np.random.default_rng(4)).parts_ms["restart"] for trial in (cold, warm)
    ]
    assert restarts[1] / restarts[0] == pytest.approx(20 / 60, rel=0.02)
    none = replace(warm, spares=0)
    waited = simulate(none, np.random.default_rng(4))
    each_s = waited.parts_ms["restart"] / 1000 / sum(waited.failures.values())
    # Repairs of 500 s in the mean are done before detection ends in 1 - exp(-30/500) of all cases.
    early = -np.expm1(-30 / 500)
    assert each_s == pytest.approx(60.0 - 40.0 * early, rel=0.06)


def test_copies_are_as_frequent_as_the_network_lets_them():
    """Half of sixteen adapters of 25 GB/s carry 200 GB/s from each server."""
    machine = cluster("trn2.48xlarge:4")
    for state_bytes, every_s in ((4 * 100e9, 0.7), (4 * 400e9, 2.1)):
        state = State(state_bytes, 10.0, 10.0)
        copies = peer_copies(state, machine, 4, step_s=0.7, start_s=100.0)
        assert copies.copy_s == pytest.approx(state_bytes / 4 / 200e9)
        assert copies.every_s == pytest.approx(every_s)
        assert copies.restart_s == pytest.approx(100.0 + state_bytes / 4 / 400e9)
        assert copies.bytes_per_server == state_bytes
        assert copies.host_bytes == 2048 * 2**30
    with pytest.raises(InputError, match=r"one\. Use a cluster of several"):
        peer_copies(state, cluster("trn2.48xlarge"), 1, step_s=2, start_s=1.0)


def test_settings_that_exclude_each_other_are_refused():
    refused("a pair needs two", job, 1000.0, units=1)
    refused("leave out --restart", JobInputs, standby="warm", restart="60s")


PAIR = cluster("trn2.48xlarge:2")
CATALOGUE = shipped_catalogue()


def copies_of(part_bytes: float) -> float:
    state = State(2 * part_bytes, 1.0, 1.0, 2)
    held = peer_copies(state, PAIR, 2, step_s=1.0, start_s=0.0)
    return held.bytes_per_server


def test_copies_that_fill_their_room_fit_and_more_do_not():
    most = room_for_copies(PAIR, CATALOGUE) / held_bytes(1.0)
    assert copies_of(most) == held_bytes(most)
    refused("--checkpoint peer keeps", copies_of, most * 1.001)
