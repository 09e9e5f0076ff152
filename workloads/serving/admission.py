"""Admission: when a scheduler sees a request, and when its prompt may run."""

from __future__ import annotations

import math

import numpy as np

from workloads.serving.state import State


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
