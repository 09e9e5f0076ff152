"""Fields of protocol buffers as columns of bytes.

A message inside another consists of its columns one after the other, behind their length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.compiler.jit import lean
from cluster_sim.plot.byte_columns import Bytes, Column
from topologies.arrays import IntArray

VARINT, FIXED64, LENGTH = 0, 1, 2
"""Wire types of the format."""


def tag(number: int, wire: int) -> bytes:
    """Return the key of a field, from its number and wire type.

    Examples
    --------
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


def varint(number: int, values: IntArray) -> Column:
    """Return a column with a field of unsigned numbers."""
    return _varints(values, tag(number, VARINT))


def fixed64(number: int, values: IntArray, present: npt.NDArray[np.bool_]) -> Column:
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
