"""Sealed predictions: questions, answers that are sealed once, and their scores."""

import csv
import hashlib
import re
import shlex
from pathlib import Path

import pytest

from tests.support.refusals import refused
from tools.sealed import HEADER, main, predicted, read, score

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
