"""Protocol buffers put together column by column: a million messages in seconds.

A column is a matrix of bytes, one row a message, and how many of each row count. Columns are laid
one after the other with a prefix of their length where a message lies within another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topologies.arrays import IntArray

Bytes = npt.NDArray[np.uint8]
VARINT, FIXED64, LENGTH = 0, 1, 2
"""Wire types of the format."""

ROWS_AT_ONCE = 2**14
"""Rows that are laid out together, so that they stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Column:
    """Bytes of one field of many messages.

    Attributes
    ----------
    content : uint8 array (rows, widest)
    length : int64 array (rows,)
        Number of bytes of each row that count.
    """

    content: Bytes
    length: IntArray


def tag(number: int, wire: int) -> bytes:
    """Key of a field.

    Examples
    --------
    >>> tag(60, LENGTH).hex()
    'e203'
    """
    return plain_varint(number << 3 | wire)


def plain_varint(value: int) -> bytes:
    """One number in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def message(*parts: tuple[int, int | bytes | str]) -> bytes:
    """One message of numbers, texts and messages.

    Examples
    --------
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


def constant(content: bytes, rows: int) -> Column:
    """Return the same bytes in every row."""
    row = np.frombuffer(content, np.uint8)
    return Column(np.broadcast_to(row, (rows, len(row))), np.full(rows, len(row)))


def varint(number: int, values: IntArray) -> Column:
    """Return a field of unsigned numbers."""
    key = np.frombuffer(tag(number, VARINT), np.uint8)
    digits = varints(values)
    rows = len(values)
    content = np.concatenate([np.broadcast_to(key, (rows, len(key))), digits.content], axis=1)
    return Column(content, digits.length + len(key))


def varints(values: IntArray) -> Column:
    """Return numbers in groups of seven bits, without a key."""
    left = np.asarray(values, np.int64)
    most = int(left.max(initial=0))
    width = max(1, -(-most.bit_length() // 7))
    content = np.empty((len(left), width), np.uint8)
    length = np.ones(len(left), np.int64)
    for place in range(width):
        content[:, place] = left & 127
        left = left >> 7
        more = left > 0
        content[more, place] |= 128
        length += more
    return Column(content, length)


def fixed64(number: int, values: IntArray, present: npt.NDArray[np.bool_]) -> Column:
    """Return a field of eight bytes, in the rows that have one."""
    rows = len(values)
    key = np.frombuffer(tag(number, FIXED64), np.uint8)
    eight = np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(rows, 8)
    content = np.concatenate([np.broadcast_to(key, (rows, len(key))), eight], axis=1)
    return Column(content, np.where(present, content.shape[1], 0))


def within(number: int, columns: Sequence[Column]) -> list[Column]:
    """Return columns as a message that lies in another."""
    rows = len(columns[0].length)
    size = varints(np.sum([column.length for column in columns], axis=0))
    return [constant(tag(number, LENGTH), rows), size, *columns]


def rows_of(columns: Sequence[Column]) -> bytes:
    """Lay the columns of every row one after the other, and the rows likewise."""
    rows = len(columns[0].length) if columns else 0
    parts = []
    for low in range(0, rows, ROWS_AT_ONCE):
        some = slice(low, low + ROWS_AT_ONCE)
        content = [column.content[some] for column in columns]
        used = [
            np.arange(part.shape[1]) < column.length[some, None]
            for part, column in zip(content, columns, strict=True)
        ]
        parts.append(np.concatenate(content, axis=1)[np.concatenate(used, axis=1)].tobytes())
    return b"".join(parts)
