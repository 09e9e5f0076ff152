"""Writing of files column by column in compiled code: a million records in tenths of a second.

A column is a matrix of bytes with one row for each record of the file, and the number of bytes in
each row. A column of one row is the same in every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.compiler.jit import lean
from topologies.arrays import IntArray

Bytes = npt.NDArray[np.uint8]

ROWS_AT_ONCE = 2**14
"""Records that are written together, so that they stay in the processor's cache."""
ZERO, MINUS, POINT = b"0-."
"""Bytes of these characters."""


@dataclass(frozen=True, eq=False)
class Column:
    """The bytes of one part of many records.

    Attributes
    ----------
    content : uint8 array (records or 1, widest)
    length : int64 array (records or 1,)
        Number of bytes in each row of ``content``; those after them are not written.
    """

    content: Bytes
    length: IntArray


def constant(content: bytes) -> Column:
    """Return a column with the same bytes in every record."""
    row = np.frombuffer(content, np.uint8)
    return Column(row[None], np.array([len(row)]))


def picked(texts: Sequence[bytes], code: IntArray) -> Column:
    """Return a column with one of a few texts in each record.

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
    """Return a column of numbers in decimal digits, with a point before the last ``places``.

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
    """Return the bytes of all records one after the other, each with all columns in their order."""
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
    """Copy each row to its place ``at`` in ``laid``, and move the place behind it."""
    step = 0 if len(length) < len(at) else 1
    for row in range(len(at)):
        place, source = at[row], row * step
        for column in range(length[source]):
            laid[place + column] = content[source, column]
        at[row] += length[source]


@lean
def _write_decimals(values: IntArray, places: int, content: Bytes, length: IntArray) -> None:
    """Write the digits of each number, from the left of its row, and their number."""
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
