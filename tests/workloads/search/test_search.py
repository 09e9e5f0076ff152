"""The search of plans: its results, what it aims at, and its processes."""

import multiprocessing
import os
import signal
import threading
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from cluster_sim.processes import WorkerEndedError
from tests.support.forks import forks
from tests.support.refusals import refused
from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from topologies.clusters.names import cluster
from workloads.economics import Economics, step_cost
from workloads.models.huggingface import named
from workloads.search.candidates import candidates
from workloads.search.search import PROCESSES, Runner, _roomy, bundles, search
from workloads.training.iteration import iteration
from workloads.training.memory.memory import Memory

SHORT = {"seq": 1024}


def test_the_search_finds_the_best_of_all_plans():
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
    assert result.next_estimate_s >= max(one.estimate_s for one in result.finalists)
    for one in result.finalists:
        assert sum(one.breakdown_s.values()) == pytest.approx(one.iteration_s, rel=1e-9)
        assert one.memory.total <= one.memory.capacity
        assert one.estimate_s == pytest.approx((1 + one.estimate_error) * one.iteration_s)


class _Finished:
    """Stand-in for a finalist: its time, and the share of a rank's memory that it fills."""

    def __init__(self, seconds, share):
        self.seconds, self.memory = seconds, Memory(int(1000 * share), *(0,) * 6, capacity=1000)

    def worth(self, objective):
        return self.seconds


@pytest.mark.parametrize(("shares", "first"), [
    ((0.9, 0.9, 0.9), 0), ((0.97, 0.9, 0.5), 1), ((0.97, 0.96, 0.5), 0), ((0.99, 0.951, 0.1), 0),
    ((0.951, 0.95, 0.1), 1),
])  # fmt: skip
def test_a_plan_with_free_memory_comes_first_where_it_costs_a_hundredth(shares, first):
    listed = [_Finished(*each) for each in zip((100.0, 100.9, 101.1), shares, strict=True)]
    assert listed.index(_roomy(listed, "time")) == first


def test_a_power_limit_takes_its_watts_from_chips_that_compute():
    """500 W instead of 700 W, by the rounded share, and no less while they wait."""
    where = cluster("dgx-h100")
    numbers = where.numbers.with_variants({"kernels.h100.power_share": "500-watt"})
    parts = {"compute": 3.0, "exposed_dp": 1.0}
    usual, limited = (
        step_cost(each, 8, 10**6, parts).energy_joules
        for each in (where, replace(where, catalogue=numbers))
    )
    saved_w = (1 - 0.714) * 700 * Economics.of(where).pue
    assert usual - limited == pytest.approx(8 * 3.0 * saved_w)


def _rivals(result):
    """The twenty plans of the shortest estimates, and each fortieth of all."""
    order = np.argsort(result.estimate_s)
    return [result.plans[place] for place in {*order[:20].tolist(), *order[::40].tolist()}]


@pytest.mark.parametrize("all_plans", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("model", "machine", "batch"), [
    pytest.param(TOY, "trn2.48xlarge:3", 48, marks=pytest.mark.slow),
    pytest.param(TOY, "trn1.32xlarge:2", 32, marks=pytest.mark.slow),
    pytest.param(SPARSE, "dgx-h100:2", 16, marks=pytest.mark.slow),
    (TOY, "gb200-nvl72", 24),
])  # fmt: skip
def test_finalists_have_the_fastest_of_all_plans_that_fit(model, machine, batch, all_plans):
    where = cluster(machine)
    stated = SHORT if all_plans else {**SHORT, "order": "tp-cp-dp-pp"}
    result = search(model, where, batch, stated=stated, finalists=10)
    runner = Runner(model, where, "fast")
    rivals = result.plans if all_plans else _rivals(result)
    every = [runner.step(one).iteration_s for one in rivals]
    assert len(every) >= 20
    assert result.finalists[0].iteration_s == min(every)
    assert result.agreement.worst_abs_error < 0.05


def test_only_what_there_is_is_simulated_and_progress_is_told():
    seen = []

    def watch(items, what):
        for item in items:
            seen.append(what)
            yield item

    stated = {**SHORT, "tp": 16, "recompute": "full"}
    result = search(TOY, sixteen(), 8, stated=stated, finalists=50, watch=watch)
    assert sorted(seen) == [
        what for what in ("estimated", "simulated", "weighed") for _ in range(4)
    ]
    assert len(result.plans) == len(result.finalists) == 4
    assert result.next_estimate_s is None


