"""Estimates of plans, bounds below which none falls, and times that they share."""

from dataclasses import replace
from functools import cache
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pipeline_lines import line
from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.models.model import Model
from workloads.search.candidates import candidates
from workloads.search.estimate import _Shared, best_estimates, estimate
from workloads.search.pipeline_model import ROUNDING, Line, least_s, walk_s
from workloads.search.search import agreement, search
from workloads.training.frameworks.framework import framework
from workloads.training.iteration import iteration
from workloads.training.memory.memory import Stack, chunk_activations, layer_activations
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.plan.schedules import registry
from workloads.training.plan.stages import (
    chunk_layers,
    end_stages,
    is_kept,
    kinds_of_chunks,
    layer_kinds,
    stage_kinds,
    unlike_stages,
)

PLANS = [
    {"dp": 16}, {"tp": 8, "dp": 2, "sequence_parallel": False}, {"tp": 4, "pp": 2, "dp": 2},
    {"tp": 2, "pp": 4, "dp": 2, "order": ("tp", "cp", "pp", "dp")}, {"pp": 8, "dp": 2, "zero": 0},
    {"tp": 16, "recompute": "full"}, {"pp": 4, "dp": 4, "stage_layers": (3, 2, 2, 1)},
    {"tp": 2, "pp": 2, "dp": 4, "schedule": "gpipe", "microbatch": 2},
    {"tp": 2, "pp": 4, "dp": 2, "vpp": 2}, {"tp": 2, "pp": 4, "dp": 2, "schedule": "zero-bubble"},
    {"tp": 2, "dp": 8, "zero": 2}, {"tp": 2, "dp": 8, "zero": 3}, {"pp": 4, "dp": 4, "zero": 2},
    {"pp": 4, "dp": 4, "zero": 3}, {"pp": 4, "dp": 4, "zero": 3, "reshard": False},
    {"tp": 2, "pp": 2, "dp": 4, "vpp": 2, "zero": 3}, {"tp": 2, "cp": 4, "dp": 2},
    {"pp": 4, "dp": 4, "schedule": "zero-bubble", "zero": 3},
]  # fmt: skip


def _plans(**usual: object) -> list[ParallelPlan]:
    """All of them, with eight microbatches each, and sequence parallelism where there is tp."""
    each = [plan(**{**usual, **changes}) for changes in PLANS]
    batches = [8 * one.dp * one.microbatch for one in each]
    return [
        replace(one, global_batch=batch, sequence_parallel=one.sp > 1)
        for one, batch in zip(each, batches, strict=True)
    ]


@pytest.mark.parametrize("name", ["fsdp", "megatron-lm:2020-08"])
def test_estimates_follow_the_kernels_of_a_framework(name):
    """Copies of sharded parameters, and sums of gradients that no product does, are in passes."""
    where, wide = cluster("dgx-a100:2"), Model("wide", 8, 4096, 32, 8, 128, 14336, 32_000)
    every = _plans(overlap="dp", framework=name, seq=4096)
    plans = [one for one in every if not any(framework(name).lacks(one))]
    estimates_s = estimate(wide, where, plans)
    simulated = [iteration(wide, where, one, allow_oversized=True).iteration_s for one in plans]
    assert estimates_s == pytest.approx(simulated, rel=0.05)


@pytest.mark.parametrize(("machine", "overlap"), [
    ("trn2.48xlarge", "none"), ("trn2.48xlarge", "all"), ("dgx-h100:2", "dp"),
    ("dgx-h100:2", "all"),
])  # fmt: skip
def test_estimates_are_near_the_simulation_and_in_its_order(machine, overlap):
    where, plans = cluster(machine), _plans(overlap=overlap)
    estimates_s = estimate(TOY, where, plans)
    simulated = [iteration(TOY, where, one, allow_oversized=True).iteration_s for one in plans]
    agreed = agreement(list(zip(estimates_s.tolist(), simulated, strict=True)))
    assert agreed.worst_abs_error < 0.07
    assert agreed.kendall_tau > 0.95


