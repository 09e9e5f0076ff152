"""Requests that decode together: in lockstep, or each as far as its proposals are accepted."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from workloads.serving.speculation import Speculation


class Batch(Protocol):
    """Requests that decode, and the tokens that each has to go."""

    width: int
    """Tokens of one request that a pass of the model works on."""

    def __len__(self) -> int: ...

    def add(self, request: int, tokens: int) -> None:
        """Let a request join with so many tokens to go."""

    def steps(self) -> int:
        """Passes until the next request may be done."""

    def left(self) -> Iterator[tuple[int, int]]:
        """Requests, and the tokens that each has to go."""

    def advance(self, steps: int) -> tuple[int, list[int]]:
        """Take so many passes; tokens of all requests together, and requests that are done."""


class Lockstep:
    """All requests advance by one token a pass, so the next end is known."""

    width = 1

    def __init__(self) -> None:
        self._step = 0
        self._ends: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, request: int, tokens: int) -> None:
        """Let a request join with so many tokens to go."""
        heapq.heappush(self._ends, (self._step + tokens, request))

    def steps(self) -> int:
        """Passes until the next request is done."""
        return self._ends[0][0] - self._step

    def left(self) -> Iterator[tuple[int, int]]:
        """Requests, and the tokens that each has to go."""
        return ((request, last - self._step) for last, request in self._ends)

    def advance(self, steps: int) -> tuple[int, list[int]]:
        """Take so many passes; tokens of all requests together, and requests that are done."""
        tokens = len(self._ends) * steps
        self._step += steps
        done = []
        while self._ends and self._ends[0][0] <= self._step:
            done.append(heapq.heappop(self._ends)[1])
        return tokens, done


class Speculating:
    """Each request advances by the proposals that are accepted, and one token more.

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
        self._left: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._left)

    def add(self, request: int, tokens: int) -> None:
        """Let a request join with so many tokens to go."""
        self._left[request] = tokens

    def steps(self) -> int:
        """Passes until the next request may be done: the next may be the last."""
        return 1

    def left(self) -> Iterator[tuple[int, int]]:
        """Requests, and the tokens that each has to go."""
        return iter(self._left.items())

    def advance(self, steps: int) -> tuple[int, list[int]]:
        """Take so many passes; tokens of all requests together, and requests that are done."""
        tokens, done = 0, []
        for _ in range(steps):
            drawn = self._speculation.draw(len(self._left), self._rng)
            for (request, left), several in zip(list(self._left.items()), drawn, strict=True):
                taken = min(left, int(several))
                tokens += taken
                if taken == left:
                    done.append(request)
                    del self._left[request]
                else:
                    self._left[request] = left - taken
        return tokens, done
