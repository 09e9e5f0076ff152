"""The time of a further microbatch, read from one run, against runs with more microbatches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.models.model import Model
from workloads.training import steady as steady_module
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules import PipelineSchedule
from workloads.training.plan.schedules.one_f_one_b import alternating
from workloads.training.steady import microbatch_ps, repeats

SMALL = Model(
    "small", layers=8, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn=4096, vocab=32000
)
MACHINES = {name: cluster(name) for name in ("trn2.48xlarge", "dgx-h100")}


def simulated(plan, machine="trn2.48xlarge", model=SMALL, **detail):
    return iteration(model, MACHINES[machine], plan, allow_oversized=True, partial=True, **detail)


def further(step, microbatches=10):
    """Time that each microbatch adds to a step of this one and so many more [ps]."""
    return microbatch_ps(step.plan, step.program, step.trace, step.plan.microbatches + microbatches)


def with_microbatches(plan, count):
    return replace(plan, global_batch=count * plan.dp * plan.microbatch)


def test_a_pipeline_of_one_stage_and_no_exchange_adds_its_two_passes():
    plan = ParallelPlan(global_batch=8, seq=1024)
    step, longer = (simulated(with_microbatches(plan, count)) for count in (8, 9))
    assert further(step) == longer.trace.total_ps - step.trace.total_ps


def drawn(seed):
    """A random plan of eight ranks, its machine, and whether ranks are folded."""
    draw = np.random.default_rng(seed)
    pp = int(draw.choice([1, 1, 2, 4]))
    tp = int(draw.choice([1, 2]))
    dp = 8 // (pp * tp)
    plan = ParallelPlan(
        tp=tp,
        pp=pp,
        dp=dp,
        microbatch=int(draw.choice([1, 2])),
        global_batch=dp * 2,
        seq=int(draw.choice([512, 2048])),
        zero=int(draw.choice([0, 1, 2, 3])),
        schedule=str(draw.choice(["1f1b", "zero-bubble", "interleaved"])),
        overlap=str(draw.choice(["none", "dp", "all"])),
        recompute=str(draw.choice(["none", "selective", "full"])),
        sequence_parallel=bool(tp > 1 and draw.random() < 0.5),
    )
    count = int(draw.integers(2 * pp + 2, 4 * pp + 6))
    return with_microbatches(plan, count), str(draw.choice(list(MACHINES))), draw.random() < 0.7


@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in (0, 10, 20, 30)])
def test_every_steady_run_has_the_times_of_longer_ones(seeds):
    steady = 0
    for seed in seeds:
        plan, machine, folded = drawn(seed)
        step = simulated(plan, machine, folded=folded)
        each_ps = further(step)
        if each_ps is None:
            continue
        steady += 1
        for more in (1, 7):
            longer = simulated(with_microbatches(plan, plan.microbatches + more), machine)
            assert longer.trace.total_ps == step.trace.total_ps + more * each_ps, plan
    assert steady >= 4


def test_a_run_with_experts_and_shared_memory_is_steady():
    plan = ParallelPlan(tp=2, ep=4, dp=4, global_batch=40, seq=512, overlap="all")
    step = simulated(plan, model=named("mixtral-8x7b"))
    longer = simulated(with_microbatches(plan, 12), model=named("mixtral-8x7b"))
    assert step.shares_memory
    each_ps = further(step)
    assert each_ps is not None
    assert longer.trace.total_ps == step.trace.total_ps + 2 * each_ps


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schedule": "gpipe"}, "a microbatch has two places in the order"),
        ({"schedule": "interleaved", "vpp": 2}, "a round has several microbatches"),
        ({"schedule": "dualpipe", "vpp": 2}, "passes run side by side"),
        ({"global_batch": 8}, "there are too few rounds"),
    ],
)
def test_orders_without_equal_rounds_are_not_extrapolated(changes, why):
    plan = replace(ParallelPlan(pp=4, dp=2, global_batch=48, seq=512), **changes)
    assert not repeats(plan, plan.microbatches + 4), why
    assert further(simulated(plan)) is None


def test_a_warm_up_that_grows_with_the_batch_is_not_extrapolated(monkeypatch):
    growing = PipelineSchedule(
        "growing", "growing", lambda pp, stage, count, chunks: alternating(pp, count, 1, count // 2)
    )
    plan = ParallelPlan(pp=2, dp=4, global_batch=64, seq=512)
    assert repeats(plan, 17)
    monkeypatch.setattr(ParallelPlan, "pipeline", growing)
    assert repeats(plan, 17)  # whose warm-up is still 8
    assert not repeats(plan, 18)
    assert not repeats(plan, 40)


def test_ranks_in_different_states_are_not_extrapolated():
    plan = ParallelPlan(pp=2, dp=4, global_batch=64, seq=512)
    step = simulated(plan)
    assert further(step) is not None
    late = step.trace.times.start_ps.copy()
    late[step.program.streams[0].begins[24]] += 1  # a pass of the first rank in the last rounds
    times = replace(step.trace.times, start_ps=late)
    assert further(replace(step, trace=replace(step.trace, times=times))) is None


def test_a_rank_vector_keeps_no_times_to_compare():
    plan = ParallelPlan(pp=2, dp=4, global_batch=64, seq=512)
    assert repeats(plan, 20)
    assert further(simulated(plan, level="rank-vector")) is None


def test_a_stretch_ends_where_the_pipeline_drains():
    plan = ParallelPlan(pp=2, dp=1, global_batch=6, seq=512)
    first, last = (steady_module._stretch(plan.pipeline, 2, 1, 6, 9, stage) for stage in (0, 1))
    # F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5 and F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5, where the last
    # passes of each phase have other ops.
    assert first == (1, 9, 2)
    assert last == (0, 10, 2)