@pytest.mark.parametrize(
    ("degrees", "apart"),
    [({"dp": 16}, 1e-8), ({"tp": 8, "dp": 2}, 1e-8), ({"tp": 4, "pp": 2, "dp": 2}, 2e-3)],
)
def test_a_host_that_issues_kernels_and_parts_that_are_gathered_are_estimated(degrees, apart):
    """Without sequence parallelism a stage may gather while the pass before waits for the host."""
    where = cluster("dgx-h100:2")
    one = plan(**degrees, global_batch=16, overlap="dp", sequence_parallel=False)
    step = iteration(TOY, where, one)
    assert step.breakdown_s["host"] > 0
    assert estimate(TOY, where, [one])[0] == pytest.approx(step.iteration_s, rel=apart)


estimates = import_module("workloads.search.estimate")  # the package has a function of this name
SCHEDULES = [
    (schedule.name, chunks)
    for schedule in registry.SCHEDULES
    for chunks in (1, 2, 3)
    if chunks in schedule.chunks_allowed
]


def bound_of(pipeline: Line) -> float:
    """Bound of a pipeline; phases that it does not run take no time."""
    runs = np.isin(np.arange(3), pipeline.passes[0])
    return least_s(
        number=pipeline.number,
        layers=np.diff(pipeline.first),
        sparse=pipeline.sparse,
        layer_s=pipeline.layer_s * runs[:, None],
        ends_s=pipeline.ends_s * runs,
        microbatches=int(pipeline.passes[1].max()) + 1,
    )


@given(
    st.sampled_from(SCHEDULES),
    st.sampled_from([2, 4, 8]),
    st.integers(1, 3),
    st.lists(st.floats(0.0, 9.0), min_size=27, max_size=27),
    st.integers(0, 2),
    st.booleans(),
)
def test_no_walk_is_shorter_than_its_bound(schedule, stages, rounds, times, exchanges, beside):
    name, vpp = schedule
    chunks, some = stages * vpp, np.array(times)
    pipeline = line(
        stages, rounds * 2 * stages, name, vpp=vpp, gathers=exchanges, reduces=exchanges,
        layer_s=np.repeat(some[:6].reshape(2, 3, 1), 2, axis=2), ends_s=some[6:24].reshape(3, 2, 3),
        hop_s=np.full(stages, some[24]), gather_s=np.full(chunks, some[25]),
        reduce_s=np.full(chunks, some[26]), sends_beside=beside, dp_beside=beside,
    )  # fmt: skip
    assert bound_of(pipeline) <= walk_s(pipeline)


@pytest.mark.parametrize("microbatches", [4, 16])
def test_the_bound_of_a_pipeline_without_transfers_is_its_time(microbatches):
    """Under 1F1B the last stage waits for the first microbatch, and the first for the last."""
    pipeline = line(4, microbatches)
    bound_s = bound_of(pipeline)
    assert bound_s / (1 - ROUNDING) == walk_s(pipeline) == 3 * (microbatches + 3)


@cache
def plans_of(model: Model) -> tuple[ParallelPlan, ...]:
    """All plans of a model on sixteen chips, with every pipeline schedule."""
    unsearched = ("zero-bubble", "gpipe", "combined-1f1b", "dualpipe")
    stated = [{"seq": 1024, "schedule": name} for name in unsearched]
    every = [candidates(model, sixteen(), 32, stated=each) for each in ({"seq": 1024}, *stated)]
    return tuple(one for each in every for one in each.plans)


@pytest.mark.parametrize("model", [TOY, SPARSE], ids=["dense", "sparse"])
def test_no_estimate_is_shorter_than_its_bound(model):
    plans = plans_of(model)[:: 31 if model is TOY else 200]
    shared = _Shared(model, sixteen())
    bound_s = np.array([shared.least_s(plan) for plan in plans])
    assert (bound_s <= estimate(model, sixteen(), plans)).all()
    assert {plan.schedule for plan in plans} == {*registry.schedule_names()}


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """Pipelines that the estimates walk through, in order."""
    walked = []

    def counted(pipeline: Line) -> float:
        walked.append(pipeline)
        return walk_s(pipeline)

    monkeypatch.setattr(estimates, "walk_s", counted)
    return walked


