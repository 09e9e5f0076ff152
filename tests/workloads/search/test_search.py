"""The search of plans: its results, what it aims at, and its processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from cluster_sim.processes import WorkerEndedError
from tests.support.forks import forks
from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.economics import Economics, step_cost
from workloads.models.huggingface import named
from workloads.models.model import Model
from workloads.search.candidates import candidates
from workloads.search.search import PROCESSES, Finalist, Runner, Search, bundles, search
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
        pytest.param(TOY, "trn1.32xlarge:2", 32, marks=pytest.mark.slow),
        pytest.param(SPARSE, "dgx-h100:2", 16, marks=pytest.mark.slow),
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


@pytest.mark.parametrize("objective", ["energy", "cost"])
def test_plans_are_ranked_by_the_objective(objective: Any) -> None:
    stated = {**SHORT, "order": "tp-cp-dp-pp", "pp": 2}
    result = search(TOY, sixteen(), 64, stated=stated, finalists=6, objective=objective)
    assert result.objective == objective
    costs = [one.cost for one in result.finalists]
    amounts = [one.energy_joules if objective == "energy" else one.cost_usd for one in costs]
    assert all(amount is not None for amount in amounts)
    assert amounts == sorted(amounts, key=lambda amount: amount or 0.0)
    best = result.finalists[0]
    assert best.cost.cost_usd == pytest.approx(best.iteration_s * 35.76 / 3600)
    assert best.cost.usd_per_million_tokens == pytest.approx(
        best.cost.cost_usd * 1e6 / best.plan.tokens
    )
    assert "stated" in best.cost.price_basis


def test_a_waiting_chip_draws_less_than_one_that_computes() -> None:
    busy, waits = (step_cost(sixteen(), 16, 10**6, {part: 1.0}) for part in ("compute", "bubble"))
    each = Economics.of(sixteen())
    assert busy.energy_joules == pytest.approx(16 * each.pue * each.busy_w)
    assert waits.energy_joules == pytest.approx(16 * each.pue * each.idle_w)
    assert waits.energy_joules is not None
    assert busy.energy_joules is not None
    assert waits.energy_joules < busy.energy_joules


def test_a_margin_leaves_memory_free() -> None:
    whole, spared = (
        search(TOY, sixteen(), 64, stated={**SHORT, "pp": 2}, finalists=2, memory_margin=margin)
        for margin in (0.0, 0.9)
    )
    capacity = whole.finalists[0].memory.capacity
    assert max(spared.total_bytes.tolist()) <= 0.1 * capacity + 1
    assert len(spared.plans) <= len(whole.plans)


def test_the_number_of_processes_changes_nothing() -> None:
    one, two = (
        search(TOY, sixteen(), 64, stated={**SHORT, "pp": 1}, finalists=4, processes=count)
        for count in (1, 2)
    )
    assert one.finalists == two.finalists


def test_plans_of_the_same_degrees_go_to_one_process() -> None:
    changes: list[dict[str, Any]] = [
        {"tp": 2, "dp": 8},
        {"tp": 4, "pp": 2, "dp": 2},
        {"tp": 4, "pp": 2, "dp": 2, "order": ("tp", "cp", "pp", "dp")},
        {"tp": 2, "dp": 8, "zero": 2},
        {"tp": 4, "pp": 2, "dp": 2, "schedule": "zero-bubble"},
    ]
    bundled = bundles([(plan(**change), place, 1.0) for place, change in enumerate(changes)])
    assert [[place for _, place, _ in bundle] for bundle in bundled] == [[1, 2, 4], [0, 3]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "enrgy"}, r"objective 'enrgy' is none of time, cost, energy.*energy"),
        ({"memory_margin": 1.0}, r"memory margin 1 is outside 0 to 0.9"),
        ({"finalists": 0}, r"finalists is 0; at least one plan must be simulated"),
    ],
)
def test_a_wrong_aim_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        search(TOY, sixteen(), 64, stated=SHORT, **changes)  # type: ignore[arg-type]


SEARCH = import_module("workloads.search.search")  # the package has a function of this name
ONE_STAGE = {"seq": 256, "pp": 1}
__all__ = ["forks"]


@pytest.mark.usefixtures("forks")
def test_large_clusters_take_two_processes_where_there_are_two_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = Runner(TOY, cluster("trn2-ultraserver:16"), "fast")
    small = Runner(TOY, sixteen(), "fast")
    for processors, processes in ((8, PROCESSES), (1, 1)):
        monkeypatch.setattr(SEARCH, "available_workers", lambda number=processors: number)
        assert large.processes(10, 0) == processes
        assert large.processes(1, 0) == small.processes(10, 0) == 1
        assert small.processes(10, 4) == 4


def test_where_no_process_can_be_forked_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SEARCH, "can_fork", lambda: False)
    assert Runner(TOY, sixteen(), "fast").processes(10, 4) == 1


@pytest.mark.usefixtures("forks")
def test_a_progress_bar_with_a_thread_leaves_the_processes() -> None:
    workers = []

    def watch(items: Sequence[Any], task: str) -> Iterator[Any]:
        over = threading.Event()
        bar = threading.Thread(target=over.wait)  # as a bar in a terminal is drawn
        bar.start()
        try:
            for item in items:
                if task == "simulated":
                    workers.append(len(multiprocessing.active_children()))
                yield item
        finally:
            over.set()
            bar.join()

    search(TOY, sixteen(), 64, stated=ONE_STAGE, finalists=4, processes=2, watch=watch)
    assert workers == [2, 2, 2, 2]


@pytest.mark.usefixtures("forks")
def test_a_killed_process_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    finalist = Runner.finalist

    def killed(*task: Any) -> Finalist:
        if multiprocessing.parent_process() is not None:  # else this would end the tests
            os.kill(os.getpid(), signal.SIGKILL)
        return finalist(*task)

    monkeypatch.setattr(Runner, "finalist", killed)
    with pytest.raises(WorkerEndedError, match="ended from outside"):
        search(TOY, sixteen(), 64, stated=ONE_STAGE, finalists=4, processes=2)
