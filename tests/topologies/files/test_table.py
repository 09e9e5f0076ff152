"""Tables without pandas have the same files, values and texts as with pandas."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.errors import InputError
from topologies.files.arrow_arrays import numbers, table_of, texts
from topologies.files.table import Table, as_number, read_csv

COLUMNS = (
    st.lists(st.integers(-(2**60), 2**60), min_size=3, max_size=3),
    st.lists(st.floats(allow_infinity=False), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.text("ab,\"' \n|é", min_size=1), min_size=3, max_size=3),
)


@given(st.tuples(*COLUMNS))
def test_a_csv_file_has_the_text_that_pandas_writes(columns: tuple[list[Any], ...]) -> None:
    table = Table(dict(zip("abcd", columns, strict=True)))
    assert table.csv() == table.frame().to_csv(index=False)


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,x\n-2,y\n",
        "a,b\n1,\n,0.5\n",
        "a,b\n1e300,inf\nnan,NA\n",
        "a,b\nTrue,False\nTrue,True\n",
        "a,b\n007,1_000\n1,2\n",
        'a,b\n"1, 2","x\ny"\n\n3,z\n',
        "\ufeffa,a\n1,2\n",
        "a,b\n",
    ],
)
def test_a_csv_file_has_the_values_that_pandas_reads(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(text)
    table, frame = read_csv(file, 10, 1000), pd.read_csv(file)
    assert list(table.columns) == list(frame.columns)
    for name in table.columns:
        np.testing.assert_equal(table[name], frame[name].tolist())
        if len(table):
            assert table.is_number(name) == pd.api.types.is_numeric_dtype(frame[name])


def test_the_first_rows_of_a_long_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("a\n1\n2\nx\n")
    assert read_csv(file, 2, 1000)["a"] == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no columns"),
        ("a,b\n1,2,3\n", "line 2: 3 cells under 2 names"),
        ('a\n"1\n', "line 2: not CSV"),
        ("a\n" + "1\n" * 1000, "over the limit"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_csv(file, 10, 1000)


ROWS = [{"a": 1, "b": "x"}, {"a": None, "c": True}, {"b": "y", "a": 3}]


def test_rows_become_the_columns_of_a_frame() -> None:
    table, frame = Table.of_rows(ROWS), pd.DataFrame(ROWS)
    for name in ("a", "b"):
        np.testing.assert_equal(table[name], frame[name].tolist())
    assert table["c"] == [None, True, None]


def test_the_named_index_of_a_frame_is_a_column() -> None:
    frame = pd.DataFrame({"busy": [0.5]}, index=pd.Index([3], name="rank"))
    assert Table.of(frame).documents() == [{"rank": 3, "busy": 0.5}]


def test_what_pandas_lacks_is_missing() -> None:
    frame = pd.DataFrame({"ranks": pd.array([8, None], "Int64")})
    table = Table.of(frame)
    assert table.is_number("ranks")
    assert table.csv() == frame.to_csv(index=False)


def test_a_cell_spells_a_number_or_none() -> None:
    assert [as_number(cell) for cell in ("12", "1e3", True, 7)] == [12, 1000, 1, 7]
    assert all(math.isnan(as_number(cell)) for cell in ("ring", ""))


def test_arrow_arrays_are_those_that_arrow_makes() -> None:
    import pyarrow as pa

    truths = np.arange(19) % 3 == 0
    for column in (np.arange(5), np.arange(4, dtype=np.int16)[::2], np.array([0.5]), truths):
        assert numbers(column).equals(pa.array(column))
    assert texts(["ring", "", "é"]).equals(pa.array(["ring", "", "é"]))
    assert texts([]).equals(pa.array([], pa.string()))
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, None], "c": ["x", None], "d": [True, False]})
    assert table_of(Table.of(frame)).to_pylist() == pa.Table.from_pandas(frame).to_pylist()


@given(st.lists(st.text("=+-@a1. \t'%", min_size=1, max_size=6), min_size=1, max_size=9))
def test_no_cell_of_text_is_a_formula(texts: list[str]) -> None:
    """Read back, the names are as they were; numbers are left to be numbers."""
    for cells in csv.reader(io.StringIO(Table({"a": texts, "=b": texts}).csv())):
        for cell in cells:
            number = cell.rstrip("% ").lstrip("+-")
            assert not cell.startswith(("=", "@", "\t")), cell
            assert cell[:1] not in "+-" or not number or set(number) <= set("0123456789."), cell


def test_marked_text_reads_back(tmp_path: Path) -> None:
    names = ["=1+1", "@x", "-O2", "plain", "'quoted", "-3 %"]
    (tmp_path / "t.csv").write_text(Table({"name": names}).csv())
    assert read_csv(tmp_path / "t.csv", 99, 10**6)["name"] == names
