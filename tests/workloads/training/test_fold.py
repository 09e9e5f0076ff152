"""Equal ranks are those that a plain refinement, rank by rank, finds equal."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cluster_sim.schedule.table import JOIN
from cluster_sim.trace.trace import run
from tests.support.toy_training import SPARSE, TOY, plan, sixteen, toy_program
from topologies.arrays import MULTIPLIER, distinct_rows
from topologies.clusters.names import cluster
from workloads.training.execution.lower import lower
from workloads.training.program import fold as fold_module
from workloads.training.program.breakdown import breakdown
from workloads.training.program.fold import _refined, equal_ranks, fold
from workloads.training.program.program import Exchange, Program

PLANS: tuple[dict[str, Any], ...] = (
    {"tp": 4, "pp": 2, "dp": 2, "overlap": "dp"},
    {"tp": 2, "pp": 4, "dp": 2, "zero": 1},
    {"tp": 2, "cp": 2, "dp": 4},
    {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "etp": 1},
)


def numbered(kinds: list[Hashable]) -> list[int]:
    """Kinds by order of first appearance."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(kind, len(seen)) for kind in kinds]


def told_plainly(program: Program) -> list[int]:
    """Refine stages by what each rank takes part in until nothing is split any more."""
    classes = numbered(program.stage.tolist())
    while True:
        parts: list[list[Hashable]] = [[one] for one in classes]
        for number, exchange in enumerate(program.exchanges):
            for group in range(len(exchange.members)):
                _tell(parts, classes, number, exchange, group)
        finer = numbered([tuple(one) for one in parts])
        if max(finer) == max(classes):
            return classes
        classes = finer


def _tell(
    parts: list[list[Hashable]], classes: list[int], number: int, exchange: Exchange, group: int
) -> None:
    members, roles = exchange.members[group].tolist(), exchange.role.tolist()
    kind = exchange.kind[group]
    cost = (exchange.duration_ps[kind].tobytes(), exchange.draws.size_bytes[kind].tobytes())
    met = frozenset((role, classes[member]) for role, member in zip(roles, members, strict=True))
    for role, member in zip(roles, members, strict=True):
        parts[member].append((number, role, cost, met))


@pytest.mark.parametrize("stated", PLANS, ids=str)
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_equal_ranks(stated: dict[str, Any], shuffled: bool) -> None:
    model = SPARSE if "ep" in stated else TOY
    for seed in range(3):
        chips = np.random.default_rng(seed).permutation(16) if shuffled else None
        program = toy_program(plan(**stated), sixteen(), model, chips=chips)
        classes = equal_ranks(program)
        assert classes.tolist() == told_plainly(program)
        folded = fold(program)
        assert folded.rank.tolist() == np.unique(classes, return_index=True)[1].tolist()
        assert folded.count.tolist() == np.bincount(classes).tolist()


@pytest.mark.parametrize("stated", PLANS, ids=str)
def test_a_rank_kept_apart_is_folded_again(stated: dict[str, Any]) -> None:
    program = toy_program(plan(**stated), sixteen(), SPARSE if "ep" in stated else TOY)
    once, again = fold(program), fold(fold(program, apart=np.array([3])))
    assert again.count.tolist() == once.count.tolist()
    assert again.stage.tolist() == once.stage.tolist()


def test_pipelines_that_cross_switches_anywhere_take_few_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = cluster("trn2.48xlarge:64")
    order = np.random.default_rng(0).permutation(63)
    chips = np.add.outer(16 * order, np.arange(16)).ravel()
    stated = plan(tp=16, pp=7, dp=9, order=("tp", "cp", "pp", "dp"))
    program = toy_program(stated, servers, chips=chips)
    rows: list[int] = []
    monkeypatch.setattr(
        fold_module,
        "_refined",
        lambda classes, *more: rows.append(len(classes)) or _refined(classes, *more),
    )
    classes = equal_ranks(program)
    assert classes.tolist() == told_plainly(program)
    assert 14 <= classes.max() + 1 < len(program)
    assert len(rows) <= 5 * len(program.exchanges)


@pytest.mark.parametrize("stated", PLANS, ids=str)
def test_a_group_of_one_row_needs_no_joins(stated: dict[str, Any]) -> None:
    """Groups of which the one row is named twice have joins, and the same times."""
    folded = fold(toy_program(plan(**stated), sixteen(), SPARSE if "ep" in stated else TOY))
    twice = replace(folded, exchanges=tuple(_named_twice(each) for each in folded.exchanges))
    few, more = run(lower(folded)), run(lower(twice))
    ops = len(few.schedule.kind[few.schedule.kind != JOIN])
    assert ops == len(more.schedule.kind[more.schedule.kind != JOIN])
    assert len(few) < len(more)
    for name in ("ready_ps", "start_ps", "end_ps"):
        times = getattr(few.times, name)[:ops], getattr(more.times, name)[:ops]
        np.testing.assert_array_equal(*times)
    assert breakdown(few).mean_s() == breakdown(more).mean_s()


def _named_twice(exchange: Exchange) -> Exchange:
    if exchange.members.shape[1] > 1:
        return exchange
    twice = [0, 0]
    return replace(exchange, members=exchange.members[:, twice], role=exchange.role[twice])


def test_distinct_rows() -> None:
    rows = np.random.default_rng(0).integers(0, 3, (50, 2))
    for sample in (rows, rows[:1], np.tile(rows[:1], (5, 1)), rows[:0]):
        first, which = distinct_rows(sample)
        np.testing.assert_array_equal(sample[first][which], sample)
        assert sample[first].tolist() == [
            list(row) for row in dict.fromkeys(map(tuple, sample.tolist()))
        ]


def test_rows_with_equal_polynomials_are_told_apart() -> None:
    rows = np.array([[MULTIPLIER, 0], [0, 1], [MULTIPLIER, 0], [0, 3]])
    first, which = distinct_rows(rows)
    assert first.tolist() == [0, 1, 3]
    assert which.tolist() == [0, 1, 0, 2]
