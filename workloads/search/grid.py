"""Table of combinations of fields, which grows field by field and is filtered on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from topologies.arrays import BoolArray, IntArray

Columns = Mapping[str, IntArray]
"""An int64 array for each field of a plan, all of one length. A value that is not a number stands
as its place among the field's choices."""


def one_row() -> Columns:
    """Return the table of no fields, which has one row."""
    return {"row": np.zeros(1, np.int64)}


def rows(columns: Columns) -> int:
    """Count the combinations."""
    return len(next(iter(columns.values())))


def crossed(columns: Columns, name: str, values: Sequence[int] | IntArray) -> Columns:
    """Return every row with each of some values of a further field.

    >>> rows = crossed(crossed(one_row(), "tp", [1, 2]), "pp", [1, 4])
    >>> rows["tp"].tolist(), rows["pp"].tolist()
    ([1, 1, 2, 2], [1, 4, 1, 4])
    """
    grown = {key: np.repeat(column, len(values)) for key, column in columns.items()}
    return {**grown, name: np.tile(np.asarray(values, np.int64), rows(columns))}


def kept(columns: Columns, which: BoolArray) -> Columns:
    """Return the rows for which ``which`` is true."""
    return {key: column[which] for key, column in columns.items()}


def among(columns: Columns, names: Sequence[str], allowed: Sequence[tuple[Any, ...]]) -> BoolArray:
    """Return whether each row's values of some fields are one of these tuples.

    >>> among({"tp": np.array([1, 2]), "cp": np.array([1, 1])}, ("tp", "cp"), [(2, 1)]).tolist()
    [False, True]
    """
    listed = np.zeros(rows(columns), np.bool_)
    for values in allowed:
        same = [columns[name] == value for name, value in zip(names, values, strict=True)]
        listed |= np.logical_and.reduce(same)
    return listed


def divisors(size: int) -> list[int]:
    """Return all divisors of a number, ascending; 0 has none."""
    low = [part for part in range(1, int(size**0.5) + 1) if size % part == 0]
    return sorted({*low, *(size // part for part in low)})
