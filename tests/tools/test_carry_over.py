"""Fits and coverage with a framework, table or chip left out, and the fit of NCCL's constants."""

import math
from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.collectives.duration.nccl import CHIP
from experiments.validation.reading.rows import table
from tools import carry_over as module
from tools import left_out
from tools.carry_over import FACTORS, HEADER, best_factor, dependent_logs, spread_rows, without_each
from tools.fit_collectives import fit_chips, fit_fabrics, nccl_rows, rows_on, start_for
from tools.fit_rows import write
from tools.left_out import Fold, cover, folds, lines
from tools.nccl_fit import fit, measured, modelled, with_fitted
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.confidence.kinds import TENSOR, Prediction
from workloads.confidence.residuals import Residual, Residuals
from workloads.confidence.split_conformal import LEAST
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
    assert result.width == pytest.approx((math.exp(0.1) - math.exp(-LEAST)) / 2)
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


def a100_rows():
    return rows_on(nccl_rows("nccl_aic"), ["dgx-a100"], far=False)


def test_the_fit_finds_the_constants_that_made_the_rows():
    truth = {
        "launch": 9e-6, "step": 1e-6, "ll_efficiency": 0.35, "ll128_step": 2e-6,
        "ll128_efficiency": 0.7, "simple_step": 6e-6, "simple_second_step": 3e-6, "efficiency": 0.8,
        "slice": 5e-6, "copy_rate": 9e11, "exchange": 3e-6, "exchange_efficiency": 0.7,
        "exchange_copy_rate": 5e11,
    }  # fmt: skip
    start, rows = start_for("dgx-a100"), measured(a100_rows())
    times_s = modelled(with_fitted(start, truth), rows)
    fits = fit(replace(rows, time_s=times_s), CHIP, start)
    assert fits.value == pytest.approx(truth, rel=0.03)
    assert max(fits.spread.values()) < 0.15


def test_the_shipped_rows_are_those_of_the_fits(tmp_path):
    others = nccl_rows("nccl_tests", "nccl_more", "nccl_efa_more")
    chips = fit_chips(nccl_rows("nccl_aic"), others)
    written = write(tmp_path / "fits.csv", chips, fit_fabrics(others, chips))
    again, shipped = (shipped_catalogue().with_overlay(tmp_path / "fits.csv"), shipped_catalogue())
    for row in written:
        entry = shipped.entry(row["part"], row["quantity"])
        assert again.value(row["part"], row["quantity"]) == pytest.approx(entry.value, rel=0.02)
        assert (entry.grade, entry.note) == (row["grade"], row["note"])
        assert entry.low < entry.value <= entry.high
    fitted = {part for part in shipped.parts() if part.startswith("nccl.")}
    unfitted = {"nccl.one-process", "nccl.pytorch", "nccl.b300"}  # the last as b200
    assert fitted - {row["part"] for row in written} == unfitted
    assert shipped.entry("nccl.h200", "launch").grade == "assumed"
