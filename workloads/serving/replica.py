"""One replica at token level: continuous batching of prefill and decode, iteration by iteration.

Between two events (an arrival that can be admitted, an end, a full bucket) the batch decodes the
same requests, and an iteration's time is affine in the cached tokens; such stretches are taken in
one step, and the times are those of the single iterations.
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
    output. Waiting prompts go before decoding. Of a prompt only what no cache holds is processed.

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
    ahead = Speculating(speculation, np.random.default_rng(seed))
    held = speculation.beside(profile)
    return State(held, batching or Batching(), requests, ahead, speculation)


def closed_loop(
    profile: Profile,
    requests: Requests,
    concurrency: int,
    batching: Batching | None = None,
    *,
    speculation: Speculation | None = None,
    seed: int = 0,
) -> Served:
    """Serve requests in a closed loop: each end brings the next arrival, so many are always there.

    The arrival times of the requests are replaced by those that come about; other parameters as of
    :func:`serve`.

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
    first = np.full(len(requests), np.nan)
    end = np.full(len(requests), np.nan)
    while _step(state, first, end):
        pass
    gaps = np.array(state.gaps) if state.gaps else np.zeros((0, 2))
    return Served(
        requests=requests,
        first_token_s=first,
        end_s=end,
        gap_s=gaps[:, 0],
        gap_count=gaps[:, 1],
        busy_s=state.busy,
        end_of_run_s=state.now,
        kv_peak_tokens=state.peak,
        batch_mean=state.batch_sum / state.decode_steps if state.decode_steps else 0.0,
        iterations=state.iterations,
        request_s=profile.request_s,
    )


def _step(state: State, first: FloatArray, end: FloatArray) -> bool:
    """Advance to the next event; False when nothing is left to do."""
    look_for_arrivals(state)
    waiting = admissible(state)
    if waiting and not state.batching.chunk_tokens:
        _prefill(state, admit(state), first, end)
        return True
    if state.pieces or (waiting and not held_back(state)):
        begin_s, state.unseen_passes, state.gathering_passes = state.now, 0, 0
        _with_prompts(state, first, end)
        state.planned_s = begin_s
        return True
    if len(state.batch):
        before = state.decode_steps
        _decode(state, end)
        passes = state.decode_steps - before
        state.unseen_passes += passes
        state.gathering_passes += passes if waiting else 0
        return True
    if state.next_arrival < len(state.requests):
        state.now = float(state.requests.arrival_s[state.next_arrival])
        return True
    return False


def _prefill(state: State, request: int, first: FloatArray, end: FloatArray) -> None:
    """Run one whole prompt while decode stands still."""
    if state.batching.arrived:
        _started(state, request, first, end)
        return
    held = state.requests.held(request)
    size = state.batching.padded(int(state.requests.prompt[request]) - held)
    took = state.profile.prefill_s(size, held)
    if state.speculation is not None:
        took += state.speculation.prefill_s(size, held)
    _stand_still(state, took)
    _started(state, request, first, end)


def _started(state: State, request: int, first: FloatArray, end: FloatArray) -> None:
    """Give a request its first token and let it decode the others."""
    prompt, output = int(state.requests.prompt[request]), int(state.requests.output[request])
    first[request] = state.now
    if output == 1:
        state.peak = max(state.peak, state.cached + prompt)
        _ended(state, request, end)
        return
    state.batch.add(request, output - 1)
    state.cached += prompt
    state.peak = max(state.peak, state.cached)


def _with_prompts(state: State, first: FloatArray, end: FloatArray) -> None:
    """Run one iteration with prompts, or pieces of them, as far as they fit.

    Decoding requests advance in the same iteration unless prompts run first.
    """
    profile = state.profile
    batch = 0 if state.batching.prompts == FIRST else len(state.batch)
    verified = batch * state.batch.width
    taken, extra = _taken_tokens(state, max(1, state.batching.chunk_tokens - verified))
    linear = profile.prompt_linear if taken else profile.linear
    took = linear(verified + taken) + extra
    if batch:
        took += profile.attention_s(batch, state.cached)
    if state.speculation is not None:
        took += state.speculation.draft_s(profile, batch, state.cached) if batch else 0.0
        took += state.speculation.prefill_s(taken, 0) if taken else 0.0
    if batch or not len(state.batch):
        _finished(state, _advance(state, took, 1), end)
    else:
        _stand_still(state, took)
    done = [piece for piece in state.pieces if piece[1] >= state.requests.prompt[piece[0]]]
    state.pieces = [piece for piece in state.pieces if piece[1] < state.requests.prompt[piece[0]]]
    for request, _ in done:
        _started(state, request, first, end)


def _taken_tokens(state: State, room: int) -> tuple[int, float]:
    """Prompt tokens of an iteration, and the time that they add to its linear part [s]."""
    taken, extra = 0, 0.0
    for piece in state.pieces:
        taken, extra = _take(state, piece, room, taken, extra)
    whole = state.batching.prompts == WHOLE
    while taken < room and admissible(state):
        request = state.waiting[0]
        held = state.requests.held(request)
        if whole and taken and taken + int(state.requests.prompt[request]) - held > room:
            break
        state.pieces.append([admit(state), held])
        taken, extra = _take(state, state.pieces[-1], room, taken, extra)
    return taken, extra


