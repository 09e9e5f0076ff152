"""One replica at token level: continuous batching of prefill and decode, iteration by iteration.

Between two events (an arrival that can be admitted, an end, a full bucket) an iteration's time is
affine in the cached tokens: such a stretch is one step, with the times of each.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from topologies.support.arrays import BoolArray, FloatArray, IntArray
from topologies.support.errors import InputError
from workloads.serving.batching import FIRST, WHOLE, Batching
from workloads.serving.profile import Profile
from workloads.serving.requests import Requests
from workloads.serving.served import Served
from workloads.serving.speculation import Speculation

DRAWN_AT_ONCE = 4096  # fewest draws of accepted proposals that are made at once


class Lockstep:
    """Decoding in which all requests advance by one token a pass, so that the next end is known."""

    width = 1  # tokens of one request that a pass of the model works on

    def __init__(self) -> None:
        self._step = 0
        self._last: dict[int, int] = {}
        # Heaps, in which requests that ended or gave way stay until they are the first: a search
        # for them would take as long as the batch
        self._ends: list[tuple[int, int]] = []
        # By the step less the tokens in the cache, which stays, with the request and its end
        self._held: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self._last)

    def add(self, request: int, tokens: int, most: int) -> None:
        """Add a request with tokens to generate still, and the most that it will have cached."""
        last = self._last[request] = self._step + tokens
        heapq.heappush(self._ends, (last, request))
        heapq.heappush(self._held, (last - most, request, last))

    def steps(self) -> int:
        """Passes until the next request is done."""
        while self._last.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        return self._ends[0][0] - self._step

    def longest(self) -> int:
        """Most tokens that one request has in the cache."""
        while self._last.get(self._held[0][1]) != self._held[0][2]:
            heapq.heappop(self._held)
        return self._step - self._held[0][0]

    def drop(self, request: int) -> int:
        """Take out a request that gives way; return the tokens that it still has to generate."""
        return self._last.pop(request) - self._step

    def advance(self, steps: int) -> tuple[int, list[int]]:
        """Make some passes, and return the tokens of all requests and the finished requests."""
        tokens = len(self) * steps
        self._step += steps
        done = []
        while self._last and self.steps() <= 0:
            done.append(heapq.heappop(self._ends)[1])
            del self._last[done[-1]]
        return tokens, done


class Speculating:
    """Decoding in which a pass gives each request its accepted proposals and one more token."""

    def __init__(self, speculation: Speculation, rng: np.random.Generator) -> None:
        self.width = speculation.tokens + 1
        self._speculation, self._rng = speculation, rng
        self._requests = np.empty(0, np.int64)
        self._left = np.empty(0, np.int64)
        self._most = np.empty(0, np.int64)
        self._drawn = np.empty(0, np.int64)
        self._ahead: IntArray | None = None

    def __len__(self) -> int:
        return len(self._left)

    def add(self, request: int, tokens: int, most: int) -> None:
        """Add a request with tokens to generate still, and the most that it will have cached."""
        self._ahead = None
        self._requests = np.append(self._requests, request)
        self._left = np.append(self._left, tokens)
        self._most = np.append(self._most, most)

    def steps(self) -> int:
        """Passes until a request may be done, which is 1, as any pass may be a request's last."""
        return 1

    def longest(self) -> int:
        """Most tokens that one request has in the cache."""
        return int((self._most - self._left).max())

    def drop(self, request: int) -> int:
        """Take out a request that gives way; return the tokens that it still has to generate."""
        kept = self._requests != request
        left = int(self._left[~kept][0])
        self._keep(kept)
        return left

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
                self._keep(unfinished)
        return tokens, done

    def _keep(self, kept: BoolArray) -> None:
        self._ahead = None
        self._requests, self._left = self._requests[kept], self._left[kept]
        self._most = self._most[kept]

    def _taken(self, passes: int) -> IntArray:
        """Tokens of each request by the end of each pass, int64 (passes, requests)."""
        # Fewer passes if a request is done earlier. Draws are made in advance and used in order, so
        # that results do not depend on how many passes are asked for at once.
        count = len(self._left)
        missing = passes * count - len(self._drawn)
        if missing > 0:
            more = self._speculation.draw(max(missing, DRAWN_AT_ONCE), self._rng)
            self._drawn = np.concatenate([self._drawn, more])
        each = self._drawn[: passes * count].reshape(passes, count)
        taken = np.minimum(np.cumsum(each, axis=0), self._left)
        ended = (taken == self._left).any(axis=1)
        return taken[: 1 + int(np.argmax(ended))] if ended[-1] else taken


