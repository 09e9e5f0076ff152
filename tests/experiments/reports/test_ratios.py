"""Ratios of two clusters' answers: values, ends, and words."""

from __future__ import annotations

import pytest

from experiments.reports.certainty import NONE, ratio_sentences, ratios
from workloads.confidence.split_conformal import ratio_ends


def row(name: str, rate: float, low: float, high: float) -> dict[str, object]:
    ends = {"tokens_per_s": {"low": low, "high": high}}
    return {"cluster": name, "tokens_per_s": rate, "interval": ends}


def test_independent_errors_add_as_squares_of_logarithms() -> None:
    low, ratio, high = ratio_ends((2.0, 6.0, 18.0), (1.0, 2.0, 4.0))
    assert ratio == 3.0
    assert (low * high) ** 0.5 == pytest.approx(ratio)
    assert ratio_ends((1.0, 1.0, 1.0), (2.0, 2.0, 2.0)) == (0.5, 0.5, 0.5)


def test_a_difference_within_the_error_is_not_called_one() -> None:
    near, far = row("near", 12.0, 8.0, 18.0), row("far", 90.0, 60.0, 135.0)
    entries = ratios("train", [row("first", 10.0, 6.0, 16.0), near, far])
    assert [(one["cluster"], one["differs"]) for one in entries] == [("near", False), ("far", True)]
    assert [one["ratio"] for one in entries] == [1.2, 9.0]
    one, other = ratio_sentences(entries)
    assert one.startswith("near has 1.2 times the tokens a second (80 %: ")
    assert one.endswith(f"of first. {NONE}")
    assert other.endswith("of first. Beyond the error of two predictions: the tokens a second.")


def test_numbers_that_a_machine_lacks_are_not_compared() -> None:
    assert ratios("train", [row("first", 10.0, 6.0, 16.0), {"cluster": "other"}]) == []
