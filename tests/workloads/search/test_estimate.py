"""Estimates of plans, and bounds below which no estimate falls."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pipeline_lines import line
from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from topologies.clusters.names import cluster
from workloads.models.model import Model
from workloads.search.candidates import candidates
from workloads.search.estimate import _Shared, best_estimates, estimate
from workloads.search.pipeline_model import ROUNDING, Line, least_s, walk_s
from workloads.search.search import agreement, search
from workloads.training.frameworks.framework import framework
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import all_schedules

PLANS: list[dict[str, Any]] = [
    {"dp": 16},
    {"tp": 8, "dp": 2, "sequence_parallel": False},
    {"tp": 4, "pp": 2, "dp": 2},
    {"tp": 2, "pp": 4, "dp": 2, "order": ("tp", "cp", "pp", "dp")},
    {"pp": 8, "dp": 2, "zero": 0},
    {"tp": 16, "recompute": "full"},
    {"tp": 2, "pp": 2, "dp": 4, "schedule": "gpipe", "microbatch": 2},
    {"tp": 2, "pp": 4, "dp": 2, "vpp": 2, "schedule": "interleaved"},
    {"tp": 2, "pp": 4, "dp": 2, "schedule": "zero-bubble"},
    {"pp": 4, "dp": 4, "stage_layers": (3, 2, 2, 1)},
    {"tp": 2, "dp": 8, "zero": 2},
    {"tp": 2, "dp": 8, "zero": 3},
    {"pp": 4, "dp": 4, "zero": 2},
    {"pp": 4, "dp": 4, "zero": 3},
    {"pp": 4, "dp": 4, "zero": 3, "reshard": False},
    {"tp": 2, "pp": 2, "dp": 4, "vpp": 2, "schedule": "interleaved", "zero": 3},
    {"pp": 4, "dp": 4, "schedule": "zero-bubble", "zero": 3},
    {"tp": 2, "cp": 4, "dp": 2},
]


@pytest.mark.parametrize("name", ["fsdp", "megatron-lm:2020-08"])
def test_estimates_follow_the_kernels_of_a_framework(name: str) -> None:
    """Copies of sharded parameters, and sums of gradients that no product does, are in passes."""
    where, plans = cluster("dgx-a100:2"), []
    wide = Model("wide", 8, 4096, 32, 8, 128, 14336, 32_000)
    for changes in PLANS:
        one = plan(**{"overlap": "dp", "framework": name, **changes, "seq": 4096})
        if any(framework(name).lacks(one)):
            continue
        batch = 8 * one.dp * one.microbatch
        plans.append(replace(one, global_batch=batch, sequence_parallel=one.sp > 1))
    estimates_s = estimate(wide, where, plans)
    simulated = [iteration(wide, where, one, allow_oversized=True).iteration_s for one in plans]
    assert estimates_s == pytest.approx(simulated, rel=0.05)


def test_plans_of_several_frameworks_are_each_estimated_with_their_own() -> None:
    where = cluster("dgx-a100:2")
    sharded = plan(dp=16, global_batch=64, zero=3)
    alike = [replace(sharded, framework=name) for name in ("fsdp", "megatron-core")]
    together = estimate(TOY, where, [*alike, *alike])
    alone = [estimate(TOY, where, [one])[0] for one in alike]
    assert together.tolist() == [*alone, *alone]
    assert alone[0] > 1.05 * alone[1]


@pytest.mark.parametrize(
    ("machine", "overlap"),
    [("trn2.48xlarge", "dp"), ("trn2.48xlarge", "all"), ("dgx-h100:2", "none")],
)
def test_estimates_are_near_the_simulation_and_in_its_order(machine: str, overlap: str) -> None:
    where, plans = cluster(machine), []
    for changes in PLANS:
        one = plan(**{"overlap": overlap, **changes})
        batch = 8 * one.dp * one.microbatch
        plans.append(replace(one, global_batch=batch, sequence_parallel=one.sp > 1))
    estimates_s = estimate(TOY, where, plans)
    simulated = [iteration(TOY, where, one, allow_oversized=True).iteration_s for one in plans]
    agreed = agreement(list(zip(estimates_s.tolist(), simulated, strict=True)))
    # A host issues kernels of a small model while replicas exchange, the more without overlap.
    issued = machine.startswith("dgx")
    most = 0.2 if issued else 0.09
    assert agreed.worst_abs_error < most
    assert agreed.kendall_tau is not None
    assert agreed.kendall_tau > (0.9 if issued else 0.92)


def test_agreement_of_one_plan_has_no_order() -> None:
    agreed = agreement([(1.1, 1.0)])
    assert agreed.kendall_tau is None
    assert agreed.worst_abs_error == pytest.approx(0.1)
    assert agreement([(1.0, 2.0), (2.0, 1.0)]).kendall_tau == -1.0


estimates = import_module("workloads.search.estimate")  # the package has a function of this name
SCHEDULES = [
    (schedule.name, chunks)
    for schedule in all_schedules()
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
    st.lists(st.floats(0.0, 9.0), min_size=12, max_size=12),
    st.integers(0, 2),
    st.booleans(),
)
def test_no_walk_is_shorter_than_its_bound(
    schedule: tuple[str, int],
    stages: int,
    rounds: int,
    times: list[float],
    exchanges: int,
    beside: bool,
) -> None:
    name, vpp = schedule
    chunks, some = stages * vpp, np.array(times)
    pipeline = line(
        stages,
        rounds * 2 * stages,
        name,
        vpp=vpp,
        layer_s=np.repeat(some[:3, None], 2, axis=1),
        ends_s=some[3:9].reshape(2, 3),
        hop_s=np.full(stages, some[9]),
        gather_s=np.full(chunks, some[10]),
        reduce_s=np.full(chunks, some[11]),
        gathers=exchanges,
        reduces=exchanges,
        sends_beside=beside,
        dp_beside=beside,
    )
    assert bound_of(pipeline) <= walk_s(pipeline)


@pytest.mark.parametrize("microbatches", [4, 16])
def test_the_bound_of_a_pipeline_without_transfers_is_its_time(microbatches: int) -> None:
    """Under 1F1B the last stage waits for the first microbatch, and the first for the last."""
    pipeline = line(4, microbatches)
    bound_s = bound_of(pipeline)
    assert bound_s / (1 - ROUNDING) == walk_s(pipeline) == 3 * (microbatches + 3)


def plans_of(model: Model) -> list[ParallelPlan]:
    """All plans of a model on sixteen chips, with every pipeline schedule."""
    names = ("zero-bubble", "gpipe", "dualpipe")
    stated: list[dict[str, Any]] = [{}, *({"schedule": name} for name in names)]
    return [
        one
        for more in stated
        for one in candidates(model, sixteen(), 32, stated={"seq": 1024, **more}).plans
    ]


@pytest.mark.parametrize("model", [TOY, SPARSE], ids=["dense", "sparse"])
def test_no_estimate_is_shorter_than_its_bound(model: Model) -> None:
    plans = plans_of(model)[:: 16 if model is TOY else 200]
    shared = _Shared(model, sixteen())
    bound_s = np.array([shared.least_s(plan) for plan in plans])
    assert (bound_s <= estimate(model, sixteen(), plans)).all()
    assert {plan.schedule for plan in plans} == {schedule.name for schedule in all_schedules()}


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """Pipelines that the estimates walk through, in order."""
    walked: list[Line] = []

    def counted(pipeline: Line) -> float:
        walked.append(pipeline)
        return walk_s(pipeline)

    monkeypatch.setattr(estimates, "walk_s", counted)
    return walked


@pytest.mark.parametrize("count", [1, 20])
def test_the_best_are_found_without_most_estimates(count: int, walks: list[Line]) -> None:
    plans = plans_of(TOY)[::8]
    every = estimate(TOY, sixteen(), plans)
    assert len(walks) == len(plans)
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


def test_a_search_estimates_the_rest_when_they_are_read(walks: list[Line]) -> None:
    stated: dict[str, Any] = {"seq": 1024, "order": "tp-cp-dp-pp"}
    result = search(TOY, sixteen(), 32, stated=stated, finalists=2)
    assert result.estimated == len(walks) < len(result.plans)
    every = estimate(TOY, sixteen(), result.plans)
    assert (result.estimate_s == every).all()
    best = np.sort(every)
    assert sorted(one.estimate_s for one in result.finalists) == best[:2].tolist()
    assert result.next_estimate_s == best[2]
    compared = search(TOY, sixteen(), 32, stated=stated, finalists=1, each=["tp"])
    assert compared.estimated == len(compared.plans)
