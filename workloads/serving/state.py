"""State of a replica in the middle of a run: its clock, its requests, and what it records."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from topologies.arrays import FloatArray, IntArray
from workloads.serving.batching import Batching
from workloads.serving.profile import Profile
from workloads.serving.requests import Requests
from workloads.serving.served import Served
from workloads.serving.speculation import Speculation

DRAWN_AT_ONCE = 4096
"""Fewest draws of accepted proposals that are made at once."""


class Lockstep:
    """Decoding in which all requests advance by one token a pass, so that the next end is known."""

    width = 1  # tokens of one request that a pass of the model works on

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
        """Tokens that each of the next passes gives to all requests together, int64 (passes,)."""
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


Batch = Lockstep | Speculating
"""Decoding requests, and the tokens that each still has to generate."""


@dataclass
class Prompt:
    """An admitted prompt that is processed in pieces.

    ``tokens``: tokens of the prompt whose keys and values are cached so far.
    """

    request: int
    tokens: int


@dataclass
class State:
    """A replica in the middle of a run.

    ``planned_s``: start of the last iteration, at which an overlapped scheduler planned the next
        one [s].
    ``next_arrival``: first request that the scheduler has not seen.
    ``waiting``: requests that it has seen and not admitted, first come, first served.
    ``unseen_passes``: passes of decode since the scheduler last looked for new requests.
    ``gathering_passes``: passes of decode for which the first waiting prompt has been held back.
    ``cached_tokens, reserved_tokens, peak_tokens``: tokens in the cache now, those for which
        admitted requests have reserved room, and the most that were in the cache.
    ``first_token_s, end_s`` (requests,): times of the first and the last token of each request, NaN
        before [s].
    ``gaps``: mean time between tokens of each stretch of decoding [s], and how many tokens it
        covers.
    ``owed_s``: time in which decode waited for prompts since its last pass [s]; part of its next
        gap.
    ``batch_sum``: requests that decode, summed over ``decode_steps``.
    ``decode_steps, iterations``: iterations in which requests decode, and all.
    """

    profile: Profile
    batching: Batching
    requests: Requests
    batch: Batch
    speculation: Speculation | None = None
    now_s: float = 0.0
    planned_s: float = 0.0
    next_arrival: int = 0
    waiting: deque[int] = field(default_factory=deque)
    unseen_passes: int = 0
    gathering_passes: int = 0
    prompts: list[Prompt] = field(default_factory=list)
    cached_tokens: int = 0
    reserved_tokens: int = 0
    peak_tokens: int = 0
    closed: bool = False
    sent: int = 0
    first_token_s: FloatArray = field(init=False)
    end_s: FloatArray = field(init=False)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    owed_s: float = 0.0
    busy_s: float = 0.0
    batch_sum: float = 0.0
    decode_steps: int = 0
    iterations: int = 0

    def __post_init__(self) -> None:
        self.first_token_s = np.full(len(self.requests), np.nan)
        self.end_s = np.full(len(self.requests), np.nan)

    @cached_property
    def most_cached(self) -> list[int]:
        """Tokens of each request in the cache before its last one: a list, read one by one."""
        tokens: list[int] = (self.requests.prompt + self.requests.output - 1).tolist()
        return tokens

    def pause_decode(self, took_s: float) -> None:
        """Let time pass in which decode waits for prompts."""
        self.now_s += took_s
        self.busy_s += took_s
        self.owed_s += took_s
        self.iterations += 1

    def cache(self, tokens: int) -> None:
        """Add tokens to the cache."""
        self.cached_tokens += tokens
        self.peak_tokens = max(self.peak_tokens, self.cached_tokens)

    def count(self, batch: int, steps: int) -> None:
        """Count iterations, and those in which requests decode."""
        self.iterations += steps
        if batch:
            self.batch_sum += batch * steps
            self.decode_steps += steps

    def record_gaps(self, token_s: float, tokens: int, batch: int) -> None:
        """Record the time between tokens; the first of each request also waited for prompts."""
        if self.owed_s:
            self.gaps.append((token_s + self.owed_s, batch))
            tokens -= batch
            self.owed_s = 0.0
        if tokens:
            self.gaps.append((token_s, tokens))

    def record_first_token(self, request: int) -> None:
        """Note the first token of a request, and let it decode the rest of its output."""
        prompt, output = int(self.requests.prompt[request]), int(self.requests.output[request])
        self.first_token_s[request] = self.now_s
        if output == 1:
            self.peak_tokens = max(self.peak_tokens, self.cached_tokens + prompt)
            self.record_end(request)
            return
        self.batch.add(request, output - 1)
        self.cache(prompt)

    def release(self, done: list[int]) -> None:
        """Drop the caches of requests that are done; a request's last token was never cached."""
        for request in done:
            tokens = int(self.requests.prompt[request] + self.requests.output[request])
            self.cached_tokens -= tokens - 1
            self.record_end(request)

    def record_end(self, request: int) -> None:
        """Note the end of a request and free its room; in a closed loop its user sends the next."""
        self.end_s[request] = self.now_s
        tokens = int(self.requests.prompt[request] + self.requests.output[request])
        self.reserved_tokens -= tokens
        if self.closed and self.sent < len(self.requests):
            self.requests.arrival_s[self.sent] = self.now_s
            self.sent += 1

    def outcome(self) -> Served:
        """Return what was recorded, at the end of a run."""
        gaps = np.array(self.gaps) if self.gaps else np.zeros((0, 2))
        return Served(
            requests=self.requests,
            first_token_s=self.first_token_s,
            end_s=self.end_s,
            gap_s=gaps[:, 0],
            gap_count=gaps[:, 1],
            busy_s=self.busy_s,
            end_of_run_s=self.now_s,
            kv_peak_tokens=self.peak_tokens,
            batch_mean=self.batch_sum / self.decode_steps if self.decode_steps else 0.0,
            iterations=self.iterations,
            request_s=self.profile.request_s,
        )
