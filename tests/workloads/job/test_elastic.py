"""A job that goes on with fewer replicas: exact cases, conservation, never less than without."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.refusals import refused
from tests.support.scripted_jobs import failing, job, parts_s, run, scripted
from topologies.support.errors import InputError
from workloads.job import Job
from workloads.job.checkpoints import PeerCopies
from workloads.job.front import replicas_of
from workloads.job.goodput import smooth_goodput
from workloads.job.job import Replicas
from workloads.options.job import JobInputs
from workloads.training.plan.plan import ParallelPlan

COPIES = PeerCopies(every_s=10.0, copy_s=0.0, restart_s=300.0, bytes_per_server=1e9)
FOUR = Replicas(groups=4, units=2, microbatches=8, resize_s=20.0)
"""Four replicas on two units each; three of them do eleven microbatches in place of eight."""


def elastic(rates: Any, **changes: Any) -> Job:
    usual = {"units": 8, "stall_s": 0, "peers": COPIES, "replicas": FOUR, "span_s": 2000}
    return job(rates, **{**usual, **changes})


def test_a_spare_starts_beside_the_job_and_joins_it():
    # Fails at 505 and goes back to the copy of 500; noticed at 515, three replicas compute from
    # 535; the spare has started by 815 and joins until 835. The checkpoint is due 1,000 s of
    # computing after 535.
    done = scripted(elastic(failing(1e9, replaces=True), spares=1), [505])
    share = 280 / 1.375
    assert parts_s(done) == pytest.approx(
        {
            "useful": 500 + share + (2000 - 835), "lost_work": 5, "detection": 10,
            "restart": 20 + 20, "fewer_replicas": 280 - share,
        }, abs=0.002,
    )  # fmt: skip
    assert (done.checkpoints, done.replaced) == (1, 1)
    # A failure that replaces nothing leaves a replica out for its start.
    done = scripted(elastic(failing(1e9), spares=0), [505])
    assert parts_s(done)["fewer_replicas"] == pytest.approx(280 - share, abs=0.002)


def test_a_scaled_batch_leaves_out_the_tokens_of_the_replicas_that_are_gone():
    # As above: three of four replicas train three quarters for the 280 s until the spare joins.
    scaled = elastic(failing(1e9, replaces=True), spares=1, replicas=replace(FOUR, scaled=True))
    assert parts_s(scripted(scaled, [505]))["fewer_replicas"] == pytest.approx(280 / 4, abs=0.002)
    refused("--elastic-batch scaled is for replicas that go on", JobInputs, elastic_batch="scaled")


def test_without_a_spare_the_others_go_on_until_the_repair():
    # As above, but the unit is back at 905 and has started by 1205.
    trial = elastic(failing(1e9, replaces=True), spares=0)
    done = scripted(trial, [505], [400])
    left_out = 1205 - 535
    assert parts_s(done)["fewer_replicas"] == pytest.approx(left_out * (1 - 1 / 1.375), abs=0.002)
    assert parts_s(done)["restart"] == 40
    waiting = scripted(replace(trial, replicas=None), [505], [400])
    assert parts_s(waiting)["waiting_for_spares"] == 390
    assert done.goodput > waiting.goodput


def test_two_lost_units_of_one_group_cost_one_group():
    # The second failure, at 605, finds the other unit of the group that is left out: it takes the
    # place of the lost one, and three replicas go on.
    trial = elastic(failing(1e9, replaces=True), spares=0)
    done = scripted(trial, [505, 100], [1e6, 1e6])
    lost_s = 605 - 535 - 70  # copies come every 10 s
    computed = 70 + 2000 - 635
    expected = pytest.approx((computed - lost_s) * (1 - 1 / 1.375), abs=0.01)
    assert parts_s(done)["fewer_replicas"] == expected
    assert "waiting_for_spares" not in parts_s(done)


def test_a_job_waits_where_no_replica_is_whole():
    one = Replicas(groups=2, units=1, microbatches=8, resize_s=20.0)
    trial = elastic(failing(1e9, replaces=True), spares=0, units=2, replicas=one)
    done = scripted(trial, [505, 100], [1000, 1000])
    # The first is back 1,000 s after it failed; both are noticed to be lost at 615.
    assert parts_s(done)["waiting_for_spares"] == 1505 - 615
    # Both only start again: the second, at 605, while the first does, so that they start together.
    done = scripted(replace(trial, rates=failing(1e9)), [505, 100])
    assert parts_s(done)["restart"] == 20 + 300


def test_the_closed_form_knows_of_it():
    replicas = Replicas(20, 2, 16, 60.0)
    trial = elastic(failing(5000.0), units=40, replicas=replicas, span_s=5e6, spares=100)
    simulated = np.mean([run(trial, seed).goodput for seed in range(3)])
    assert simulated == pytest.approx(smooth_goodput(trial), abs=0.01)
    assert smooth_goodput(trial) > smooth_goodput(replace(trial, replicas=None)) + 0.02


def test_replicas_of_a_plan():
    inner = ParallelPlan(tp=8, pp=2, dp=32, global_batch=128)
    assert replicas_of(inner, 8, 64, 1.0) == Replicas(4, 2, 4, 1.0)
    outer = replace(inner, order=("tp", "cp", "pp", "dp"))
    assert replicas_of(outer, 8, 64, 1.0) == Replicas(8, 1, 4, 1.0)
    small = ParallelPlan(tp=64, pp=4, dp=6, global_batch=48)
    assert replicas_of(small, 24, 64, 1.0) == Replicas(6, 4, 8, 1.0)
    with pytest.raises(InputError, match=r"a unit of 64 chips stops 8 of 8 replicas, so that none"):
        replicas_of(replace(inner, pp=8, dp=8), 8, 64, 1.0)
    refused("add --checkpoint peer", JobInputs, elastic=True)
