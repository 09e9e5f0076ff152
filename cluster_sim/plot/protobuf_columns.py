"""Fields of protocol buffers as columns of bytes.

Columns are laid one after the other, behind a prefix of their length where a message lies within
another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.jit import lean
from cluster_sim.plot.byte_columns import Bytes, Column
from topologies.arrays import IntArray

VARINT, FIXED64, LENGTH = 0, 1, 2
"""Wire types of the format."""


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


def varint(number: int, values: IntArray) -> Column:
    """Return a field of unsigned numbers."""
    return _varints(values, tag(number, VARINT))


def fixed64(number: int, values: IntArray, present: npt.NDArray[np.bool_]) -> Column:
    """Return a field of eight bytes, in the rows that have one."""
    rows = len(values)
    key = np.frombuffer(tag(number, FIXED64), np.uint8)
    eight = np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(rows, 8)
    content = np.concatenate([np.broadcast_to(key, (rows, len(key))), eight], axis=1)
    return Column(content, np.where(present, content.shape[1], 0))


def within(number: int, columns: Sequence[Column]) -> list[Column]:
    """Return columns as a message that lies in another."""
    size = sum((column.length for column in columns), np.zeros(1, np.int64))
    return [_varints(size, tag(number, LENGTH)), *columns]


def _varints(values: IntArray, key: bytes) -> Column:
    """Numbers in groups of seven bits, the lowest first, behind a key."""
    numbers = np.ascontiguousarray(values, np.int64)
    widest = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    content = np.empty((len(numbers), len(key) + widest), np.uint8)
    content[:, : len(key)] = np.frombuffer(key, np.uint8)
    length = np.empty(len(numbers), np.int64)
    _write_varints(numbers, len(key), content, length)
    return Column(content, length)


@lean
def _write_varints(values: IntArray, begin: int, content: Bytes, length: IntArray) -> None:
    """Write each number into its row, from a byte on."""
    for row in range(len(values)):
        number, at = values[row], begin
        while number > 127:
            content[row, at] = number & 127 | 128
            number >>= 7
            at += 1
        content[row, at] = number
        length[row] = at + 1
