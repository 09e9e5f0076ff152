"""One replica at token level: continuous batching of prefill and decode, iteration by iteration.

Between two events (an arrival that can be admitted, an end, a full bucket) the batch decodes the
same requests, and an iteration's time is affine in the cached tokens. Such a stretch is one step
here, with the times that its iterations have one by one.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.serving.batch import Lockstep, Speculating
from workloads.serving.batching import FIRST, WHOLE, Batching
from workloads.serving.profile import Profile
from workloads.serving.requests import Requests
from workloads.serving.served import Served
from workloads.serving.speculation import Speculation
from workloads.serving.state import (
    State,
    admissible,
    admit,
    held_back,
    look_for_arrivals,
    most_passes,
    passes_until,
    passes_until_seen,
    stops_for_arrivals,
)


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

    Parameters
    ----------
    profile : Profile
    requests : Requests
    batching : Batching, optional
    speculation : Speculation, optional
        Tokens that a draft proposes and one pass verifies.
    seed : int
        Seed of the proposals that are accepted.

    Raises
    ------
    InputError
        For a request that can never fit into the cache.
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
    are those of :func:`serve`.

    Raises
    ------
    InputError
        For a concurrency below 1, and as :func:`serve`.
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
    first_token_s = np.full(len(requests), np.nan)
    end_s = np.full(len(requests), np.nan)
    while _step(state, first_token_s, end_s):
        pass
    gaps = np.array(state.gaps) if state.gaps else np.zeros((0, 2))
    return Served(
        requests=requests,
        first_token_s=first_token_s,
        end_s=end_s,
        gap_s=gaps[:, 0],
        gap_count=gaps[:, 1],
        busy_s=state.busy,
        end_of_run_s=state.now,
        kv_peak_tokens=state.peak,
        batch_mean=state.batch_sum / state.decode_steps if state.decode_steps else 0.0,
        iterations=state.iterations,
        request_s=profile.request_s,
    )


def _step(state: State, first_token_s: FloatArray, end_s: FloatArray) -> bool:
    """Advance to the next event; False when nothing is left to do."""
    look_for_arrivals(state)
    waiting = admissible(state)
    if waiting and not state.batching.chunk_tokens:
        _prefill(state, admit(state), first_token_s, end_s)
        return True
    if state.pieces or (waiting and not held_back(state)):
        begin_s, state.unseen_passes, state.gathering_passes = state.now, 0, 0
        _with_prompts(state, first_token_s, end_s)
        state.planned_s = begin_s
        return True
    if len(state.batch):
        before = state.decode_steps
        _decode(state, end_s)
        passes = state.decode_steps - before
        state.unseen_passes += passes
        state.gathering_passes += passes if waiting else 0
        return True
    if state.next_arrival < len(state.requests):
        state.now = float(state.requests.arrival_s[state.next_arrival])
        return True
    return False


def _prefill(state: State, request: int, first_token_s: FloatArray, end_s: FloatArray) -> None:
    """Run one whole prompt while decode waits."""
    if state.batching.arrived:
        _record_first_token(state, request, first_token_s, end_s)
        return
    cached_before = state.requests.held(request)
    size = state.batching.padded(int(state.requests.prompt[request]) - cached_before)
    took_s = state.profile.prefill_s(size, cached_before)
    if state.speculation is not None:
        took_s += state.speculation.prefill_s(size, cached_before)
    _pause_decode(state, took_s)
    _record_first_token(state, request, first_token_s, end_s)


def _record_first_token(
    state: State, request: int, first_token_s: FloatArray, end_s: FloatArray
) -> None:
    """Note the first token of a request, and let it decode the rest of its output."""
    prompt, output = int(state.requests.prompt[request]), int(state.requests.output[request])
    first_token_s[request] = state.now
    if output == 1:
        state.peak = max(state.peak, state.cached + prompt)
        _record_end(state, request, end_s)
        return
    state.batch.add(request, output - 1)
    state.cached += prompt
    state.peak = max(state.peak, state.cached)


def _with_prompts(state: State, first_token_s: FloatArray, end_s: FloatArray) -> None:
    """Run one iteration with prompts, or pieces of them, as far as they fit.

    Decoding requests advance in the same iteration unless prompts run first.
    """
    profile = state.profile
    batch = 0 if state.batching.prompts == FIRST else len(state.batch)
    verified = batch * state.batch.width
    taken, extra_s = _taken_tokens(state, max(1, state.batching.chunk_tokens - verified))
    linear = profile.prompt_linear if taken else profile.linear
    took_s = linear(verified + taken) + extra_s
    if batch:
        took_s += profile.attention_s(batch, state.cached)
    if state.speculation is not None:
        took_s += state.speculation.draft_s(profile, batch, state.cached) if batch else 0.0
        took_s += state.speculation.prefill_s(taken, 0) if taken else 0.0
    if batch or not len(state.batch):
        _release(state, _advance(state, took_s, 1), end_s)
    else:
        _pause_decode(state, took_s)
    done = [piece for piece in state.pieces if piece[1] >= state.requests.prompt[piece[0]]]
    state.pieces = [piece for piece in state.pieces if piece[1] < state.requests.prompt[piece[0]]]
    for request, _ in done:
        _record_first_token(state, request, first_token_s, end_s)


def _taken_tokens(state: State, room: int) -> tuple[int, float]:
    """Prompt tokens of an iteration, and the time that they add to its linear part [s]."""
    taken, extra_s = 0, 0.0
    for piece in state.pieces:
        taken, extra_s = _take(state, piece, room, taken, extra_s)
    whole = state.batching.prompts == WHOLE
    while taken < room and admissible(state):
        request = state.waiting[0]
        cached_before = state.requests.held(request)
        if whole and taken and taken + int(state.requests.prompt[request]) - cached_before > room:
            break
        state.pieces.append([admit(state), cached_before])
        taken, extra_s = _take(state, state.pieces[-1], room, taken, extra_s)
    return taken, extra_s


def _take(
    state: State, piece: list[int], room: int, taken: int, extra_s: float
) -> tuple[int, float]:
    """Add to an iteration what fits of a prompt; return its tokens and extra time so far."""
    request, before = piece
    tokens = int(state.requests.prompt[request]) - before
    if state.batching.prompts != WHOLE:
        tokens = min(tokens, room - taken)
    piece[1] += tokens
    return taken + tokens, extra_s + state.profile.prefill_extra_s(tokens, before)


def _pause_decode(state: State, took_s: float) -> None:
    """Let time pass in which decode waits for prompts."""
    state.now += took_s
    state.busy += took_s
    state.owed += took_s
    state.iterations += 1


def _decode(state: State, end_s: FloatArray) -> None:
    """Decode until a request ends, one arrives that could be admitted, or the bucket is full."""
    if isinstance(state.batch, Speculating) and state.speculation is not None:
        _release(state, _verify(state, state.batch, state.speculation), end_s)
        return
    batch, profile = len(state.batch), state.profile
    cached, growing, steps = _read_by_decode(state)
    steps = min(steps, state.batch.steps())
    pass_s = profile.decode_s(batch, cached)
    growth_s = profile.decode_kv_s * growing
    if stops_for_arrivals(state):
        until_s = float(state.requests.arrival_s[state.next_arrival]) - state.now
        if until_s < float("inf"):
            until_s = max(until_s, 0.0)
            steps = min(steps, passes_until_seen(state, passes_until(until_s, pass_s, growth_s)))
    steps = min(steps, most_passes(state) or steps)
    state.planned_s = state.now + (steps - 1) * pass_s + growth_s * (steps - 1) * (steps - 2) / 2
    took_s = steps * pass_s + growth_s * steps * (steps - 1) / 2
    _release(state, _advance(state, took_s, steps), end_s)


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
    ends_s = np.cumsum(np.append(state.now, took_s))[1:]
    if stops_for_arrivals(state):
        begun = int(np.searchsorted(ends_s, arrivals[state.next_arrival])) + 1
        seen = passes_until_seen(state, begun)
        tokens, took_s, ends_s = tokens[:seen], took_s[:seen], ends_s[:seen]
    most = most_passes(state)
    tokens, took_s, ends_s = tokens[:most], took_s[:most], ends_s[:most]
    state.planned_s = float(ends_s[-2]) if len(ends_s) > 1 else state.now
    verified, done = batch.advance(len(tokens))
    state.now = float(ends_s[-1])
    state.busy = float(np.cumsum(np.append(state.busy, took_s))[-1])
    state.cached += verified
    state.peak = max(state.peak, state.cached)
    _count(state, requests, len(tokens))
    token_s = took_s / (tokens / requests)
    _record_gaps(state, float(token_s[0]), int(tokens[0]), requests)
    state.gaps.extend(zip(token_s[1:].tolist(), tokens[1:].tolist(), strict=True))
    return done


def _read_by_decode(state: State) -> tuple[int, int, int]:
    """Return what a pass of decode reads, its growth in each pass, and the passes it holds for.

    All cached tokens are read, or, by a program compiled for buckets, the bucket of the longest
    request for every request; the passes are those until that request outgrows its bucket.
    """
    batch, sizes = len(state.batch), state.batching.buckets
    if not sizes:
        return state.cached, batch, sys.maxsize
    requests = state.requests
    longest = max(
        int(requests.prompt[request] + requests.output[request]) - 1 - left
        for request, left in state.batch.left()
    )
    size = state.batching.padded(longest)
    if size > sizes[-1]:
        return batch * longest, batch, sys.maxsize
    return batch * size, 0, size - longest + 1


def _advance(state: State, took_s: float, steps: int) -> list[int]:
    """Let some passes of decode go by, and return the requests that are done."""
    batch = len(state.batch)
    tokens, done = state.batch.advance(steps)
    state.now += took_s
    state.busy += took_s
    state.cached += tokens
    state.peak = max(state.peak, state.cached)
    _count(state, batch, steps)
    if batch:
        _record_gaps(state, took_s / (tokens / batch), tokens, batch)
    return done


def _count(state: State, batch: int, steps: int) -> None:
    """Count iterations, and those in which requests decode."""
    state.iterations += steps
    if batch:
        state.batch_sum += batch * steps
        state.decode_steps += steps


def _record_gaps(state: State, token_s: float, tokens: int, batch: int) -> None:
    """Record the time between tokens; the first one of each request also waited for prompts."""
    if state.owed:
        state.gaps.append((token_s + state.owed, batch))
        tokens -= batch
        state.owed = 0.0
    if tokens:
        state.gaps.append((token_s, tokens))


def _release(state: State, done: list[int], end_s: FloatArray) -> None:
    """Drop the caches of requests that are done. The last token of a request was never cached."""
    for request in done:
        tokens = int(state.requests.prompt[request] + state.requests.output[request])
        state.cached -= tokens - 1
        _record_end(state, request, end_s)


def _record_end(state: State, request: int, end_s: FloatArray) -> None:
    """Note the end of a request and free its room; in a closed loop its user sends the next one."""
    end_s[request] = state.now
    state.reserved -= int(state.requests.prompt[request] + state.requests.output[request])
    if state.closed and state.sent < len(state.requests):
        state.requests.arrival_s[state.sent] = state.now
        state.sent += 1
