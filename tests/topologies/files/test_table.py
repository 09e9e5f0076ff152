"""Cells that no table program takes for a formula, and Arrow arrays without pandas."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topologies.files.arrow_arrays import numbers, texts
from topologies.files.table import as_named, as_text


def test_arrow_arrays_are_those_that_arrow_makes() -> None:
    import pyarrow as pa

    truths = np.arange(19) % 3 == 0
    for column in (np.arange(5), np.arange(4, dtype=np.int16)[::2], np.array([0.5]), truths):
        assert numbers(column).equals(pa.array(column))
    assert texts(["ring", "", "é"]).equals(pa.array(["ring", "", "é"]))
    assert texts([]).equals(pa.array([], pa.string()))


@given(st.lists(st.text("=+-@a1. \t'%", min_size=1, max_size=6), min_size=1, max_size=9))
def test_no_cell_of_text_is_a_formula(texts: list[str]) -> None:
    """Numbers are left to be numbers."""
    for cell in map(as_text, texts):
        number = cell.rstrip("% ").lstrip("+-")
        assert not cell.startswith(("=", "@", "\t")), cell
        assert cell[:1] not in "+-" or not number or set(number) <= set("0123456789."), cell


def test_marked_text_reads_back() -> None:
    names = ["=1+1", "@x", "-O2", "plain", "'quoted", "-3 %"]
    assert [as_named(as_text(name)) for name in names] == names
