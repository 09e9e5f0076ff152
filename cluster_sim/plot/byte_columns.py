"""Files put together column by column, in machine code: a million rows in tenths of a second.

A column is a matrix of bytes, one row a record of the file, and how many bytes of each row count. A
column of one row is the same in every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.jit import lean
from topologies.arrays import IntArray

Bytes = npt.NDArray[np.uint8]

ROWS_AT_ONCE = 2**14
"""Rows that are laid out together, so that they stay in the processor's cache."""
ZERO, MINUS, POINT = b"0-."


@dataclass(frozen=True, eq=False)
class Column:
    """Bytes of one part of many records.

    Attributes
    ----------
    content : uint8 array (rows or 1, widest)
    length : int64 array (rows or 1,)
        Number of bytes of each row that count.
    """

    content: Bytes
    length: IntArray


def constant(content: bytes) -> Column:
    """Return bytes that are the same in every record."""
    row = np.frombuffer(content, np.uint8)
    return Column(row[None], np.array([len(row)]))


def picked(texts: Sequence[bytes], code: IntArray) -> Column:
    """Return one of few texts in each record.

    Examples
    --------
    >>> bytes(rows_of([picked([b"ring", b"tree"], np.array([1, 0, 1]))]))
    b'treeringtree'
    """
    length = np.array([len(text) for text in texts], np.int64)
    content = np.zeros((len(texts), int(length.max(initial=0))), np.uint8)
    for row, text in zip(content, texts, strict=True):
        row[: len(text)] = np.frombuffer(text, np.uint8)
    return Column(content[code], length[code])


def decimals(values: IntArray, places: int = 0) -> Column:
    """Return numbers in decimal digits, with a point before the last ``places`` of them.

    Examples
    --------
    >>> bytes(rows_of([decimals(np.array([15, -7]), 1), constant(b" ")]))
    b'1.5 -0.7 '
    """
    numbers = np.ascontiguousarray(values, np.int64)
    largest = max(-int(numbers.min(initial=0)), int(numbers.max(initial=0)))
    widest = max(len(str(largest)), places + 1) + len("-.")
    content = np.empty((len(numbers), widest), np.uint8)
    length = np.empty(len(numbers), np.int64)
    _write_decimals(numbers, places, content, length)
    return Column(content, length)


def rows_of(columns: Sequence[Column]) -> memoryview:
    """Lay the columns of every record one after the other, and the records likewise."""
    rows = np.broadcast_shapes(*(column.length.shape for column in columns))[0]
    place = np.zeros(rows + 1, np.int64)
    for column in columns:
        place[1:] += column.length
    place = place.cumsum()
    laid = np.empty(int(place[-1]), np.uint8)
    for low in range(0, rows, ROWS_AT_ONCE):
        some = slice(low, min(rows, low + ROWS_AT_ONCE))
        at = place[some].copy()
        for column in columns:
            shown = some if len(column.length) == rows else slice(0, 1)
            _lay(column.content[shown], column.length[shown], at, laid)
    return laid.data


@lean
def _lay(content: Bytes, length: IntArray, at: IntArray, laid: Bytes) -> None:
    """Copy each row to its place, and move the place behind it."""
    step = 0 if len(length) < len(at) else 1
    for row in range(len(at)):
        place, source = at[row], row * step
        for column in range(length[source]):
            laid[place + column] = content[source, column]
        at[row] += length[source]


@lean
def _write_decimals(values: IntArray, places: int, content: Bytes, length: IntArray) -> None:
    """Write each number from the left of its row."""
    for row in range(len(values)):
        number = values[row]
        begin = 1 if number < 0 else 0
        if begin:
            content[row, 0] = MINUS
            number = -number
        digits, rest = 1, number // 10
        while rest > 0:
            digits, rest = digits + 1, rest // 10
        digits = max(digits, places + 1)
        end = begin + digits + (1 if places else 0)
        length[row] = end
        for digit in range(digits):
            if places and digit == places:
                end -= 1
                content[row, end] = POINT
            end -= 1
            content[row, end] = ZERO + number % 10
            number //= 10