def test_overlap_is_compared_when_asked_and_told_otherwise():
    model, stated = named("qwen3-8b"), {"tp": 8, "pp": 1, "recompute": "selective"}
    plain = search(model, sixteen(), 32, stated=stated, finalists=1)
    best = plain.finalists[0]
    assert best.plan.overlap == "dp"
    alone = iteration(model, sixteen(), replace(best.plan, overlap="all"))
    assert plain.overlapped_s == alone.iteration_s
    every = search(model, sixteen(), 32, stated=stated, each=["overlap"])
    assert (every.candidates, every.overlapped_s) == (3 * plain.candidates, None)
    times = {one.plan.overlap: one.iteration_s for one in every.finalists}
    assert times.keys() == {"none", "dp", "all"}
    assert times["dp"] == best.iteration_s
    assert times["all"] <= times["dp"] < times["none"]


@pytest.mark.parametrize("objective", ["energy", "cost"])
def test_plans_are_ranked_by_the_objective(objective):
    stated = {**SHORT, "order": "tp-cp-dp-pp", "pp": 2}
    result = search(TOY, sixteen(), 64, stated=stated, finalists=6, objective=objective)
    assert result.objective == objective
    amount = "energy_joules" if objective == "energy" else "cost_usd"
    amounts = [getattr(one.cost, amount) for one in result.finalists]
    assert amounts == sorted(amounts)
    best, cost = result.finalists[0], result.finalists[0].cost
    assert cost.cost_usd == pytest.approx(best.iteration_s * 35.76 / 3600)
    assert cost.usd_per_million_tokens == pytest.approx(cost.cost_usd * 1e6 / best.plan.tokens)
    assert "stated" in cost.price_basis


def test_a_margin_leaves_memory_free():
    whole, spared = (
        search(TOY, sixteen(), 64, stated={**SHORT, "pp": 2}, finalists=2, memory_margin=margin)
        for margin in (0.0, 0.9)
    )
    capacity = whole.finalists[0].memory.capacity
    assert max(spared.total_bytes.tolist()) <= 0.1 * capacity + 1
    assert len(spared.plans) <= len(whole.plans)


def test_the_number_of_processes_changes_nothing():
    one, two = (
        search(TOY, sixteen(), 64, stated={**SHORT, "pp": 1}, finalists=4, processes=count)
        for count in (1, 2)
    )
    assert one.finalists == two.finalists


def test_plans_of_the_same_degrees_go_to_one_process():
    two, four = plan(tp=2, dp=8), plan(tp=4, pp=2, dp=2)
    others = replace(four, order=("tp", "cp", "pp", "dp")), replace(two, zero=2)
    plans = [two, four, *others, replace(four, schedule="zero-bubble")]
    bundled = bundles([(one, place, 1.0) for place, one in enumerate(plans)])
    assert [[place for _, place, _ in bundle] for bundle in bundled] == [[1, 2, 4], [0, 3]]


@pytest.mark.parametrize(("changes", "message"), [
    ({"objective": "enrgy"}, r"objective 'enrgy' is none of time, cost, energy.*energy"),
    ({"memory_margin": 1.0}, r"memory margin 1 is outside 0 to 0.9"),
    ({"finalists": 0}, r"finalists is 0; at least one plan must be simulated"),
])  # fmt: skip
def test_a_wrong_aim_is_refused(changes, message):
    refused(message, search, TOY, sixteen(), 64, stated=SHORT, **changes)


SEARCH = import_module("workloads.search.search")  # the package has a function of this name
ONE_STAGE = {"seq": 256, "pp": 1}
__all__ = ["forks"]


@pytest.mark.usefixtures("forks")
def test_large_clusters_take_two_processes_where_there_are_two_processors(monkeypatch):
    large, small = (
        Runner(TOY, each, "fast") for each in (cluster("trn2-ultraserver:16"), sixteen())
    )
    for processors, processes in ((8, PROCESSES), (1, 1)):
        monkeypatch.setattr(SEARCH, "available_workers", lambda number=processors: number)
        assert large.processes(10, 0) == processes
        assert large.processes(1, 0) == small.processes(10, 0) == 1
        assert small.processes(10, 4) == 4


def test_where_no_process_can_be_forked_there_is_one(monkeypatch):
    monkeypatch.setattr(SEARCH, "can_fork", lambda: False)
    assert Runner(TOY, sixteen(), "fast").processes(10, 4) == 1


@pytest.mark.usefixtures("forks")
def test_a_progress_bar_with_a_thread_leaves_the_processes():
    workers = []

    def watch(items, task):
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
def test_a_killed_process_is_an_error_of_one_line(monkeypatch):
    finalist = Runner.finalist

    def killed(*task):
        if multiprocessing.parent_process() is not None:  # else this would end the tests
            os.kill(os.getpid(), signal.SIGKILL)
        return finalist(*task)

    monkeypatch.setattr(Runner, "finalist", killed)
    with pytest.raises(WorkerEndedError, match="ended from outside"):
        search(TOY, sixteen(), 64, stated=ONE_STAGE, finalists=4, processes=2)
