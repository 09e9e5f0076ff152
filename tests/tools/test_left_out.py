"""Coverage with tables, chips, degrees and operations left out, and of pairs of plans."""

import math

import pytest

from tools import left_out
from tools.left_out import Fold, cover, folds, lines
from workloads.confidence.kinds import TENSOR, Prediction
from workloads.confidence.residuals import Residual, Residuals


def _row(table: str, residual: float, **other: object) -> Residual:
    fields = {"kind": TENSOR, "chip": "h100", "group": "dgx-h100|a", "tp": 8, "cp": 1, "ranks": 64}
    return Residual(table=table, assumed=False, log_residual=residual, **{**fields, **other})


def _fold(rows: list[Residual], family: str, name: str) -> Fold:
    (fold,) = [fold for fold in folds(rows) if (fold.family, fold.name) == (family, name)]
    return fold


def test_what_is_left_out_does_not_judge_itself():
    """Rows that err by 0.3 are outside where only rows that err by 0.1 are left."""
    rows = [_row("sure", 0.1)] * 9 + [_row("unsure", -0.3)] * 5 + [_row("unsure", 0.1)] * 5
    result = cover(_fold(rows, "training", "table unsure"), rows)
    assert result is not None
    assert (result.rows, result.mean, result.least, result.table) == (10, 0.5, 0.5, "unsure")
    assert result.width == pytest.approx(math.sinh(0.1))
    backwards = cover(_fold(rows, "training", "table sure"), rows)
    assert backwards is not None
    assert backwards.mean == 1


def test_few_rows_say_nothing():
    rows = [_row("a", 0.1)] * 9 + [_row("b", 0.3)] * 4
    assert cover(_fold(rows, "training", "table b"), rows) is None
    assert not any("table b" in line for line in lines(rows))


def test_pairs_are_of_one_job_and_keep_the_sign_of_what_was_measured(monkeypatch):
    monkeypatch.setattr(left_out, "prediction_of", lambda row: Prediction(TENSOR, "h100", 8, 1, 64))
    times = [("a", 1.0, 2.0), ("a", 2.0, 1.0), ("b", 2.0, 1.0)]
    rows = [
        {"cluster": "dgx-h100", "name": name, "predicted": predicted, "published": published}
        for name, predicted, published in times
    ]
    others = Residuals(tuple([_row("other", 0.1)] * 9))
    (pair,) = left_out.pairs("mine", rows, others)
    assert pair.predicted == pytest.approx(-math.log(2))
    assert pair.measured == pytest.approx(math.log(2))
    assert pair.margin <= 0.13 + 1e-9
