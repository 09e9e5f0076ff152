"""Columns of bytes equal the texts of Python, over rows of several blocks and of none."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_sim.plot.byte_columns import ROWS_AT_ONCE, constant, decimals, picked, rows_of


def _decimal(number: int, places: int) -> str:
    digits = str(abs(number)).rjust(places + 1, "0")
    point = f"{digits[:-places]}.{digits[-places:]}" if places else digits
    return "-" * (number < 0) + point


@pytest.mark.parametrize("rows", [0, 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 3])
@pytest.mark.parametrize("places", [0, 1, 6])
def test_rows_are_those_that_python_writes(rows: int, places: int) -> None:
    rng = np.random.default_rng(rows)
    numbers = rng.integers(-(10**6), 10 ** rng.integers(0, 18, rows).astype(np.int64) + 1)
    code, texts = rng.integers(0, 3, rows), ["", "ring", "café"]
    laid = rows_of(
        [
            constant(b"["),
            decimals(numbers, places),
            constant(b" "),
            picked([text.encode() for text in texts], code),
            constant(b"]"),
        ]
    )
    expected = (
        f"[{_decimal(number, places)} {texts[k]}]"
        for number, k in zip(numbers.tolist(), code.tolist(), strict=True)
    )
    assert bytes(laid).decode() == "".join(expected)


def test_narrow_and_large_numbers_are_written_whole() -> None:
    assert bytes(rows_of([decimals(np.array([-1, 7], np.int16))])) == b"-17"
    assert bytes(rows_of([decimals(np.array([2**62]))])) == str(2**62).encode()


def test_columns_of_one_row_alone_are_one_record() -> None:
    assert bytes(rows_of([constant(b"a"), constant(b"b")])) == b"ab"
