"""Chunks of a collective: pieces of the buffer, with the ranks that hold them first and last.

A chunk states what the collective must achieve with it, so one proof serves every operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topologies.arrays import IntArray

EVERY = -1  # as a source, every rank of the group contributes; as a target, every rank gets it


@dataclass(frozen=True, eq=False)
class Chunks:
    """Chunks of the buffers of one or several groups.

    A message of ``count`` chunks from ``first`` on carries ``first … first + count - 1``; with a
    list, ``content[first:first + count]``, ascending.
    """

    size_bytes: IntArray
    source: IntArray  # rank that holds the chunk at first; EVERY where it is the sum of all ranks'
    target: IntArray  # rank that must hold the chunk in the end, or EVERY
    group: IntArray  # replica group that the chunk belongs to
    content: IntArray | None = None
    is_tracked: bool = True  # messages state which chunks they carry, so that they can be proven

    def __len__(self) -> int:
        return len(self.size_bytes)

    @classmethod
    def table(
        cls, size_bytes: npt.ArrayLike, source: npt.ArrayLike, target: npt.ArrayLike
    ) -> Chunks:
        """Make the chunks of one group; one value in place of a column holds for all of them."""
        size = np.ascontiguousarray(np.ravel(np.asarray(size_bytes, np.int64)))

        def column(values: npt.ArrayLike) -> IntArray:
            array = np.asarray(values, np.int32)
            return np.full(len(size), array) if array.ndim == 0 else np.ravel(array)

        return cls(size, column(source), column(target), np.zeros(len(size), np.int32))

    def listed_bytes(self) -> IntArray:
        """Return the bytes of each entry of ``content``, else of each chunk, int64 (entries,)."""
        return self.size_bytes if self.content is None else self.size_bytes[self.content]

    def offsets(self) -> IntArray:
        """Return the bytes before each of these entries, and of all, int64 (entries + 1,)."""
        return np.concatenate([[0], np.cumsum(self.listed_bytes())])


def cut(size_bytes: npt.ArrayLike, parts: int) -> IntArray:
    """Cut sizes into parts that differ by at most one byte, int64 (…, parts)."""
    whole, rest = np.divmod(np.asarray(size_bytes, np.int64), parts)
    ends = np.multiply.outer(rest, np.arange(parts + 1, dtype=np.int64)) // parts
    return np.asarray(whole[..., None] + np.diff(ends, axis=-1), np.int64)


def share(size_bytes: npt.ArrayLike, weights: npt.ArrayLike) -> IntArray:
    """Divide sizes by integer weights into shares that sum to the size, int64 (…, weights).

    >>> share(100, [2, 1, 1]).tolist()
    [50, 25, 25]
    """
    weight = np.asarray(weights, np.int64)
    total = int(weight.sum())
    whole, rest = np.divmod(np.asarray(size_bytes, np.int64), total)
    before = np.concatenate([[0], np.cumsum(weight)])
    ends = np.multiply.outer(whole, before) + np.multiply.outer(rest, before) // total
    return np.asarray(np.diff(ends, axis=-1), np.int64)


def shards(size_bytes: int, ranks: int, weights: npt.ArrayLike) -> IntArray:
    """Divide each rank's shard of a buffer among weighted parts, int64 (parts, ranks).

    With equal weights any two pieces differ by at most one byte.
    """
    return share(cut(size_bytes, ranks), weights).T
