"""Searches for the plan of least cost or energy, with memory to spare, in several processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.toy_training import TOY, plan, sixteen
from topologies.errors import InputError
from workloads.economics import Economics, step_cost
from workloads.search.search import Runner, bundles, search
from workloads.training.program import groups

SHORT = {"seq": 1024}


def test_energy_ranks_by_what_the_chips_draw() -> None:
    stated = {**SHORT, "order": "tp-cp-dp-pp"}
    result = search(TOY, sixteen(), 64, stated=stated, finalists=6, objective="energy")
    joules = [one.cost.energy_joules for one in result.finalists]
    assert result.objective == "energy"
    assert all(drawn is not None for drawn in joules)
    assert joules == sorted(joules, key=lambda drawn: drawn or 0.0)


def test_cost_is_the_price_of_the_chips_for_the_time() -> None:
    result = search(TOY, sixteen(), 64, stated=SHORT, finalists=3, objective="cost")
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
        search(TOY, sixteen(), 64, stated=SHORT, finalists=2, memory_margin=margin)
        for margin in (0.0, 0.9)
    )
    capacity = whole.finalists[0].memory.capacity
    assert max(spared.total_bytes.tolist()) <= 0.1 * capacity + 1
    assert len(spared.plans) <= len(whole.plans)


def test_the_number_of_processes_changes_nothing() -> None:
    one, two = (
        search(TOY, sixteen(), 64, stated=SHORT, finalists=4, processes=count) for count in (1, 2)
    )
    assert one.finalists == two.finalists


def test_plans_of_the_same_degrees_go_to_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bundle times its collectives once; together they time no more than one process does."""
    changes: list[dict[str, Any]] = [
        {"tp": 2, "dp": 8},
        {"tp": 4, "pp": 2, "dp": 2},
        {"tp": 4, "pp": 2, "dp": 2, "order": ("tp", "cp", "pp", "dp")},
        {"tp": 2, "dp": 8, "zero": 2},
        {"tp": 4, "pp": 2, "dp": 2, "schedule": "zero-bubble"},
    ]
    tasks = [(plan(**change), place, 1.0) for place, change in enumerate(changes)]
    bundled = bundles(tasks)
    assert [[place for _, place, _ in bundle] for bundle in bundled] == [[1, 2, 4], [0, 3]]
    timed: list[object] = []
    group_ps = groups.group_ps

    def counted(*call: Any) -> int:
        timed.append(call)
        return group_ps(*call)

    monkeypatch.setattr(groups, "group_ps", counted)
    alone = Runner(TOY, sixteen(), "fast")
    results = [alone.finalist(*task) for task in tasks]
    together, timed[:] = len(timed), []
    of_bundles = [
        runner.finalist(*task)
        for bundle in bundled
        for runner in [Runner(TOY, sixteen(), "fast")]
        for task in bundle
    ]
    assert sorted(of_bundles, key=lambda one: one.estimate_rank) == results
    assert together <= len(timed) < 2 * together


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
