"""Planned downtime of a job, and other plans where no spare is left: exact cases and laws."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.refusals import refused
from tests.support.scripted_jobs import failing, job, parts_s, run, scripted
from topologies.clusters.names import cluster
from workloads.job import run_job
from workloads.job.causes import Cause, FailureRates
from workloads.job.checkpoints import PeerCopies
from workloads.job.goodput import search_interval, smooth_goodput
from workloads.job.job import Job, Replicas
from workloads.job.replan import replans
from workloads.models.huggingface import named
from workloads.options.job import JobInputs
from workloads.options.windows import Window, window_from
from workloads.training.iteration import Iteration, iteration
from workloads.training.plan.plan import ParallelPlan

REPLACED = failing(1e9, replaces=True)


def windows(*texts: str) -> tuple[Window, ...]:
    return tuple(window_from(text) for text in texts)


@pytest.mark.parametrize(("changes", "parts"), [
    # Due at 500: a checkpoint at once, until 520; two spares start until 620.
    ({"windows": windows("out/500s+200s=2"), "span_s": 900},
     {"useful": 500 + 280, "checkpoint": 20, "maintenance": 100}),
    # Once: no second time at 1,000.
    ({"windows": windows("out@500s+200s=2"), "span_s": 1200},
     {"useful": 500 + 580, "checkpoint": 20, "maintenance": 100}),
    # Without a spare all wait until 720.
    ({"windows": windows("out/500s+200s=2"), "span_s": 900, "spares": 1},
     {"useful": 500 + 80, "checkpoint": 20, "maintenance": 200 + 100}),
    # Four units in turn, two at a time: the second pair is due at 720, when the first is back.
    ({"windows": windows("roll/500s+200s=2"), "span_s": 940, "spares": 2},
     {"useful": 500 + 100 + 100, "checkpoint": 40, "maintenance": 200}),
    # Written for 30 s, which a unit waits for; the work is not lost.
    ({"windows": windows("out/500s+200s=1"), "span_s": 900, "write_s": 30},
     {"useful": 500 + 250, "checkpoint": 50, "maintenance": 100}),
    # All turns take longer than the time until they begin anew: one is due every 144 s.
    ({"windows": windows("roll/500s+124s=1"), "span_s": 2300},
     {"useful": 500 + 12 * 24, "checkpoint": 13 * 20, "maintenance": 12 * 100 + 52}),
])  # fmt: skip
def test_units_leave_at_a_checkpoint(changes, parts):
    assert parts_s(scripted(job(**changes), [])) == parts


def test_no_window_after_the_end_moves_the_interval_of_checkpoints():
    """Runs in which intervals are compared have many failures, and so last longer than the job."""
    trial = job(failing(1000), span_s=10_000)
    curves = [
        search_interval(replace(trial, windows=windows(f"out/{begin_s}s+900s=2")), 0)
        for begin_s in (9_000, 10_000)
    ]
    assert curves[0] != curves[1] == search_interval(trial, 0)


def test_replicas_without_the_units_go_on():
    # Two of eight units leave at 500, without a stall: three of four groups compute from 520 on.
    # The units are back at 700, start beside them until 1,000, and join until 1,020.
    trial = job(
        units=8, stall_s=0, spares=0, span_s=1200, windows=windows("out/500s+200s=2"),
        peers=PeerCopies(every_s=10.0, copy_s=0.0, restart_s=300.0, bytes_per_server=1e9),
        replicas=Replicas(4, 2, 8, 20.0),
    )  # fmt: skip
    trial = replace(trial, windows=(replace(trial.windows[0], every_s=1e6),))
    left_out = 1000 - 520
    share = left_out / 1.375
    assert parts_s(scripted(trial, [])) == pytest.approx(
        {
            "useful": 500 + share + 180, "restart": 20, "maintenance": 20,
            "fewer_replicas": left_out - share,
        }, abs=0.01,
    )  # fmt: skip


def test_another_plan_goes_on_until_the_unit_is_back():
    # Fails at 505 and is noticed at 515; starts by another plan until 615, a quarter slower; the
    # unit is back at 5,505, after four checkpoints at 1,635, 2,655 ..., and joins at the next one.
    trial = job(REPLACED, spares=0, span_s=8000, without=(0.25,), stall_s=20)
    trial = replace(trial, recovery=replace(trial.recovery, repair_s=5000))
    done = scripted(trial, [505], [5000])
    back = 615 + 5 * 1020
    slow = 5 * 1000 * (1 - 1 / 1.25)
    left = 8000 - back - 100
    stalls = 5 + left // 1020
    assert parts_s(done) == pytest.approx(
        {"lost_work": 505, "detection": 10, "restart": 200, "fewer_replicas": slow,
         "checkpoint": 20 * stalls, "useful": 5000 / 1.25 + left - 20 * (stalls - 5)}, abs=0.01,
    )  # fmt: skip
    waiting = scripted(replace(trial, without=()), [505], [5000])
    assert parts_s(waiting)["waiting_for_spares"] == 4990
    # A repair that is expected sooner than a second restart ends is waited for.
    soon = replace(trial, recovery=replace(trial.recovery, repair_s=60))
    assert parts_s(scripted(soon, [505], [60]))["waiting_for_spares"] == 50


def closed(trial: Job) -> None:
    simulated = np.mean([run(trial, seed).goodput for seed in range(4)])
    assert smooth_goodput(trial) == pytest.approx(simulated, abs=0.012)
    assert smooth_goodput(trial) < smooth_goodput(replace(trial, rates=failing(1e5), windows=()))


def test_the_closed_form_knows_windows_wrong_numbers_and_repairs_in_vain():
    stops = Cause("chip", 1e-5, True)
    usual = {"span_s": 1e7, "units": 8}
    closed(job(FailureRates((stops,)), windows=windows("roll/1d+30min=2"), **usual))
    waits = job(FailureRates((stops,)), windows=windows("out/1d+2h=1"), spares=0, **usual)
    closed(waits)
    closed(replace(waits, without=(0.25,)))
    assert smooth_goodput(replace(waits, without=(0.25,))) > smooth_goodput(waits) + 0.05
    most = windows("out/1d+20h=1", "out/1d+20h=2")  # more than all of the time
    assert smooth_goodput(job(FailureRates((stops,)), windows=most, spares=0, **usual)) == 0
    wrong = Cause("wrong", 4e-6, False, found_after_s=10_000.0)
    closed(job(FailureRates((stops, wrong)), **usual))
    vain = Cause("bad", 4e-5, True, again=0.6, again_after_s=2000.0)
    closed(job(FailureRates((vain,)), **usual, spares=3))


def a_step(**plan: int) -> Iteration:
    return iteration(named("llama-3.1-8b"), cluster("trn2.48xlarge:4"), ParallelPlan(**plan))


def test_the_other_plan_fits_the_units_that_are_left_and_is_no_slower_than_fewer_replicas():
    step = a_step(tp=8, pp=2, dp=4, global_batch=64)
    for units, each in enumerate(replans(step, 16, 3), 1):
        assert each.units == units
        assert each.plan.ranks <= 64 - 16 * units
        assert 64 <= each.plan.global_batch < 64 + each.plan.dp * each.plan.microbatch
        fewer = replace(
            step.plan, dp=4 - units, global_batch=math.ceil(64 / (4 - units)) * (4 - units)
        )
        fewer_s = iteration(step.model, step.cluster, fewer, partial=True).iteration_s
        assert step.iteration_s < each.iteration_s <= fewer_s * 1.0001
        assert each.slower == pytest.approx(each.iteration_s / step.iteration_s - 1)


def test_without_more_units_a_step_is_no_faster():
    """Of 128 chips three servers less leave a plan that is faster than those of one less."""
    plan = ParallelPlan(tp=8, pp=4, dp=4, global_batch=32, seq=8192)
    step = iteration(named("llama-3.1-70b"), cluster("dgx-h100:16"), plan)
    others = replans(step, 8, 3)
    assert [each.units for each in others] == [1, 2, 3]
    times_s = [each.iteration_s for each in others]
    assert times_s == sorted(times_s)


def test_a_job_states_its_plans_and_windows():
    step = a_step(tp=8, pp=2, dp=4, global_batch=64)
    words = {"days": 20, "runs": 2, "spares": 0, "failures": "20"}
    other = run_job(step, replan=True, maintenance="roll/5d+2h=1", **words)
    document = other.document()
    assert (document["maintenance"], document["elastic"]) == (["roll/5d+2h=1"], False)
    assert [row["units"] for row in document["plans_without_units"]] == [1, 2, 3][
        : len(other.replans)
    ]
    assert any("where 1 unit is lost and no spare is left, the job" in note for note in other.notes)
    waits = run_job(step, maintenance="roll/5d+2h=1", **words)
    assert waits.breakdown["maintenance"] > 2 * other.breakdown["maintenance"] > 0
    assert other.goodput > waits.goodput + 0.02
    assert any("with 1 more spare for it the goodput would be" in note for note in waits.notes)
    goes_on = run_job(step, checkpoint="peer", elastic=True, standby="warm", **words)
    document, saved_s = goes_on.document(), goes_on.job.recovery.warm_saves_s
    assert document["elastic"]
    assert document["warm_restart_s"] == document["peer_restart_s"] - saved_s < 200
    late = run_job(step, maintenance="roll/20d+2h=1", **words)
    assert late.breakdown["maintenance"] == 0
    assert any("roll/20d+2h=1 changes nothing, as the run ends" in note for note in late.notes)


@pytest.mark.parametrize(("words", "message"), [
    ({"maintenance": "out@1d=2"}, "out@1d=2 cannot be read; write out@1d02:00.4h=2 for"),
    ({"maintenance": "out/30d+4h=0"}, "0 units at a time, and there are 4; state 1 to 4"),
    ({"maintenance": "out/30d+4h=5"}, "5 units at a time, and there are 4"),
    ({"maintenance": "roll/1d+6h=1"}, "overlaps the next one: it takes 24 h, in 4 turns, and"),
    ({"maintenance": "out/0d+4h=1"}, "its times must be finite and above 0"),
    ({"maintenance": "out/3d+4parsec=1"}, "parsec"),
    ({"replan": True, "elastic": True, "checkpoint": "peer"}, "leave out --replan"),
])  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_one_line(words, message):
    refused(message, run_job, a_step(tp=8, pp=2, dp=4, global_batch=64), JobInputs(days=1), **words)
