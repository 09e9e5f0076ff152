"""Records of protocol buffers, written column by column: a million in tenths of a second.

A column is a matrix of bytes with one row for each record of the file, and the number of bytes in
each row. A column of one row is the same in every record. A message inside another consists of its
columns one after the other, behind their length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.compiler.jit import lean
from topologies.arrays import BoolArray, IntArray

Bytes = npt.NDArray[np.uint8]

ROWS_AT_ONCE = 2**14
"""Records that are written together, so that they stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Column:
    """The bytes of one part of many records; those behind the length of a row are not written."""

    content: Bytes  # (records or 1, widest)
    length: IntArray  # (records or 1,)


def constant(content: bytes) -> Column:
    """Return a column with the same bytes in every record."""
    row = np.frombuffer(content, np.uint8)
    return Column(row[None], np.array([len(row)]))


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


VARINT, FIXED64, LENGTH = 0, 1, 2  # wire types of the format


def tag(number: int, wire: int) -> bytes:
    """Return the key of a field, from its number and wire type.

    >>> tag(60, LENGTH).hex()
    'e203'
    """
    return plain_varint(number << 3 | wire)


def plain_varint(value: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def message(*parts: tuple[int, int | bytes | str]) -> bytes:
    """Return a message of fields, each a number, a text or a message.

    >>> message((1, 150), (2, "ab")).hex()
    '08960112026162'
    """
    content = bytearray()
    for number, value in parts:
        if isinstance(value, int):
            content += tag(number, VARINT) + plain_varint(value)
        else:
            text = value.encode() if isinstance(value, str) else value
            content += tag(number, LENGTH) + plain_varint(len(text)) + text
    return bytes(content)


def varint(number: int, values: IntArray) -> Column:
    """Return a column with a field of unsigned numbers."""
    return _varints(values, tag(number, VARINT))


def fixed64(number: int, values: IntArray, present: BoolArray) -> Column:
    """Return a column with a field of eight bytes, in the records where it is present."""
    rows = len(values)
    key = np.frombuffer(tag(number, FIXED64), np.uint8)
    eight = np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(rows, 8)
    content = np.concatenate([np.broadcast_to(key, (rows, len(key))), eight], axis=1)
    return Column(content, np.where(present, content.shape[1], 0))


def within(number: int, columns: Sequence[Column]) -> list[Column]:
    """Return columns as a field that is a message."""
    size = sum((column.length for column in columns), np.zeros(1, np.int64))
    return [_varints(size, tag(number, LENGTH)), *columns]


def _varints(values: IntArray, key: bytes) -> Column:
    """Return numbers in groups of seven bits, the lowest first, behind the key of their field."""
    numbers = np.ascontiguousarray(values, np.int64)
    widest = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    content = np.empty((len(numbers), len(key) + widest), np.uint8)
    content[:, : len(key)] = np.frombuffer(key, np.uint8)
    length = np.empty(len(numbers), np.int64)
    _write_varints(numbers, len(key), content, length)
    return Column(content, length)


@lean
def _write_varints(values: IntArray, begin: int, content: Bytes, length: IntArray) -> None:
    """Write each number into its row, from the byte ``begin`` on, and the length of the row."""
    for row in range(len(values)):
        number, at = values[row], begin
        while number > 127:
            content[row, at] = number & 127 | 128
            number >>= 7
            at += 1
        content[row, at] = number
        length[row] = at + 1
