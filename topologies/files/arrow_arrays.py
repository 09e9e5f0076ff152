"""Arrow arrays of numpy arrays and of texts, made from their buffers.

``pyarrow.array`` would do the same, but it imports pandas to check whether its argument is a
Series.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def numbers(values: Any, present: Any = True) -> pa.Array:
    """Return a numpy array as Arrow's, without copying it unless it holds truth values."""
    column = np.ascontiguousarray(values)
    held = _bits(column) if column.dtype == np.bool_ else pa.py_buffer(column)
    kind = pa.from_numpy_dtype(column.dtype)
    return pa.Array.from_buffers(kind, len(column), [_validity(present), held])


def texts(values: Sequence[str]) -> pa.StringArray:
    """Return texts as an Arrow array."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    return pa.StringArray.from_buffers(
        len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))
    )


def _validity(present: Any) -> pa.Buffer | None:
    return None if np.all(present) else _bits(np.asarray(present))


def _bits(truths: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(truths, bitorder="little"))
