"""Shipped tables: whole, credited and met within their tolerances."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.validation.reading.rows import misses, table, tables
from experiments.validation.validate import validate_each
from topologies.errors import InputError


@pytest.mark.parametrize("name", list(tables()))
def test_every_shipped_table_is_whole_and_credited(name):
    one = table(name)
    read = one.rows()
    assert len(read) >= 5
    assert one.licence
    assert one.credit
    assert 0 < one.median_tolerance <= one.p90_tolerance
    wrong = [why for row in read.rows for why in row.mistakes if "is empty" not in why]
    assert not wrong
    assert sum(not row.mistakes for row in read.rows) > 0.8 * len(read)
    assert all(row.cells.get("source") for row in read.rows)


def test_an_unknown_table_is_refused_with_the_list():
    with pytest.raises(InputError, match=r"Did you mean mlperf\?"):
        table("mlperv")


def test_a_table_outside_its_tolerance_says_by_how_much():
    one = table("mlperf")
    inside = {"median_abs_error": 0.01, "p90_abs_error": 0.02}
    assert misses(one, inside) == ""
    assert "p90_abs_error 90.0% is over" in misses(one, {**inside, "p90_abs_error": 0.9})
    assert "no row" in misses(one, {"median_abs_error": None, "p90_abs_error": None})


@pytest.mark.parametrize(
    ("name", "median", "p90"),
    [
        ("vidur_gemm", 0.10, 0.25),
        ("deepgemm", 0.08, 0.27),
        ("attention", 0.05, 0.12),
        ("nccl_aic", 0.08, 0.25),
    ],
)
def test_tables_that_the_kernels_and_collectives_must_meet(name, median, p90):
    result = validate_each([(table(name).rows(), name)])[0]
    assert result.summary["ok"] == result.summary["rows"]
    assert result.summary["median_abs_error"] < median
    assert result.summary["p90_abs_error"] < p90
    assert result.summary["kendall_tau"] > 0.9


def test_large_messages_are_met_within_five_percent():
    result = validate_each([(table("nccl_aic").rows(), "nccl_aic")])[0]
    large = [abs(row["error"]) for row in result.rows if row["size_bytes"] >= 2**22]
    small = [abs(row["error"]) for row in result.rows if row["size_bytes"] < 2**16]
    assert np.median(large) < 0.05
    assert np.quantile(large, 0.9) < 0.15
    assert np.median(small) < 0.20
    assert result.baseline["median_abs_error"] > 2 * result.summary["median_abs_error"]