def test_the_best_are_found_without_most_estimates(walks):
    plans = plans_of(TOY)[::17]
    every = estimate(TOY, sixteen(), plans)
    assert len(walks) == len(plans)
    for count in (1, 20):
        walks.clear()
        best = best_estimates(TOY, sixteen(), plans, count)
        is_estimated = np.isfinite(best)
        assert is_estimated.sum() == len(walks) < len(plans) / 2
        assert (best[is_estimated] == every[is_estimated]).all()
        order = np.argsort(every, kind="stable")[:count]
        assert np.argsort(best, kind="stable")[:count].tolist() == order.tolist()
        assert every[~is_estimated].min() > every[order[-1]]
    walks.clear()
    few = plans[:20]
    assert (best_estimates(TOY, sixteen(), few, len(few)) == every[:20]).all()
    assert len(walks) == len(few)


def test_a_search_estimates_the_rest_when_they_are_read(walks):
    stated = {"seq": 1024, "order": "tp-cp-dp-pp"}
    result = search(TOY, sixteen(), 32, stated=stated, finalists=2)
    assert result.estimated == len(walks) < len(result.plans)
    every = estimate(TOY, sixteen(), result.plans)
    assert (result.estimate_s == every).all()
    best = np.sort(every)
    assert sorted(one.estimate_s for one in result.finalists) == best[:2].tolist()
    assert result.next_estimate_s == best[2]
    compared = search(TOY, sixteen(), 32, stated=stated, finalists=1, each=["tp"])
    assert compared.estimated == len(compared.plans)


ALONE = {
    "microbatch": 2, "global_batch": 2, "seq": 2048, "zero": 3, "reshard": False,
    "sequence_parallel": False, "schedule": "zero-bubble", "recompute": "full",
    "recompute_every": 2, "precision": "fp8", "overlap": "all", "attention": "unfused",
    "ranks_per_chip": 2, "order": ("dp", "pp", "cp", "tp"), "routing_skew": 1.5,
    "capacity_factor": 1.25, "fp8_exchange": True, "stage_layers": (3, 5), "bucket_bytes": 10**6,
    "lora_rank": 8, "train_only": "mlp", "runtime": "eager", "framework": "axlearn",
    "optimizer": "muon", "sample_tokens": 256,
}  # fmt: skip
CHANGES = {
    **{name: {name: value} for name, value in ALONE.items()},
    "tp": {"tp": 4, "dp": 1}, "pp": {"pp": 4, "dp": 1}, "dp": {"dp": 4, "global_batch": 16},
    "cp": {"cp": 2, "dp": 1}, "ep": {"ep": 4, "etp": 1}, "etp": {"etp": 1, "ep": 2},
    "vpp": {"vpp": 2, "schedule": "interleaved"}, "routed_nodes": {},  # needs several servers
    "fp8_recipe": {"precision": "fp8", "fp8_recipe": "rowwise"},
    "cp_exchange": {"cp": 2, "dp": 1, "cp_exchange": "all-gather"},
    "lora_on": {"lora_rank": 8, "lora_on": "attention"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "usual"),
    [(TOY, {}), (SPARSE, {"zero": 3, "overlap": "dp", "recompute": "full"})],
    ids=["dense", "sparse"],
)
def test_an_estimate_does_not_depend_on_the_plans_beside_it(model, usual):
    """A field that is left out of a key gives a plan the times of one that was there before."""
    assert set(CHANGES) == set(PLAN_FIELDS), "change every field"
    experts = {"ep": 2, "etp": 1} if model.experts else {}
    base = plan(**{"tp": 2, "pp": 2, "dp": 2, "global_batch": 8, **experts, **usual})
    dense_only = ("ep", "etp", "routing_skew", "capacity_factor", "fp8_exchange")
    changes = [
        change
        for name, change in CHANGES.items()
        if model.experts or name not in dense_only
        if not (model.experts and {"cp", "tp", "pp"} & set(change))
    ]
    plans = [base, *(replace(base, **change) for change in changes)]
    machine = sixteen()
    alone = [estimate(model, machine, [one])[0] for one in plans]
    assert estimate(model, machine, plans[::-1]).tolist()[::-1] == alone


