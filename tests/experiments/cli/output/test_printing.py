"""Tables are as wide as the terminal, words stay whole, and no impossible result is printed."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest

import experiments
import experiments.cli
from experiments.cli.output.printing import interval_frame, print_paragraphs, print_table
from experiments.reports.formatting import Column
from experiments.reports.result_checks import check_results
from topologies.errors import InputError

HEADS = ["name", "algorithm bandwidth", "lower bound", "semantics", "what it rests on", "status"]
ROWS = [
    ["all-reduce", "183.2 GB/s", "11.6 ms", "proven", "links and memory of every chip", "ok"],
    ["all-to-all-of-everything", "1.2 GB/s", "9.9 us", "not-checked", "links", "unsupported"],
]


def printed(monkeypatch, capsys, width, *table):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(*table)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_is_no_wider_than_the_terminal_and_breaks_no_word(width, monkeypatch, capsys):
    lines = printed(monkeypatch, capsys, width, "A table", HEADS, ROWS)
    assert max(len(line) for line in lines) <= width
    words = {word for line in lines for word in line.split()}
    assert words >= {word for row in [HEADS, *ROWS] for cell in row for word in cell.split()}


@pytest.mark.parametrize(("width", "heads", "row", "lines"), [
    # Names stand at the foot of the heading, and cells at the top of a row.
    (20, ["name", "what it is", "time"], ["a ring", "of every chip", "1 s"],
     ["        what", "name    it is   time", "a ring  of       1 s", "        every",
      "        chip"]),
    # Columns that do not fit follow under the first.
    (20, ["row", "first", "second"], ["a", "12345678", "87654321"],
     ["row     first", "a    12345678", "row    second", "a    87654321"]),
    # A word that is longer than the terminal is cut, a number stays beside its unit.
    (10, ["source"], ["x" * 8 + "y" * 8], ["source", "xxxxxxxxyy", "yyyyyy"]),
    (30, ["size", "what the number means"], ["1.5 GB/s", "a rate of every link"],
     ["          what the number", "size      means", "1.5 GB/s  a rate of every link"]),
])  # fmt: skip
def test_words_of_a_table_stand_in_their_places(width, heads, row, lines, monkeypatch, capsys):
    assert printed(monkeypatch, capsys, width, "", heads, [row]) == lines


def test_a_paragraph_stands_indented_below_its_heading(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    print_paragraphs("Numbers", [("trn2.peak 667 TFLOP/s", "[ND] dense, and sparse no more")])
    text = "Numbers\ntrn2.peak 667\nTFLOP/s\n    [ND] dense, and\n    sparse no more\n"
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(("document", "message"), [
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
    ({"iteration_s": 2.0, "breakdown_s": {"compute": 1.0, "bubble": 0.5}},
     "breakdown_s sums to 1.5 and must sum to iteration_s of 2"),
])  # fmt: skip
def test_impossible_results_are_refused(document, message):
    with pytest.raises(InputError, match=message):
        check_results(document)


def test_possible_results_pass():
    check_results({"mfu": 0.5, "hfu": None, "error": -3.0, "rows": [{"p99": math.nan}], "n": 7})
    check_results({"errors": {"ttft_s": -0.4}, "margin_usd": -5.0, "disturbance_change_s": -1e-3})
    check_results({"time_s": 1.0, "lower_bound_s": 1.0, "low": 0.9, "high": 1.1})
    check_results({"iteration_s": 0.3, "breakdown_s": {"compute": 0.1, "bubble": 0.2}})


def test_every_command_answers_through_the_check():
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


def test_intervals_go_by_the_names_of_their_columns():
    ends = {"low": 1.0, "high": 3.0}
    document = {
        "cost": 2.0,
        "hours": 2.5,
        "interval": {"basis": "runs", "cost": ends, "hours": ends},
    }
    frame = interval_frame(document, Column("cost", "  money"))
    assert frame.to_numpy().tolist() == [["money", 1.0, 2.0, 3.0], ["hours", 1.0, 2.5, 3.0]]
