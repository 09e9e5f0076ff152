"""Names of array types, and what numpy lacks or does slowly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
MULTIPLIER = 6364136223846793005
"""Odd number whose powers differ in all bits: the multiplier of Knuth's MMIX generator."""


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the distinct values of an array in ascending order."""
    # As numpy.unique, which hashes integers: two seconds for a million, a hundred times a sort.
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return np.asarray(ordered[first])


def pointers(lengths: npt.ArrayLike) -> IntArray:
    """Return where parts of these lengths begin that follow one another, and where the last ends.

    >>> pointers([2, 0, 3])
    array([0, 2, 2, 5])
    """
    counts = np.asarray(lengths)
    ptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def runs(first: npt.ArrayLike, lengths: npt.ArrayLike) -> IntArray:
    """Return the integers from each first one on, as many as its length, run after run.

    >>> runs([5, 0], [2, 3])
    array([5, 6, 0, 1, 2])
    """
    ptr, counts = pointers(lengths), np.asarray(lengths)
    return np.asarray(np.arange(ptr[-1]) + np.repeat(np.asarray(first) - ptr[:-1], counts))


def present(codes: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values of small non-negative integers, and the index of each in them.

    The result is that of :func:`numpy.unique` with ``return_inverse``, in a fifth of the time.

    >>> present(np.array([4, 1, 4]))
    (array([1, 4]), array([1, 0, 1]))
    """
    occurs = np.bincount(codes) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[codes]


def first_places(codes: IntArray) -> IntArray:
    """Return the first place of each number from 0 to the largest, all of which occur."""
    first = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return first


def distinct_rows(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Find a table's distinct rows: first of each as they appear, and each row's number."""
    # Rows are told apart by the value of a polynomial, far faster to sort than rows, then compared:
    # should different rows have equal values, the rows themselves are sorted.
    # Most often all rows are equal, which is seen without sorting them.
    if len(rows) and (rows == rows[0]).all():
        return np.zeros(1, np.int64), np.zeros(len(rows), np.int64)
    factors = np.cumprod(np.full(rows.shape[1], MULTIPLIER))  # modulo 2⁶⁴
    _, first, which = np.unique(rows @ factors, return_index=True, return_inverse=True)
    if not np.array_equal(rows[first][which], rows):
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[which.reshape(-1)]