Batch = Lockstep | Speculating  # decoding requests, and the tokens that each still has to generate


@dataclass
class State:
    """A replica in the middle of a run."""

    profile: Profile
    batching: Batching
    requests: Requests
    batch: Batch
    speculation: Speculation | None = None
    now_s: float = 0.0
    # Start of the last iteration, at which an overlapped scheduler planned the next one [s]
    planned_s: float = 0.0
    next_arrival: int = 0  # first request that the scheduler has not seen
    # Requests that it has seen and not admitted, first come, first served
    waiting: deque[int] = field(default_factory=deque)
    unseen_passes: int = 0  # passes of decode since the scheduler last looked for new requests
    # Passes of decode for which the first waiting prompt has been held back
    gathering_passes: int = 0
    # Admitted prompts in pieces, with the tokens whose keys and values are cached so far
    prompts: dict[int, int] = field(default_factory=dict)
    # Admitted requests in their order, with the tokens of their prompts: those of one that gave way
    # hold what it had generated
    running: dict[int, int] = field(default_factory=dict)
    # Requests that gave way: tokens that they had generated, and when they last decoded [s]
    gone: dict[int, tuple[int, float]] = field(default_factory=dict)
    gave_way: bool = False  # whether a request gave way for the coming pass, so that none begins
    # cached_tokens, pieces_tokens, reserved_tokens, peak_tokens: tokens in the cache now, those of
    # prompts in pieces, which count when they are done, those of all that admitted requests will
    # have, and the most that were in the cache
    cached_tokens: int = 0
    pieces_tokens: int = 0
    reserved_tokens: int = 0
    peak_tokens: int = 0
    sent: int = sys.maxsize  # requests that users have sent; in a closed loop fewer than there are
    # first_token_s, end_s (requests,): times of the first and the last token of each request, NaN
    # before [s]
    first_token_s: FloatArray = field(init=False)
    end_s: FloatArray = field(init=False)
    # The requests as lists, as they are read one by one: their arrivals [s], tokens of their
    # prompts and outputs, and of both
    arrival_s: list[float] = field(init=False)
    prompt: list[int] = field(init=False)
    output: list[int] = field(init=False)
    whole: list[int] = field(init=False)
    # Mean time between tokens of each stretch of decoding [s], and how many tokens it covers
    gaps: list[tuple[float, float]] = field(default_factory=list)
    # Time in which decode waited for prompts since its last pass [s]; part of its next gap
    owed_s: float = 0.0
    # Times of the first tokens of requests that have had no pass of decode since [s]
    joined_s: list[float] = field(default_factory=list)
    # first_by_s (requests,): times at which replicas for prompts gave the first tokens [s]
    first_by_s: FloatArray | None = None
    busy_s: float = 0.0
    batch_sum: float = 0.0  # requests that decode, summed over ``decode_steps``
    # decode_steps, iterations: iterations in which requests decode, and all
    decode_steps: int = 0
    iterations: int = 0

    def __post_init__(self) -> None:
        self.first_token_s = np.full(len(self.requests), np.nan)
        self.end_s = np.full(len(self.requests), np.nan)
        self.arrival_s = self.requests.arrival_s.tolist()
        self.prompt, self.output = self.requests.prompt.tolist(), self.requests.output.tolist()
        self.whole = (self.requests.prompt + self.requests.output).tolist()

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

    def record_gaps(self, begin_s: float, token_s: float, tokens: int, batch: int) -> None:
        """Record the time between tokens of passes of decode that began at a time."""
        # The first token of each request also waited: for prompts, or since its prompt was done.
        waits = [(self.owed_s, batch - len(self.joined_s))]
        waits += [(begin_s - first_s, 1) for first_s in self.joined_s]
        for wait_s, waiting in waits:
            if wait_s > 0 and waiting:
                self.gaps.append((token_s + wait_s, waiting))
                tokens -= waiting
        self.owed_s, self.joined_s = 0.0, []
        if tokens:
            self.gaps.append((token_s, tokens))

    def prompt_tokens(self, request: int) -> int:
        """Tokens that a waiting request has processed before its next token."""
        return self.prompt[request] + self.gone.get(request, (0, 0.0))[0]

    @property
    def free_tokens(self) -> int:
        """Tokens that the cache still holds after one pass of decode."""
        held = self.cached_tokens + self.pieces_tokens + len(self.batch) * self.batch.width
        held += len(self.running) * self.profile.state_tokens
        return self.profile.kv_tokens - held

    def make_room(self) -> None:
        """Make room for a pass of decode; the requests admitted last give way."""
        self.gave_way = False
        while self.batching.reserved < 1 and self.free_tokens < 0 and len(self.running) > 1:
            self.gave_way = True
            request, prompt = self.running.popitem()
            whole = self.whole[request]
            self.reserved_tokens -= whole
            self.waiting.appendleft(request)
            if self.prompts.pop(request, None) is not None:
                self.pieces_tokens -= prompt
                continue
            left = self.batch.drop(request)
            self.cached_tokens -= whole - 1 - left
            self.gone[request] = whole - self.prompt[request] - left, self.now_s

    def record_first_token(self, request: int) -> None:
        """Note the first token of a request, and let it decode the rest of its output."""
        prompt, output = self.prompt_tokens(request), self.output[request]
        first_s = self.now_s if self.first_by_s is None else float(self.first_by_s[request])
        if request in self.gone:
            generated, decoded_s = self.gone.pop(request)
            output -= generated
            self.gaps.append((self.now_s - decoded_s, 1))
        else:
            self.first_token_s[request] = first_s
        if output == 1:
            self.peak_tokens = max(self.peak_tokens, self.cached_tokens + prompt)
            self.record_end(request)
            return
        self.joined_s.append(first_s)
        self.batch.add(request, output - 1, self.whole[request] - 1)
        self.cache(prompt)

    def release(self, done: list[int]) -> None:
        """Drop the caches of requests that are done; a request's last token was never cached."""
        for request in done:
            self.cached_tokens -= self.whole[request] - 1
            self.record_end(request)

    def record_end(self, request: int) -> None:
        """Note the end of a request and free its room; in a closed loop its user sends the next."""
        self.end_s[request] = self.now_s
        self.reserved_tokens -= self.whole[request]
        del self.running[request]
        if self.sent < len(self.requests):
            self.arrival_s[self.sent] = self.requests.arrival_s[self.sent] = self.now_s
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


