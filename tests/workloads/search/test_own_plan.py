"""A user's own plan beside those of a search: its place, and the change that helps it most."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cluster_sim as cs
from tests.support.toy_training import TOY, sixteen
from topologies.errors import InputError
from workloads.search.search import Search, own_plan, search, single_changes
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan


@pytest.fixture(scope="module")
def searched() -> Search:
    """A search whose finalists are all plans that fit."""
    return search(TOY, sixteen(), 16, stated={"seq": 1024, "pp": 1}, finalists=10_000)


def test_each_plan_of_a_search_has_its_own_place(searched: Search) -> None:
    times = [one.iteration_s for one in searched.finalists]
    for one in (searched.finalists[0], searched.finalists[len(times) // 2], searched.finalists[-1]):
        mine = own_plan(searched, one.plan)
        assert mine.rank == 1 + sum(seconds < one.iteration_s for seconds in times)
        assert mine.finalist.iteration_s == one.iteration_s


def test_a_plan_slower_than_the_finalists_has_the_place_of_its_estimate() -> None:
    few = search(TOY, sixteen(), 16, stated={"seq": 1024, "pp": 1}, finalists=2)
    slowest = few.plans[int(few.estimate_s.argmax())]
    faster = int((few.estimate_s < few.estimate_s.max()).sum())
    assert own_plan(few, slowest).rank == 1 + faster > 3


def test_no_single_change_gains_more_than_the_one_that_is_named(searched: Search) -> None:
    slow = searched.finalists[-1].plan
    mine = own_plan(searched, slow)
    assert mine.changed is not None
    assert mine.changed.plan == replace(slow, **mine.change)
    assert mine.changed.iteration_s < mine.finalist.iteration_s
    one_apart = [
        each.iteration_s
        for each in searched.finalists
        if each.plan in {replace(slow, **change) for change in _possible(slow, searched)}
    ]
    assert mine.changed.iteration_s <= min(one_apart) * 1.01  # chosen by its estimate


def _possible(plan: ParallelPlan, searched: Search) -> list[dict[str, object]]:
    possible = []
    for change in single_changes(plan, searched.plans):
        try:
            replace(plan, **change)
        except InputError:
            continue
        possible.append(change)
    return possible


def test_the_best_plan_has_no_change_that_gains(searched: Search) -> None:
    mine = own_plan(searched, searched.finalists[0].plan)
    assert (mine.rank, mine.change, mine.changed) == (1, {}, None)


def test_python_ranks_a_plan_and_refuses_one_that_does_not_fit() -> None:
    plan = cs.Plan(tp=8, dp=8, global_batch=64)
    beside = cs.search_plans(
        "llama-3.1-70b", "trn2-ultraserver", 64, tp=8, finalists=2, beside=plan, quiet=True
    )
    assert beside.own_plan is not None
    alone = iteration(beside.model, cs.cluster("trn2-ultraserver"), plan)
    assert beside.own_plan.finalist.iteration_s == alone.iteration_s
    with pytest.raises(InputError, match="the plan needs"):
        own_plan(beside, replace(plan, tp=1, dp=64))


def test_replicas_make_up_for_a_changed_degree() -> None:
    plan = ParallelPlan(tp=2, pp=2, dp=4, global_batch=16)
    tried = [replace(plan, tp=tp, dp=dp) for tp, dp in ((1, 8), (4, 2), (3, 1))]
    tried += [replace(plan, pp=pp, dp=dp) for pp, dp in ((1, 8), (8, 1))]
    assert list(single_changes(plan, tried)) == [
        {"tp": 1, "dp": 8},
        {"tp": 4, "dp": 2},
        {"pp": 1, "dp": 8, "vpp": 1, "schedule": "1f1b"},
        {"pp": 8, "dp": 1},
    ]
