"""Fits with a framework left out: closed forms, and a constant that one framework alone has."""

import numpy as np
import pytest

from experiments.validation.reading.rows import table
from tools import carry_over as module
from tools.carry_over import FACTORS, HEADER, best_factor, dependent_logs, spread_rows, without_each
from workloads.training.frameworks.framework import names


def _falling(rows: int, right_at: float) -> np.ndarray:
    """Rows whose time falls as a constant rises, and which are right at a multiple of it."""
    return np.tile(np.log(right_at) - np.log(FACTORS), (rows, 1))


def test_the_best_multiple_is_where_the_rows_are_right():
    for right in (0.8, 1.0, 1.25):
        assert best_factor([_falling(4, right)]) == pytest.approx(right, rel=0.005)


def test_a_framework_is_predicted_by_what_suits_the_others():
    logs = {"first": _falling(3, 1.0), "second": _falling(3, 1.0), "third": _falling(3, 1.2)}
    of = {result.framework: result for result in without_each(logs)}
    assert of["third"].factor == pytest.approx(1.0, rel=0.005)
    assert of["third"].best == pytest.approx(1.2, rel=0.005)
    assert of["third"].shipped_error == pytest.approx(np.log(1.2))
    assert of["third"].best_error < 0.005 < of["third"].error
    assert without_each({"first": logs["first"]}) == []


def test_every_row_of_the_tables_has_a_framework():
    rows = [row for name in module.TABLES for row in table(name).rows().rows]
    assert {str(row.values["framework"]).partition(":")[0] for row in rows} <= set(names())
    assert len({framework for framework, _ in spread_rows()}) >= 6
    assert len(list(spread_rows(["vtrain_single"]))) <= 2 * module.MOST_ROWS


def test_products_of_an_h100_say_nothing_of_a_b200():
    rows = list(spread_rows(["torchtitan"]))[::4]
    assert dependent_logs("kernels.b200", "gemm_sustained", rows) == {}
    logs = dependent_logs("kernels.h100", "gemm_sustained", rows)
    assert set(logs) == {"torchtitan"}
    assert (np.diff(logs["torchtitan"], axis=1) < 0).all()


def test_the_command_prints_a_table(monkeypatch):
    monkeypatch.setattr(module, "CONSTANTS", (("kernels.h100", "gemm_sustained"),))
    monkeypatch.setattr(module, "spread_rows", lambda: [])
    logs = {"one": _falling(3, 1.0), "other": _falling(3, 1.1)}
    monkeypatch.setattr(module, "dependent_logs", lambda *_: logs)
    lines: list[str] = []
    module.main(lines.append)
    assert lines[0] == HEADER
    assert len(lines) == 4
    assert all(line.count("|") == HEADER.count("|") for line in lines)
    assert lines[2].startswith("| `kernels.h100.gemm_sustained` | one | 3 | × 1.1")