def look_for_arrivals(state: State) -> None:
    """Append the requests that the scheduler sees by now to those that wait."""
    # A scheduler that polls looks only after every few passes of decode; one that plans an
    # iteration during the one before sees what came before that began. A request that answers the
    # end of another at that very instant is not seen yet.
    arrival = state.arrival_s
    busy = bool(len(state.batch) or state.prompts)
    if busy and state.unseen_passes % state.batching.poll_passes:
        return
    state.unseen_passes = 0
    ahead = busy and state.batching.overlapped
    seen_until_s = math.nextafter(state.planned_s, -math.inf) if ahead else state.now_s
    while state.next_arrival < len(arrival) and arrival[state.next_arrival] <= seen_until_s:
        state.waiting.append(state.next_arrival)
        state.next_arrival += 1


def admissible(state: State) -> bool:
    """Return whether a slot and the cache have room for the first request that waits."""
    profile, count = state.profile, len(state.running)
    most = min(state.batching.slots, profile.most_requests)
    if not state.waiting or count >= most or state.gave_way:
        return False
    request, share = state.waiting[0], state.batching.reserved
    states = profile.state_tokens
    room = profile.kv_tokens - state.reserved_tokens - state.whole[request]
    room -= (count + 1) * states
    if share == 1:
        return room >= 0
    free = state.free_tokens - state.prompt_tokens(request) - states
    return (1 - share) * free + share * room >= 0


