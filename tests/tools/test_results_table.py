"""Pages that tools write: the table of results, the page of errors, and sealed predictions."""

import csv
import hashlib
import re
import shlex
from importlib.resources import files
from pathlib import Path

import pandas as pd
import pytest

from experiments.validation.reading.rows import tables
from tests.support.refusals import refused
from tools.how_true import CHIPS, KINDS, LEFT_OUT, lines, page
from tools.results_table import rewrite
from tools.sealed import HEADER, main, predicted, read, score

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


@pytest.fixture(scope="module")
def residuals() -> pd.DataFrame:
    return pd.read_csv(str(files("workloads.confidence") / "residuals.csv"))


def test_every_measured_kind_is_on_the_page(residuals):
    of_chips = residuals[residuals.chip.isin(CHIPS) & (residuals.kind != LEFT_OUT)]
    table = lines(residuals)
    assert table.rows.sum() == len(of_chips)
    assert {kind for kind, _ in table.index} == set(KINDS)


def test_errors_are_those_of_the_residuals():
    logs = {"log_residual": [0.0, -0.1, 0.2], "table": ["a", "a", "b"]}
    rows = pd.DataFrame({"kind": "kernel.product", "chip": "h100", **logs})
    table = lines(rows)
    (line,) = table.itertuples()
    assert (line.Index, line.rows, line.tables) == (("kernel", "h100"), 3, 2)
    assert line.median == pytest.approx(0.105, abs=1e-3)
    text = page(table, {"h100": {"measured": 4}})
    assert "\n| h100 | 10.5 / 16.6 (-2.5) | – | – | – | – |\n" in text
    assert "\n| h100 | 3 in 2 | – | – | – | – |\n" in text
    assert "\n| h100 | 4 | 0 | 0 | 0 |\n" in text


ROOT = Path(__file__).parents[2]
SEALED_PAGE = (ROOT / "docs" / "sealed.md").read_text(encoding="utf-8")
SEALED = re.findall(r"\[\S+\]\((sealed/\S+\.csv)\).*`([0-9a-f]{64})`", SEALED_PAGE)
QUESTION = "cluster-sim train --model gpt2 --cluster trn2.48xlarge --dp 16 --global-batch 16"


def test_sealed_tables_are_as_their_page_says():
    assert SEALED
    for path, digest in SEALED:
        assert hashlib.sha256((ROOT / "docs" / path).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("path", [path for path, _ in SEALED])
def test_each_sealed_row_has_a_command_and_stands_on_the_page(path):
    for row in read(ROOT / "docs" / path, HEADER):
        assert shlex.split(row["command"])[0] == "cluster-sim"
        assert float(row["low"]) < float(row["predicted"]) < float(row["high"])
        assert f"| {row['name']} |" in SEALED_PAGE


def test_an_answer_is_sealed_once_with_its_interval(tmp_path):
    questions, sealed = tmp_path / "questions.csv", tmp_path / "sealed.csv"
    with questions.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADER[:3], ("a step", QUESTION, "iteration_s")])
    assert main(["seal", str(questions), str(sealed)]) == 0
    [row] = read(sealed, HEADER)
    assert 0 < float(row["low"]) < float(row["predicted"]) < float(row["high"])
    before = sealed.read_bytes()
    assert main(["seal", str(questions), str(sealed)]) == 2
    assert sealed.read_bytes() == before


def test_measurements_are_compared_with_what_was_sealed():
    ends = {"predicted": "2", "low": "1.5", "high": "2.5"}
    rows = [{"name": name, **ends} for name in ("a", "b", "c")]
    measured = [{"name": "b", "value": "2.5"}, {"name": "a", "value": "4"}]
    assert score(rows, measured) == [
        "a: predicted 2, measured 4: -50.0 %, outside",
        "b: predicted 2, measured 2.5: -20.0 %, inside",
        "2 of 3: median error 35.0 %, 1 inside",
    ]


@pytest.mark.parametrize(("question", "message"), [
    ({"name": "x", "command": QUESTION, "key": "mfu"}, "x: key 'mfu' is none of iteration_s"),
    ({"name": "x", "command": "cluster-sim train --tp many", "key": "iteration_s"},
     "x: its command ended with status 2. Correct it."),
])  # fmt: skip
def test_a_question_without_an_answer_is_refused(question, message):
    refused(message, predicted, question)
