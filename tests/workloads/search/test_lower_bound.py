"""Plans that a lower bound leaves out: none of them is among the best, and none is estimated."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pipeline_lines import line
from tests.support.toy_training import SPARSE, TOY, sixteen
from workloads.models.model import Model
from workloads.search.candidates import candidates
from workloads.search.estimate import _Shared, best_estimates, estimate
from workloads.search.pipeline_model import ROUNDING, Line, least_s, walk_s
from workloads.search.search import search
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import all_schedules

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
    plans = plans_of(model)[:: 8 if model is TOY else 100]
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


@pytest.mark.parametrize("count", [1, 40])
def test_the_best_are_found_without_most_estimates(count: int, walks: list[Line]) -> None:
    plans = plans_of(TOY)[::4]
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


def test_all_are_estimated_where_all_are_needed(walks: list[Line]) -> None:
    plans = plans_of(TOY)[:30]
    every = estimate(TOY, sixteen(), plans)
    walks.clear()
    assert (best_estimates(TOY, sixteen(), plans, len(plans)) == every).all()
    assert len(walks) == len(plans)


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
