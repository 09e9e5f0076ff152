"""Cache of results that follow from arrays and plain values, found again by their contents.

Training steps of different models and sizes often have the same ops in the same order, and differ
only in how long these take. What depends on the order alone is computed once for all of them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Answer = TypeVar("Answer")
DIGEST_BYTES = 16  # length of the digest that stands for the contents of a key [B]
MOST_NUMBERS = 32_000_000
"""Sum of the sizes of results that one cache keeps, in numbers of at most eight bytes."""


class ByValue:
    """Cache of results by the contents of what they follow from.

    Code that builds several programs owns such a cache and drops it at the end. When it is full,
    the results that were not used for longest go.
    """

    def __init__(self, most: int = MOST_NUMBERS):
        self.most = most
        self._held = 0
        self._kept: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def once(
        self, make: Callable[[], Answer], size: int | Callable[[Answer], int], *parts: object
    ) -> Answer:
        """Return the result of ``make``, or that of an earlier call with equal parts.

        ``make``: function whose result follows from the parts. Nobody may change its arrays.
        """
        key = digest(parts)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]  # type: ignore[no-any-return]
        answer = make()
        numbers = size(answer) if callable(size) else size
        if numbers <= self.most:
            self._kept[key] = answer, numbers
            self._held += numbers
            while self._held > self.most:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._held -= dropped
        return answer


def digest(parts: object) -> bytes:
    """Return a digest of arrays and plain values, equal for equal contents."""
    summed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    text: list[str] = []
    _add(summed, text, parts)
    summed.update("".join(text).encode())
    return summed.digest()


def _add(summed: Any, text: list[str], part: object) -> None:
    """Add an array, a plain value, or a tuple of parts, each with its kind and length before it.

    Plain values are gathered in ``text`` until the next array, as each update takes a microsecond.
    """
    if isinstance(part, np.ndarray):
        text.append(f"{part.dtype.str}{part.shape}")
        summed.update("".join(text).encode())
        text.clear()
        summed.update(np.ascontiguousarray(part).data)
    elif isinstance(part, tuple):
        text.append(f"({len(part)}")
        for inner in part:
            _add(summed, text, inner)
    else:
        text.append(f"{part!r};")
