"""Impossible results are refused before they are printed, for every command."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest

import experiments.cli
from experiments.reports.result_checks import check_results
from topologies.errors import InputError


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"mfu": 221.7}, "mfu is 221.7 and must lie between 0 and 1"),
        ({"rows": [{"hfu": -0.37}]}, "hfu is -0.37"),
        ({"rows": ({"mfu": math.nan},)}, "mfu is nan"),
        ({"slo_attainment": 1.5}, "slo_attainment is 1.5"),
        ({"iteration_s": -1.0}, "iteration_s is -1 and must not be below 0"),
        ({"iteration_s": math.nan}, "iteration_s is nan and must be a finite number"),
        ({"ttft_s": {"p50": math.inf}}, "ttft_s is inf"),
        ({"memory_bytes": {"total": np.int64(-3)}}, "memory_bytes is -3"),
        ({"rows": [{"energy_joules": np.array([1.0, -2.0])}]}, "energy_joules is -2"),
        ({"time_s": 1.0, "lower_bound_s": 1.1}, "time_s is 1 and must not be below lower_bound_s"),
        ({"interval": {"low": 2.0, "high": 1.0}}, "low is 2 and must not be above high"),
        (
            {"iteration_s": 2.0, "breakdown_s": {"compute": 1.0, "bubble": 0.5}},
            "breakdown_s sums to 1.5 and must sum to iteration_s of 2",
        ),
    ],
)
def test_impossible_results_are_refused(document: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_results(document)


def test_possible_results_pass() -> None:
    check_results({"mfu": 0.5, "hfu": None, "error": -3.0, "rows": [{"p99": math.nan}], "n": 7})
    check_results({"errors": {"ttft_s": -0.4}, "margin_usd": -5.0, "disturbance_change_s": -1e-3})
    check_results({"time_s": 1.0, "lower_bound_s": 1.0, "low": 0.9, "high": 1.1})
    check_results({"iteration_s": 0.3, "breakdown_s": {"compute": 0.1, "bubble": 0.2}})


def test_every_command_answers_through_the_check() -> None:
    """A module of a command prints its document by ``call.answer``, or checks it itself."""
    folder = Path(experiments.cli.__file__).parent
    modules = sorted(folder.rglob("*.py"))
    names = {
        str(path.relative_to(folder)): {
            node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
        }
        for path in modules
    }
    printing = {path for path in names if "print_json" in names[path]}
    assert printing == {"commands/sweep.py", "options/inputs.py"}
    for path in printing:
        assert "check_results" in names[path], path
