"""Requests that decode together: in lockstep, or each by the number of its accepted proposals."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from topologies.arrays import IntArray
from workloads.serving.speculation import Speculation

DRAWN_AT_ONCE = 4096
"""Fewest draws of accepted proposals that are made at once."""


class Batch(Protocol):
    """Decoding requests, and the tokens that each still has to generate."""

    width: int
    """Tokens of one request that a pass of the model works on."""

    def __len__(self) -> int: ...

    def add(self, request: int, tokens: int) -> None:
        """Add a request that still has these tokens to generate."""

    def steps(self) -> int:
        """Passes until the next request may be done."""

    def left(self) -> Iterator[tuple[int, int]]:
        """Requests, and the tokens that each still has to generate."""

    def advance(self, steps: int) -> tuple[int, list[int]]:
        """Make some passes, and return the tokens of all requests and the finished requests."""


class Lockstep:
    """Decoding in which all requests advance by one token a pass, so that the next end is known."""

    width = 1

    def __init__(self) -> None:
        self._step = 0
        self._ends: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, request: int, tokens: int) -> None:
        """Add a request that still has these tokens to generate."""
        heapq.heappush(self._ends, (self._step + tokens, request))

    def steps(self) -> int:
        """Passes until the next request is done."""
        return self._ends[0][0] - self._step

    def left(self) -> Iterator[tuple[int, int]]:
        """Requests, and the tokens that each still has to generate."""
        return ((request, last - self._step) for last, request in self._ends)

    def advance(self, steps: int) -> tuple[int, list[int]]:
        """Make some passes, and return the tokens of all requests and the finished requests."""
        tokens = len(self._ends) * steps
        self._step += steps
        done = []
        while self._ends and self._ends[0][0] <= self._step:
            done.append(heapq.heappop(self._ends)[1])
        return tokens, done


class Speculating:
    """Decoding in which each request advances by its accepted proposals and one more token a pass.

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
        """Add a request that still has these tokens to generate."""
        self._ahead = None
        self._requests = np.append(self._requests, request)
        self._left = np.append(self._left, tokens)

    def steps(self) -> int:
        """Passes until a request may be done, which is 1, as any pass may be a request's last."""
        return 1

    def left(self) -> Iterator[tuple[int, int]]:
        """Requests, and the tokens that each still has to generate."""
        return zip(self._requests.tolist(), self._left.tolist(), strict=True)

    def ahead(self) -> IntArray:
        """Tokens that each of the next passes gives to all requests together, int64 (passes,).

        No request is done before the last of these passes.
        """
        likely = int(self._left.min() / self._speculation.expected_tokens)
        self._ahead = self._taken(likely + 1)
        together: IntArray = self._ahead.sum(axis=1)
        together[1:] -= together[:-1].copy()
        return together

    def advance(self, steps: int) -> tuple[int, list[int]]:
        """Make some passes, and return the tokens of all requests and the finished requests."""
        tokens, done = 0, list[int]()
        while steps and len(self._left):
            taken = self._taken(steps) if self._ahead is None else self._ahead[:steps]
            self._ahead = None
            steps -= len(taken)
            self._drawn = self._drawn[taken.size :]
            tokens += int(taken[-1].sum())
            self._left = self._left - taken[-1]
            unfinished = self._left > 0
            if not unfinished.all():
                done += self._requests[~unfinished].tolist()
                self._requests, self._left = self._requests[unfinished], self._left[unfinished]
        return tokens, done

    def _taken(self, passes: int) -> IntArray:
        """Tokens of each request by the end of each pass, int64 (passes, requests).

        There are fewer passes if a request is done earlier. Draws are made in advance and used in
        order, so that results do not depend on how many passes are asked for at once.
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
