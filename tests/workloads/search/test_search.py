"""The search as a whole: the best of all plans, progress and overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.toy_training import SPARSE, TOY, sixteen
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.huggingface import named
from workloads.models.model import Model
from workloads.search.candidates import candidates
from workloads.search.search import Runner, Search, search
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan

SHORT = {"seq": 1024}


def test_the_search_finds_the_best_of_all_plans() -> None:
    stated = {"seq": 1024, "recompute": "selective", "order": "tp-cp-dp-pp"}
    stated |= {"microbatch": 1, "zero": 1}
    every = candidates(TOY, sixteen(), 16, stated=stated).plans
    simulated = {one: iteration(TOY, sixteen(), one).iteration_s for one in every}
    result = search(TOY, sixteen(), 16, stated=stated, finalists=4)
    best = result.finalists[0]
    assert best.iteration_s == min(simulated.values())
    assert simulated[best.plan] == best.iteration_s
    assert len(result.plans) + result.oversized + sum(result.pruned.values()) == result.candidates
    times = [one.iteration_s for one in result.finalists]
    assert times == sorted(times)
    assert result.next_estimate_s is not None
    assert result.next_estimate_s >= max(one.estimate_s for one in result.finalists)
    for one in result.finalists:
        assert sum(one.breakdown_s.values()) == pytest.approx(one.iteration_s, rel=1e-9)
        assert one.memory.total <= one.memory.capacity
        assert one.estimate_s == pytest.approx((1 + one.estimate_error) * one.iteration_s)


def _rivals(result: Search) -> list[ParallelPlan]:
    """The twenty plans of the shortest estimates, and each fortieth of all."""
    order = np.argsort(result.estimate_s)
    return [result.plans[place] for place in {*order[:20].tolist(), *order[::40].tolist()}]


@pytest.mark.parametrize("all_plans", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("model", "machine", "batch"),
    [
        pytest.param(TOY, "trn2.48xlarge:3", 48, marks=pytest.mark.slow),
        (TOY, "trn1.32xlarge:2", 32),
        (SPARSE, "dgx-h100:2", 16),
        (TOY, "gb200-nvl72", 24),
    ],
)
def test_finalists_have_the_fastest_of_all_plans_that_fit(
    model: Model, machine: str, batch: int, all_plans: bool
) -> None:
    where = cluster(machine)
    stated = SHORT if all_plans else {**SHORT, "order": "tp-cp-dp-pp"}
    result = search(model, where, batch, stated=stated, finalists=10)
    runner = Runner(model, where, "fast")
    rivals = result.plans if all_plans else _rivals(result)
    every = [runner.step(one).iteration_s for one in rivals]
    assert len(every) >= 20
    assert result.finalists[0].iteration_s == min(every)
    assert result.agreement.worst_abs_error < 0.05


def test_only_what_there_is_is_simulated_and_progress_is_told() -> None:
    seen: list[str] = []

    def watch(items: Any, what: str) -> Any:
        for item in items:
            seen.append(what)
            yield item

    stated = {**SHORT, "tp": 16, "recompute": "full"}
    result = search(TOY, sixteen(), 8, stated=stated, finalists=50, watch=watch)
    assert [seen.count(what) for what in ("weighed", "estimated", "simulated")] == [4, 4, 4]
    assert len(result.plans) == len(result.finalists) == 4
    assert result.next_estimate_s is None
    with pytest.raises(InputError, match="finalists is 0"):
        search(TOY, sixteen(), 8, finalists=0)


def test_overlap_is_compared_when_asked_and_told_otherwise() -> None:
    machine, stated = cluster("trn2.48xlarge"), {"tp": 8, "pp": 1, "recompute": "selective"}
    plain = search(named("qwen3-8b"), machine, 32, stated=stated, finalists=1)
    best = plain.finalists[0]
    assert best.plan.overlap == "dp"
    alone = iteration(named("qwen3-8b"), machine, replace(best.plan, overlap="all"))
    assert plain.overlapped_s == alone.iteration_s
    every = search(named("qwen3-8b"), machine, 32, stated=stated, each=["overlap"])
    assert {one.plan.overlap for one in every.finalists} == {"none", "dp", "all"}
    assert every.candidates == 3 * plain.candidates
    assert every.overlapped_s is None
    times = {one.plan.overlap: one.iteration_s for one in every.finalists}
    assert times["dp"] == best.iteration_s
    assert times["all"] <= times["dp"] < times["none"]


def test_a_stated_overlap_is_kept() -> None:
    stated = {"overlap": "none", "tp": 2, "pp": 1}
    result = search(named("llama-3.1-8b"), cluster("trn2.48xlarge"), 32, stated=stated, finalists=2)
    assert [each.plan.overlap for each in result.finalists] == ["none", "none"]