def admit(state: State) -> int:
    """Reserve the cache of the first request that waits, and return the request."""
    request = state.waiting.popleft()
    state.running[request] = state.prompt_tokens(request)
    state.reserved_tokens += state.whole[request]
    return request


def held_back(state: State) -> bool:
    """Return whether prompts wait for more of them, so that fewer iterations are mixed."""
    # For ``gather_passes`` of decode at most, until an iteration would have ``gather_tokens``.
    batching = state.batching
    if state.gathering_passes >= batching.gather_passes or not len(state.batch):
        return False
    prompts = sum(state.prompt_tokens(request) for request in state.waiting)
    return len(state.batch) * state.batch.width + prompts < batching.gather_tokens


def most_passes(state: State) -> int | None:
    """Return the passes of decode until a held-back prompt runs; None without such a prompt."""
    if not state.batching.gather_passes or not admissible(state) or not held_back(state):
        return None
    return state.batching.gather_passes - state.gathering_passes


def stops_for_arrivals(state: State) -> bool:
    """Return whether a stretch of decode ends where the scheduler sees the next request."""
    # With all slots taken it need not, but one that polls may see the request before a slot is
    # free.
    has_slot = len(state.batch) < state.batching.slots
    return state.next_arrival < len(state.arrival_s) and (
        has_slot or state.batching.poll_passes > 1
    )


