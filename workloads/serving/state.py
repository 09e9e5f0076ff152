"""State of a replica in the middle of a run, and the admission of requests into its batch."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from workloads.serving.batch import Batch
from workloads.serving.batching import Batching
from workloads.serving.profile import Profile
from workloads.serving.requests import Requests
from workloads.serving.speculation import Speculation


@dataclass
class State:
    """A replica in the middle of a run.

    Attributes
    ----------
    now : float
        Time [s].
    planned_s : float
        Start of the last iteration, at which an overlapped scheduler planned the next one [s].
    unseen_passes : int
        Passes of decode since the scheduler last looked for new requests.
    gathering_passes : int
        Passes of decode for which the first waiting prompt has been held back.
    """

    profile: Profile
    batching: Batching
    requests: Requests
    batch: Batch
    speculation: Speculation | None = None
    now: float = 0.0
    planned_s: float = 0.0
    next_arrival: int = 0
    waiting: deque[int] = field(default_factory=deque)
    unseen_passes: int = 0
    gathering_passes: int = 0
    cached: int = 0
    reserved: int = 0
    pieces: list[list[int]] = field(default_factory=list)
    owed: float = 0.0
    closed: bool = False
    sent: int = 0
    gaps: list[tuple[float, float]] = field(default_factory=list)
    busy: float = 0.0
    peak: int = 0
    batch_sum: float = 0.0
    decode_steps: int = 0
    iterations: int = 0


def look_for_arrivals(state: State) -> None:
    """Append the requests that the scheduler sees by now to those that wait.

    While it is busy, a scheduler that polls looks only after every few passes of decode, and one
    that plans an iteration during the one before sees what had arrived before that one began. A
    request that answers the end of another, at that very instant, is not seen yet.
    """
    arrival = state.requests.arrival_s
    busy = bool(len(state.batch) or state.pieces)
    if busy and state.unseen_passes % state.batching.poll_passes:
        return
    state.unseen_passes = 0
    ahead = busy and state.batching.overlapped
    seen_until_s = np.nextafter(state.planned_s, -np.inf) if ahead else state.now
    while state.next_arrival < len(arrival) and arrival[state.next_arrival] <= seen_until_s:
        state.waiting.append(state.next_arrival)
        state.next_arrival += 1


def admissible(state: State) -> bool:
    """Return whether a slot and the cache have room for the first request that waits."""
    if not state.waiting or len(state.batch) + len(state.pieces) >= state.batching.slots:
        return False
    request = state.waiting[0]
    tokens = int(state.requests.prompt[request] + state.requests.output[request])
    return state.reserved + tokens <= state.profile.kv_tokens


def admit(state: State) -> int:
    """Reserve the cache of the first request that waits, and return the request."""
    request = state.waiting.popleft()
    state.reserved += int(state.requests.prompt[request] + state.requests.output[request])
    return request


def held_back(state: State) -> bool:
    """Return whether prompts wait for more of them, so that fewer iterations are mixed.

    They wait for ``gather_passes`` of decode at most, and no longer once the iteration would have
    ``gather_tokens``. Without anything to decode there is nothing to wait for.
    """
    how = state.batching
    if state.gathering_passes >= how.gather_passes or not len(state.batch):
        return False
    prompts = sum(int(state.requests.prompt[request]) for request in state.waiting)
    return len(state.batch) * state.batch.width + prompts < how.gather_tokens


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
    is_there = state.requests.arrival_s[state.next_arrival] < state.now
    passes += ahead and not is_there
    return -(-(state.unseen_passes + passes) // poll) * poll - state.unseen_passes


def passes_until(seconds: float, once: float, growth: float) -> int:
    """Fewest iterations, at least one, whose end is not before ``seconds``."""
    if growth <= 0:
        return max(1, math.ceil(seconds / once))
    slope = once - growth / 2
    steps = (-slope + math.sqrt(slope * slope + 2 * growth * max(seconds, 0.0))) / growth
    return max(1, math.ceil(steps - 1e-9))
