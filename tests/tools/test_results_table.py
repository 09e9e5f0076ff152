"""The table of results as its tool writes it."""

from pathlib import Path

from experiments.validation.reading.rows import tables
from tests.support.refusals import refused
from tools.results_table import rewrite

PAGE = """Some text.

| table | rows predicted | median | p90 | bias | constant: median | p90 |
|---|---|---|---|---|---|---|
| `first` (A100; nothing fitted) | 1 of 2 | 9.9 | 9.9 | +9.9 | 9.9 | 9.9 |
| `second` (Trn2) | 3 of 3 | 1.0 | 2.0 | 0.0 | | |

| `memory` (H100) | reserved | 537 | 16.0 |
"""
SUMMARY = {"rows": 1_200, "ok": 1_100, "median_abs_error": 0.04, "p90_abs_error": 0.5, "bias": -0.1}
CONSTANT = {"median_abs_error": 0.3, "p90_abs_error": 2.5}


def test_numbers_of_a_row_are_rewritten_and_its_description_is_kept():
    text = rewrite(PAGE, {"first": {"summary": SUMMARY, "constant_predictor": CONSTANT}})
    new = "| `first` (A100; nothing fitted) | 1,100 of 1,200 | 4.0 | 50.0 | −10.0 | 30.0 | 250 |"
    assert text.split("\n")[4] == new
    assert text.replace(new, PAGE.split("\n")[4]) == PAGE


def test_rows_with_other_columns_are_left_alone_and_missing_ones_are_refused():
    assert rewrite(PAGE, {"memory": {"summary": SUMMARY}}) == PAGE
    refused("no row for the table third; add one", rewrite, PAGE, {"third": {"summary": SUMMARY}})


def test_the_page_has_a_row_for_every_shipped_table():
    page = Path(__file__).parents[2] / "docs" / "background" / "validation.md"
    text = page.read_text(encoding="utf-8")
    assert [name for name in tables() if f"| `{name}`" not in text] == []