@pytest.mark.parametrize("overlap", ["none", "dp", "all"])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_chunks_without_layers_are_walked_within_the_arrays(zero, overlap):
    """The ends of a model may have chunks without a layer, which once read and wrote beyond."""
    how = plan(pp=5, vpp=2, dp=2, zero=zero, overlap=overlap, global_batch=20)
    line = _Shared(TOY, sixteen()).line(how)
    assert line.first[[0, 1, -2, -1]].tolist() == [0, 0, 8, 8]
    guarded = {}
    for name in ("gather_s", "reduce_s"):
        column = np.full((len(getattr(line.replicas, name)) + 64, 2), 1e30)
        column[32:-32] = getattr(line.replicas, name)
        guarded[name] = column[32:-32]
    apart = line._replace(replicas=line.replicas._replace(**guarded))
    assert walk_s(apart) == walk_s(line) < 1


CHUNKED = (
    ParallelPlan(pp=4, dp=8, global_batch=32, zero=2),
    ParallelPlan(pp=4, vpp=3, schedule="interleaved", dp=8, global_batch=32, zero=1),
    ParallelPlan(pp=4, vpp=2, schedule="dualpipe", dp=8, global_batch=64, zero=1),
    ParallelPlan(pp=3, stage_layers=(2, 30, 29), dp=2, global_batch=6, bucket_bytes=10**9),
    ParallelPlan(pp=2, dp=4, global_batch=8, recompute="full", recompute_every=3, zero=3),
)
MODEL = named("deepseek-v3")  # three dense layers, then 58 with experts


@pytest.mark.parametrize("plan", CHUNKED)
def test_kinds_of_chunks_are_counted_layer_by_layer(plan):
    kinds, chunks = len(MODEL.kinds), kinds_of_chunks(MODEL, plan)
    seen = {}
    for stage in range(plan.pp):
        held = chunk_layers(MODEL, plan, stage)
        for chunk, layers in enumerate(held):
            numbers = layer_kinds(MODEL, layers) + kinds * is_kept(plan, layers)
            counts = np.bincount(numbers, minlength=2 * kinds).tolist()
            assert list(chunks[plan.pipeline.number(plan.pp, stage, chunk)]) == counts
        each = [tuple(np.bincount(layer_kinds(MODEL, one), minlength=kinds)) for one in held]
        assert stage_kinds(MODEL, plan, stage) == tuple(np.sum(each, axis=0))
        ends = tuple(stage == end for end in end_stages(plan))
        kept = tuple(is_kept(plan, layers).sum() for layers in held)
        # Under a schedule that turns no stage stands for another.
        seen.setdefault((ends, tuple(each), kept, stage if plan.pipeline.turns else 0), stage)
    assert unlike_stages(MODEL, plan) == tuple(seen.values())


@pytest.mark.parametrize("plan", CHUNKED)
def test_activations_of_a_chunk_are_those_of_its_layers(plan):
    for stage in range(plan.pp):
        for chunk, layers in enumerate(chunk_layers(MODEL, plan, stage)):
            kinds = [MODEL.kinds[kind] for kind in layer_kinds(MODEL, layers)]
            whole = ParallelPlan(pp=plan.pp, dp=plan.dp, global_batch=plan.global_batch)
            hows = [whole if kept else plan for kept in is_kept(plan, layers)]
            each = [
                layer_activations(MODEL.of_kind(kind), how, moe=kind.experts)
                for kind, how in zip(kinds, hows, strict=True)
            ]
            last = plan.pipeline.number(plan.pp, stage, chunk) == plan.pp * plan.vpp - 1
            norm = 4 * plan.microbatch * plan.seq * MODEL.hidden // plan.sp * last
            assert chunk_activations(MODEL, plan, stage, chunk, Stack()) == sum(each) + norm