def passes_until_seen(state: State, passes: int) -> int:
    """Return the passes after which one that arrives in the last of them is seen."""
    # An overlapped scheduler needs one pass more, unless the request is there when the first
    # begins; one that polls goes on to its next look.
    poll, ahead = state.batching.poll_passes, state.batching.overlapped
    is_there = state.arrival_s[state.next_arrival] < state.now_s
    passes += ahead and not is_there
    return -(-(state.unseen_passes + passes) // poll) * poll - state.unseen_passes


def passes_until(seconds: float, once: float, growth: float) -> int:
    """Fewest iterations, at least one, whose end is not before ``seconds``."""
    if growth <= 0:
        return max(1, math.ceil(seconds / once))
    slope = once - growth / 2
    steps = (-slope + math.sqrt(slope * slope + 2 * growth * max(seconds, 0.0))) / growth
    return max(1, math.ceil(steps - 1e-9))


def serve(
    profile: Profile,
    requests: Requests,
    batching: Batching | None = None,
    *,
    speculation: Speculation | None = None,
    seed: int = 0,
    first_by_s: FloatArray | None = None,
    users: int | None = None,
) -> Served:
    """Serve all requests on one replica, first come, first served."""
    # Admitted when a slot is free and the cache has room for prompt and whole output; prompts go
    # before decoding, without what a prefix cache holds. Other replicas may have given first
    # tokens. In a closed loop a number of ``users`` send the requests, each the next one at an end.
    if users is not None:
        if users < 1:
            raise InputError(f"a concurrency of {users} requests; it must be at least 1.")
        first = np.arange(len(requests)) < users
        requests = replace(requests, arrival_s=np.where(first, 0.0, np.inf))
    batch: Batch = Lockstep()
    if speculation is not None:
        batch = Speculating(speculation, np.random.default_rng(seed))
        profile = speculation.beside(profile)
    state = State(profile, batching or Batching(), requests, batch, speculation)
    state.first_by_s, state.sent = first_by_s, users or sys.maxsize
    largest = int((requests.prompt + requests.output).max(initial=0)) + profile.state_tokens
    if largest > profile.kv_tokens:
        raise InputError(
            f"a request of {largest:,} tokens does not fit: the cache of {profile.name} holds "
            f"{profile.kv_tokens:,}. Use more chips or shorter requests."
        )
    while _step(state):
        pass
    return state.outcome()


def _step(state: State) -> bool:
    """Advance to the next event; False when nothing is left to do."""
    look_for_arrivals(state)
    state.make_room()
    waiting = admissible(state)
    if waiting and not state.batching.chunk_tokens:
        _prefill(state, admit(state))
        return True
    if state.prompts or (waiting and not held_back(state)):
        begin_s, state.unseen_passes, state.gathering_passes = state.now_s, 0, 0
        _with_prompts(state)
        state.planned_s = begin_s
        return True
    if len(state.batch):
        before = state.decode_steps
        _decode(state)
        passes = state.decode_steps - before
        state.unseen_passes += passes
        state.gathering_passes += passes if waiting else 0
        return True
    if state.next_arrival < len(state.arrival_s):
        state.now_s = state.arrival_s[state.next_arrival]
        return True
    return False


def _prefill(state: State, request: int) -> None:
    if state.batching.arrived:
        state.record_first_token(request)
        return
    cached_before = state.requests.held(request)
    size = state.batching.padded(state.prompt[request] - cached_before)
    took_s = state.profile.prefill_s(size, cached_before)
    if state.speculation is not None:
        took_s += state.speculation.prefill_s(size, cached_before)
    state.pause_decode(took_s)
    state.record_first_token(request)


def _with_prompts(state: State) -> None:
    """Run one iteration with prompts, or pieces of them, as far as they fit."""
    profile = state.profile
    batch = 0 if state.batching.prompts == FIRST else len(state.batch)
    verified = batch * state.batch.width
    taken, extra_s = _taken_tokens(state, max(1, state.batching.chunk_tokens - verified))
    linear = profile.prompt_linear if taken else profile.linear
    took_s = linear(verified + taken) + extra_s
    if batch:
        took_s += profile.mixed_attention_s(batch, state.cached_tokens)
    if state.speculation is not None:
        took_s += state.speculation.draft_s(profile, batch, state.cached_tokens) if batch else 0.0
        took_s += state.speculation.prefill_s(taken, 0) if taken else 0.0
    if batch or not len(state.batch):
        state.release(_advance(state, took_s, 1))
    else:
        state.pause_decode(took_s)
    for request in [each for each, had in state.prompts.items() if had >= state.running[each]]:
        del state.prompts[request]
        state.pieces_tokens -= state.running[request]
        state.record_first_token(request)


def _taken_tokens(state: State, room: int) -> tuple[int, float]:
    """Prompt tokens of an iteration, and the time that they add to its linear part [s]."""
    taken, extra_s = 0, 0.0
    for request in state.prompts:
        tokens, more_s = _take(state, request, room - taken)
        taken, extra_s = taken + tokens, extra_s + more_s
    whole = state.batching.prompts == WHOLE
    while taken < room and admissible(state):
        request = state.waiting[0]
        cached_before = state.requests.held(request)
        if whole and taken and taken + state.prompt_tokens(request) - cached_before > room:
            break
        state.prompts[admit(state)] = cached_before
        state.pieces_tokens += state.running[request]
        tokens, more_s = _take(state, request, room - taken)
        taken, extra_s = taken + tokens, extra_s + more_s
    return taken, extra_s


def _take(state: State, request: int, room: int) -> tuple[int, float]:
    """Add to an iteration what fits of a prompt; return its tokens and their extra time [s]."""
    before = state.prompts[request]
    tokens = state.running[request] - before
    if state.batching.prompts != WHOLE:
        tokens = min(tokens, room)
    state.prompts[request] += tokens
    return tokens, state.profile.prefill_extra_s(tokens, before)


def _decode(state: State) -> None:
    """Decode until a request ends, one arrives that could be admitted, or the bucket is full."""
    if isinstance(state.batch, Speculating) and state.speculation is not None:
        state.release(_verify(state, state.batch, state.speculation))
        return
    batch, profile = len(state.batch), state.profile
    rows, cached, growing, steps = _read_by_decode(state)
    steps = min(steps, state.batch.steps())
    pass_s = profile.decode_s(rows, cached)
    growth_s = profile.growth_s(rows, cached, growing)
    if stops_for_arrivals(state):
        until_s = state.arrival_s[state.next_arrival] - state.now_s
        if until_s < float("inf"):
            until_s = max(until_s, 0.0)
            steps = min(steps, passes_until_seen(state, passes_until(until_s, pass_s, growth_s)))
    steps = min(steps, most_passes(state) or steps)
    if state.batching.reserved < 1:
        steps = min(steps, 1 + max(0, state.free_tokens) // batch)
    state.planned_s = state.now_s + (steps - 1) * pass_s + growth_s * (steps - 1) * (steps - 2) / 2
    took_s = steps * pass_s + growth_s * steps * (steps - 1) / 2
    state.release(_advance(state, took_s, steps))


def _verify(state: State, batch: Speculating, speculation: Speculation) -> list[int]:
    """Verify proposals until one that could be admitted arrives, or requests end; returns these."""
    # A pass has its own time: the cache that it reads grows by the tokens accepted before.
    requests, arrivals = len(batch), state.arrival_s
    rows, read, _, _ = _read_by_decode(state)
    tokens = batch.ahead()
    if state.batching.buckets:  # a pass may fill the bucket that it reads, so passes go one by one
        tokens = tokens[:1]
    cached = read + (np.cumsum(tokens) - tokens).astype(float)
    took_s = speculation.step_s(state.profile, rows, cached)
    ends_s = np.cumsum(np.append(state.now_s, took_s))[1:]
    if stops_for_arrivals(state):
        begun = int(np.searchsorted(ends_s, arrivals[state.next_arrival])) + 1
        seen = passes_until_seen(state, begun)
        tokens, took_s, ends_s = tokens[:seen], took_s[:seen], ends_s[:seen]
    most = most_passes(state)
    if state.batching.reserved < 1:
        room = state.free_tokens + requests * batch.width
        most = min(most or len(tokens), max(1, int((np.cumsum(tokens) <= room).sum())))
    tokens, took_s, ends_s = tokens[:most], took_s[:most], ends_s[:most]
    state.planned_s = float(ends_s[-2]) if len(ends_s) > 1 else state.now_s
    verified, done = batch.advance(len(tokens))
    begin_s, state.now_s = state.now_s, float(ends_s[-1])
    state.busy_s = float(np.cumsum(np.append(state.busy_s, took_s))[-1])
    state.cache(verified)
    state.count(requests, len(tokens))
    token_s = took_s / (tokens / requests)
    state.record_gaps(begin_s, float(token_s[0]), int(tokens[0]), requests)
    state.gaps.extend(zip(token_s[1:].tolist(), tokens[1:].tolist(), strict=True))
    return done


def _read_by_decode(state: State) -> tuple[int, int, int, int]:
    """Return a pass's requests, the tokens it reads, their growth, and the passes it holds for."""
    # All cached tokens, or in a program compiled for buckets the longest request's bucket for every
    # one, until that outgrows it; one of stated slots runs empty ones too (``_pad_helper`` of its
    # ``model_wrapper.py``).
    batch, sizes = len(state.batch), state.batching.buckets
    if not sizes:
        return batch, state.cached_tokens, batch, sys.maxsize
    longest = state.batch.longest()
    size = state.batching.padded(longest + state.batching.fills_programs)
    batch = state.batching.rows(batch)
    if longest >= sizes[-1]:
        return batch, batch * longest, batch, sys.maxsize
    return batch, batch * size, 0, size - longest


def _advance(state: State, took_s: float, steps: int) -> list[int]:
    """Let some passes of decode go by, and return the requests that are done."""
    batch, begin_s = len(state.batch), state.now_s
    tokens, done = state.batch.advance(steps)
    state.now_s += took_s
    state.busy_s += took_s
    state.cache(tokens)
    state.count(batch, steps)
    if batch:
        state.record_gaps(begin_s, took_s / (tokens / batch), tokens, batch)
    return done
