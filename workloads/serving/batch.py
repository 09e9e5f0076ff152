"""Requests that decode together: in lockstep, or each by the number of its accepted proposals."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from topologies.arrays import IntArray
from workloads.serving.speculation import Speculation

DRAWN_AT_ONCE = 4096
"""Draws that are made at once at least."""


class Batch(Protocol):
    """Decoding requests, and the tokens that each still has to generate."""

    width: int
    """Tokens of one request that a pass of the model works on."""

    def __len__(self) -> int: ...

    def add(self, request: int, tokens: int) -> None:
        """Add a request with so many tokens to generate."""

    def steps(self) -> int:
        """Passes until the next request may be done."""

    def left(self) -> Iterator[tuple[int, int]]:
        """Requests, and the tokens that each still has to generate."""

    def advance(self, steps: int) -> tuple[int, list[int]]:
        """Make so many passes; returns all requests' tokens together, and the finished requests."""


class Lockstep:
    """Decoding in which all requests advance by one token a pass, so that the next end is known."""

    width = 1

    def __init__(self) -> None:
        self._step = 0
        self._ends: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, request: int, tokens: int) -> None:
        """Add a request with so many tokens to generate."""
        heapq.heappush(self._ends, (self._step + tokens, request))

    def steps(self) -> int:
        """Passes until the next request is done."""
        return self._ends[0][0] - self._step

    def left(self) -> Iterator[tuple[int, int]]:
        """Requests, and the tokens that each still has to generate."""
        return ((request, last - self._step) for last, request in self._ends)

    def advance(self, steps: int) -> tuple[int, list[int]]:
        """Make so many passes; returns all requests' tokens together, and the finished requests."""
        tokens = len(self._ends) * steps
        self._step += steps
        done = []
        while self._ends and self._ends[0][0] <= self._step:
            done.append(heapq.heappop(self._ends)[1])
        return tokens, done


class Speculating:
    """Decoding in which each request advances by its accepted proposals, and one token more.

    Examples
    --------
    >>> batch = Speculating(Speculation(3, 1.0), np.random.default_rng(0))
    >>> batch.add(7, 5)
    >>> batch.advance(1), batch.advance(1)
    ((4, []), (1, [7]))
    """

    def __init__(self, speculation: Speculation, rng: np.random.Generator) -> None:
        self.width = speculation.tokens + 1
        self._speculation, self._rng = speculation, rng
        self._requests = np.empty(0, np.int64)
        self._left = np.empty(0, np.int64)
        self._drawn = np.empty(0, np.int64)
        self._ahead: IntArray | None = None

    def __len__(self) -> int:
        return len(self._left)

    def add(self, request: int, tokens: int) -> None:
        """Add a request with so many tokens to generate."""
        self._ahead = None
        self._requests = np.append(self._requests, request)
        self._left = np.append(self._left, tokens)

    def steps(self) -> int:
        """Passes until the next request may be done: the next may be the last."""
        return 1

    def left(self) -> Iterator[tuple[int, int]]:
        """Requests, and the tokens that each still has to generate."""
        return zip(self._requests.tolist(), self._left.tolist(), strict=True)

    def ahead(self) -> IntArray:
        """Tokens of each of the next passes, all requests together, int64 (passes,).

        In none but the last of them is a request done.
        """
        likely = int(self._left.min() / self._speculation.expected_tokens)
        self._ahead = self._taken(likely + 1)
        together: IntArray = self._ahead.sum(axis=1)
        together[1:] -= together[:-1].copy()
        return together

    def advance(self, steps: int) -> tuple[int, list[int]]:
        """Make so many passes; returns all requests' tokens together, and the finished requests."""
        tokens, done = 0, list[int]()
        while steps and len(self._left):
            taken = self._taken(steps) if self._ahead is None else self._ahead[:steps]
            self._ahead = None
            steps -= len(taken)
            self._drawn = self._drawn[taken.size :]
            tokens += int(taken[-1].sum())
            self._left = self._left - taken[-1]
            goes_on = self._left > 0
            if not goes_on.all():
                done += self._requests[~goes_on].tolist()
                self._requests, self._left = self._requests[goes_on], self._left[goes_on]
        return tokens, done

    def _taken(self, passes: int) -> IntArray:
        """Tokens of each request by the end of each of so many passes, or of fewer if one is done.

        An array (passes, requests). Draws are made ahead: they are the same in whatever portions.
        """
        count = len(self._left)
        missing = passes * count - len(self._drawn)
        if missing > 0:
            more = self._speculation.draw(max(missing, DRAWN_AT_ONCE), self._rng)
            self._drawn = np.concatenate([self._drawn, more])
        each = self._drawn[: passes * count].reshape(passes, count)
        taken = np.minimum(np.cumsum(each, axis=0), self._left)
        ended = (taken == self._left).any(axis=1)
        return taken[: 1 + int(np.argmax(ended))] if ended[-1] else taken
