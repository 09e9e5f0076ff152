"""One replica at token level: continuous batching of prefill and decode, iteration by iteration.

Between two events (an arrival that can be admitted, an end, a full bucket) the batch decodes the
same requests, and an iteration's time is affine in the cached tokens. Such a stretch is one step
here, with the times that its iterations have one by one.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np

from topologies.errors import InputError
from workloads.serving.batching import FIRST, WHOLE, Batching
from workloads.serving.profile import Profile
from workloads.serving.requests import Requests
from workloads.serving.served import Served
from workloads.serving.speculation import Speculation
from workloads.serving.state import Lockstep, Prompt, Speculating, State


def look_for_arrivals(state: State) -> None:
    """Append the requests that the scheduler sees by now to those that wait.

    While it is busy, a scheduler that polls looks only after every few passes of decode, and one
    that plans an iteration during the one before sees what had arrived before that one began. A
    request that answers the end of another, at that very instant, is not seen yet.
    """
    arrival = state.requests.arrival_s
    busy = bool(len(state.batch) or state.prompts)
    if busy and state.unseen_passes % state.batching.poll_passes:
        return
    state.unseen_passes = 0
    ahead = busy and state.batching.overlapped
    seen_until_s = np.nextafter(state.planned_s, -np.inf) if ahead else state.now_s
    while state.next_arrival < len(arrival) and arrival[state.next_arrival] <= seen_until_s:
        state.waiting.append(state.next_arrival)
        state.next_arrival += 1


def admissible(state: State) -> bool:
    """Return whether a slot and the cache have room for the first request that waits."""
    if not state.waiting or len(state.batch) + len(state.prompts) >= state.batching.slots:
        return False
    request = state.waiting[0]
    tokens = int(state.requests.prompt[request] + state.requests.output[request])
    return state.reserved_tokens + tokens <= state.profile.kv_tokens


def admit(state: State) -> int:
    """Reserve the cache of the first request that waits, and return the request."""
    request = state.waiting.popleft()
    state.reserved_tokens += int(state.requests.prompt[request] + state.requests.output[request])
    return request


def held_back(state: State) -> bool:
    """Return whether prompts wait for more of them, so that fewer iterations are mixed.

    They wait for ``gather_passes`` of decode at most, and no longer once the iteration would have
    ``gather_tokens``. Without anything to decode there is nothing to wait for.
    """
    batching = state.batching
    if state.gathering_passes >= batching.gather_passes or not len(state.batch):
        return False
    prompts = sum(int(state.requests.prompt[request]) for request in state.waiting)
    return len(state.batch) * state.batch.width + prompts < batching.gather_tokens


def most_passes(state: State) -> int | None:
    """Return the passes of decode until a held-back prompt runs; None without such a prompt."""
    if not state.batching.gather_passes or not admissible(state) or not held_back(state):
        return None
    return state.batching.gather_passes - state.gathering_passes


def stops_for_arrivals(state: State) -> bool:
    """Return whether a stretch of decode ends where the scheduler sees the next request.

    With all slots taken it need not, but a scheduler that polls may see the request before a slot
    is free, and then need not wait for another look.
    """
    has_slot = len(state.batch) < state.batching.slots
    return state.next_arrival < len(state.requests) and (has_slot or state.batching.poll_passes > 1)


def passes_until_seen(state: State, passes: int) -> int:
    """Return the passes after which the scheduler sees a request that arrives during the last one.

    An overlapped scheduler needs one pass more, unless the request is there already: it is seen
    when the first pass begins. One that polls goes on to its next look.
    """
    poll, ahead = state.batching.poll_passes, state.batching.overlapped
    is_there = state.requests.arrival_s[state.next_arrival] < state.now_s
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
) -> Served:
    """Serve all requests on one replica, first come, first served.

    A request is admitted when a slot is free and the cache has room for its prompt and its whole
    output. Waiting prompts go before decoding. The part of a prompt that a prefix cache
    holds is not processed.
    """
    return _serve(_state(profile, requests, batching, speculation, seed))


def _state(
    profile: Profile,
    requests: Requests,
    batching: Batching | None,
    speculation: Speculation | None,
    seed: int,
) -> State:
    if speculation is None:
        return State(profile, batching or Batching(), requests, Lockstep())
    progress = Speculating(speculation, np.random.default_rng(seed))
    with_draft = speculation.beside(profile)
    return State(with_draft, batching or Batching(), requests, progress, speculation)


def closed_loop(
    profile: Profile,
    requests: Requests,
    concurrency: int,
    batching: Batching | None = None,
    *,
    speculation: Speculation | None = None,
    seed: int = 0,
) -> Served:
    """Serve requests of a constant number of users, each of whom sends the next one at an end.

    The arrival times of the requests are replaced by the ends that bring them; the other parameters
    are those of :func:`serve`. Raises InputError for a concurrency below 1, and as :func:`serve`.
    """
    if concurrency < 1:
        raise InputError(f"a concurrency of {concurrency} requests; it must be at least 1.")
    arrival = np.full(len(requests), np.inf)
    arrival[:concurrency] = 0.0
    timed = replace(requests, arrival_s=arrival)
    state = _state(profile, timed, batching, speculation, seed)
    state.closed, state.sent = True, min(concurrency, len(requests))
    return _serve(state)


def _serve(state: State) -> Served:
    profile, requests = state.profile, state.requests
    largest = int((requests.prompt + requests.output).max(initial=0))
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
    if state.next_arrival < len(state.requests):
        state.now_s = float(state.requests.arrival_s[state.next_arrival])
        return True
    return False


def _prefill(state: State, request: int) -> None:
    if state.batching.arrived:
        state.record_first_token(request)
        return
    cached_before = state.requests.held(request)
    size = state.batching.padded(int(state.requests.prompt[request]) - cached_before)
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
        took_s += profile.attention_s(batch, state.cached_tokens)
    if state.speculation is not None:
        took_s += state.speculation.draft_s(profile, batch, state.cached_tokens) if batch else 0.0
        took_s += state.speculation.prefill_s(taken, 0) if taken else 0.0
    if batch or not len(state.batch):
        state.release(_advance(state, took_s, 1))
    else:
        state.pause_decode(took_s)
    whole = state.requests.prompt
    done = [prompt for prompt in state.prompts if prompt.tokens >= whole[prompt.request]]
    state.prompts = [prompt for prompt in state.prompts if prompt.tokens < whole[prompt.request]]
    for prompt in done:
        state.record_first_token(prompt.request)


def _taken_tokens(state: State, room: int) -> tuple[int, float]:
    """Prompt tokens of an iteration, and the time that they add to its linear part [s]."""
    taken, extra_s = 0, 0.0
    for prompt in state.prompts:
        tokens, more_s = _take(state, prompt, room - taken)
        taken, extra_s = taken + tokens, extra_s + more_s
    whole = state.batching.prompts == WHOLE
    while taken < room and admissible(state):
        request = state.waiting[0]
        cached_before = state.requests.held(request)
        if whole and taken and taken + int(state.requests.prompt[request]) - cached_before > room:
            break
        state.prompts.append(Prompt(admit(state), cached_before))
        tokens, more_s = _take(state, state.prompts[-1], room - taken)
        taken, extra_s = taken + tokens, extra_s + more_s
    return taken, extra_s


def _take(state: State, prompt: Prompt, room: int) -> tuple[int, float]:
    """Add to an iteration what fits of a prompt; return its tokens and their extra time [s]."""
    before = prompt.tokens
    tokens = int(state.requests.prompt[prompt.request]) - before
    if state.batching.prompts != WHOLE:
        tokens = min(tokens, room)
    prompt.tokens += tokens
    return tokens, state.profile.prefill_extra_s(tokens, before)


def _decode(state: State) -> None:
    """Decode until a request ends, one arrives that could be admitted, or the bucket is full."""
    if isinstance(state.batch, Speculating) and state.speculation is not None:
        state.release(_verify(state, state.batch, state.speculation))
        return
    batch, profile = len(state.batch), state.profile
    cached, growing, steps = _read_by_decode(state)
    steps = min(steps, state.batch.steps())
    pass_s = profile.decode_s(batch, cached)
    growth_s = profile.growth_s(batch, cached, growing)
    if stops_for_arrivals(state):
        until_s = float(state.requests.arrival_s[state.next_arrival]) - state.now_s
        if until_s < float("inf"):
            until_s = max(until_s, 0.0)
            steps = min(steps, passes_until_seen(state, passes_until(until_s, pass_s, growth_s)))
    steps = min(steps, most_passes(state) or steps)
    state.planned_s = state.now_s + (steps - 1) * pass_s + growth_s * (steps - 1) * (steps - 2) / 2
    took_s = steps * pass_s + growth_s * steps * (steps - 1) / 2
    state.release(_advance(state, took_s, steps))


def _verify(state: State, batch: Speculating, speculation: Speculation) -> list[int]:
    """Verify proposals until a request ends or one arrives that could be admitted.

    Returns the requests that are done. Each pass has a time of its own, because the cache that it
    reads grows by the tokens that the pass before accepted.
    """
    requests, arrivals = len(batch), state.requests.arrival_s
    read, _, _ = _read_by_decode(state)
    tokens = batch.ahead()
    if state.batching.buckets:  # a pass may fill the bucket that it reads, so passes go one by one
        tokens = tokens[:1]
    cached = read + (np.cumsum(tokens) - tokens).astype(float)
    took_s = speculation.step_s(state.profile, requests, cached)
    ends_s = np.cumsum(np.append(state.now_s, took_s))[1:]
    if stops_for_arrivals(state):
        begun = int(np.searchsorted(ends_s, arrivals[state.next_arrival])) + 1
        seen = passes_until_seen(state, begun)
        tokens, took_s, ends_s = tokens[:seen], took_s[:seen], ends_s[:seen]
    most = most_passes(state)
    tokens, took_s, ends_s = tokens[:most], took_s[:most], ends_s[:most]
    state.planned_s = float(ends_s[-2]) if len(ends_s) > 1 else state.now_s
    verified, done = batch.advance(len(tokens))
    state.now_s = float(ends_s[-1])
    state.busy_s = float(np.cumsum(np.append(state.busy_s, took_s))[-1])
    state.cache(verified)
    state.count(requests, len(tokens))
    token_s = took_s / (tokens / requests)
    state.record_gaps(float(token_s[0]), int(tokens[0]), requests)
    state.gaps.extend(zip(token_s[1:].tolist(), tokens[1:].tolist(), strict=True))
    return done


def _read_by_decode(state: State) -> tuple[int, int, int]:
    """Return what a pass of decode reads, its growth in each pass, and the passes it holds for.

    All cached tokens are read, or, by a program compiled for buckets, the bucket of the longest
    request for every request; the passes are those until that request outgrows its bucket.
    """
    batch, sizes = len(state.batch), state.batching.buckets
    if not sizes:
        return state.cached_tokens, batch, sys.maxsize
    cached = state.most_cached
    longest = max(cached[request] - left for request, left in state.batch.left())
    size = state.batching.padded(longest)
    if size > sizes[-1]:
        return batch * longest, batch, sys.maxsize
    return batch * size, 0, size - longest + 1


def _advance(state: State, took_s: float, steps: int) -> list[int]:
    """Let some passes of decode go by, and return the requests that are done."""
    batch = len(state.batch)
    tokens, done = state.batch.advance(steps)
    state.now_s += took_s
    state.busy_s += took_s
    state.cache(tokens)
    state.count(batch, steps)
    if batch:
        state.record_gaps(took_s / (tokens / batch), tokens, batch)
    return done