def _take(state: State, piece: list[int], room: int, taken: int, extra: float) -> tuple[int, float]:
    """Add what fits of one prompt to an iteration: its tokens and their extra time so far."""
    request, before = piece
    tokens = int(state.requests.prompt[request]) - before
    if state.batching.prompts != WHOLE:
        tokens = min(tokens, room - taken)
    piece[1] += tokens
    return taken + tokens, extra + state.profile.prefill_extra_s(tokens, before)


def _stand_still(state: State, took: float) -> None:
    """Let time pass in which decode waits for prompts."""
    state.now += took
    state.busy += took
    state.owed += took
    state.iterations += 1


def _decode(state: State, end: FloatArray) -> None:
    """Decode until a request ends, one arrives that could be admitted, or the bucket is full."""
    if isinstance(state.batch, Speculating) and state.speculation is not None:
        _finished(state, _verify(state, state.batch, state.speculation), end)
        return
    batch, profile = len(state.batch), state.profile
    cached, growing, steps = _read_by_decode(state)
    steps = min(steps, state.batch.steps())
    once = profile.decode_s(batch, cached)
    growth = profile.decode_kv_s * growing
    if batch < state.batching.slots and state.next_arrival < len(state.requests):
        until = float(state.requests.arrival_s[state.next_arrival]) - state.now
        if until < float("inf"):
            until = max(until, 0.0)
            steps = min(steps, passes_until_seen(state, passes_until(until, once, growth)))
    steps = min(steps, most_passes(state) or steps)
    state.planned_s = state.now + (steps - 1) * once + growth * (steps - 1) * (steps - 2) / 2
    took = steps * once + growth * steps * (steps - 1) / 2
    _finished(state, _advance(state, took, steps), end)


def _verify(state: State, batch: Speculating, speculation: Speculation) -> list[int]:
    """Verify proposals until a request is done or one arrives that could be admitted; those done.

    Each pass has a time of its own, as requests cache what it accepts.
    """
    requests, arrivals = len(batch), state.requests.arrival_s
    read, _, _ = _read_by_decode(state)
    tokens = batch.ahead()
    if state.batching.buckets:  # which of them is read is looked up each pass
        tokens = tokens[:1]
    cached = read + (np.cumsum(tokens) - tokens).astype(float)
    took = speculation.step_s(state.profile, requests, cached)
    ends = np.cumsum(np.append(state.now, took))[1:]
    if requests < state.batching.slots and state.next_arrival < len(arrivals):
        begun = int(np.searchsorted(ends, arrivals[state.next_arrival])) + 1
        seen = passes_until_seen(state, begun)
        tokens, took, ends = tokens[:seen], took[:seen], ends[:seen]
    most = most_passes(state)
    tokens, took, ends = tokens[:most], took[:most], ends[:most]
    state.planned_s = float(ends[-2]) if len(ends) > 1 else state.now
    verified, done = batch.advance(len(tokens))
    state.now = float(ends[-1])
    state.busy = float(np.cumsum(np.append(state.busy, took))[-1])
    state.cached += verified
    state.peak = max(state.peak, state.cached)
    _count(state, requests, len(tokens))
    once = took / (tokens / requests)
    _gap(state, float(once[0]), int(tokens[0]), requests)
    state.gaps.extend(zip(once[1:].tolist(), tokens[1:].tolist(), strict=True))
    return done


def _read_by_decode(state: State) -> tuple[int, int, int]:
    """Cached tokens that an iteration reads, their growth with each token, and the requests.

    A program compiled for buckets reads the bucket of the longest request for every one.
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


def _advance(state: State, took: float, steps: int) -> list[int]:
    """Let time pass and every decoding request go on; those that are done."""
    batch = len(state.batch)
    tokens, done = state.batch.advance(steps)
    state.now += took
    state.busy += took
    state.cached += tokens
    state.peak = max(state.peak, state.cached)
    _count(state, batch, steps)
    if batch:
        _gap(state, took / (tokens / batch), tokens, batch)
    return done


def _count(state: State, batch: int, steps: int) -> None:
    """Count iterations, and those in which requests decode."""
    state.iterations += steps
    if batch:
        state.batch_sum += batch * steps
        state.decode_steps += steps


def _gap(state: State, once: float, tokens: int, batch: int) -> None:
    """Note the time between tokens; the first one of each request also waited for prompts."""
    if state.owed:
        state.gaps.append((once + state.owed, batch))
        tokens -= batch
        state.owed = 0.0
    if tokens:
        state.gaps.append((once, tokens))


def _finished(state: State, done: list[int], end: FloatArray) -> None:
    for request in done:
        tokens = int(state.requests.prompt[request] + state.requests.output[request])
        state.cached -= tokens - 1
        _ended(state, request, end)


def _ended(state: State, request: int, end: FloatArray) -> None:
    """Free the room of a request; in a closed loop its user sends the next one."""
    end[request] = state.now
    state.reserved -= int(state.requests.prompt[request] + state.requests.output[request])
    if state.closed and state.sent < len(state.requests):
        state.requests.arrival_s[state.sent] = state.now
        state.sent += 1
