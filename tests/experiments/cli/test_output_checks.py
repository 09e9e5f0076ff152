"""Results that cannot be are refused before they are printed."""

from __future__ import annotations

import math

import pytest

from experiments.reports.values import check_results
from topologies.errors import InputError


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"mfu": 221.7}, "mfu is 221.7 and must lie between 0 and 1"),
        ({"rows": [{"hfu": -0.37}]}, "hfu is -0.37"),
        ({"rows": ({"mfu": math.nan},)}, "mfu is nan"),
    ],
)
def test_what_cannot_be_is_refused(document: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_results(document)


def test_what_can_be_is_let_through() -> None:
    check_results({"mfu": 0.5, "hfu": None, "error": -3.0, "rows": [{"p99": math.nan}], "n": 7})
