"""Fluid queue served minute by minute, and exact accounts of requests and tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY, Demand


@dataclass
class Queue:
    """Requests of one service by outcome; all counts are integers.

    ``served, shed, capacity`` (minutes,): requests served and refused in the minute, and those that
        could have been served.
    ``backlog`` (minutes,): requests that wait at the end of the minute.
    ``patience_minutes``: most work in the queue, in minutes of its capacity; requests beyond it are
        shed.
    """

    arrivals: IntArray
    patience_minutes: float
    served: IntArray = field(init=False)
    shed: IntArray = field(init=False)
    backlog: IntArray = field(init=False)
    capacity: IntArray = field(init=False)
    waiting: int = 0

    def __post_init__(self) -> None:
        for name in ("served", "shed", "backlog", "capacity"):
            setattr(self, name, np.zeros(len(self.arrivals), np.int64))

    def finish(self, minute: int, capacity: int) -> None:
        """End a minute in which ``capacity`` requests could have been served."""
        came = int(self.arrivals[minute])
        work = self.waiting + came
        served = min(work, capacity)
        room = int(self.patience_minutes * capacity)
        shed = min(came, max(0, work - served - room))
        self.waiting = work - served - shed
        self.served[minute] = served
        self.shed[minute] = shed
        self.backlog[minute] = self.waiting
        self.capacity[minute] = capacity


def waits_s(queue: Queue) -> FloatArray:
    """Wait of the middle request of each minute [s]; (minutes,).

    Requests are served in order of arrival: the n-th one admitted is served when n have been,
    interpolated within a minute. Requests still waiting at the end are served afterwards as fast
    as the last minute could, or count the time until then if it could serve none.
    """
    admitted = np.concatenate([[0], np.cumsum(queue.arrivals - queue.shed)]).astype(float)
    served = np.concatenate([[0], np.cumsum(queue.served)]).astype(float)
    edges = np.arange(len(admitted), dtype=float)
    middle = (admitted[1:] + admitted[:-1]) / 2
    last = int(queue.capacity[-1])
    later = np.maximum(middle - served[-1], 0.0) / last if last else np.zeros(len(middle))
    turn = edges[-1] + later
    after = np.searchsorted(served, middle, side="left")
    inside = (after < len(served)) & (after > 0)
    rows = after[inside]
    step = served[rows] - served[rows - 1]
    part = np.where(step > 0, (middle[inside] - served[rows - 1]) / np.where(step > 0, step, 1), 0)
    turn[inside] = edges[rows - 1] + part
    came = edges[:-1] + 0.5
    waiting_before = np.concatenate([[0], queue.backlog[:-1]])
    result: FloatArray = np.where(
        queue.backlog + waiting_before > 0, np.maximum(turn - came, 0.0) * 60.0, 0.0
    )
    return result


def split_tokens(queue: Queue, tokens: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Divide each minute's tokens into served, waiting at its end, and shed; exact integers.

    Returns ``served, waiting, shed`` (minutes,): ``tokens.sum() == served.sum() + waiting[-1] +
    shed.sum()``.
    """
    came = np.maximum(queue.arrivals, 1)
    shed = tokens * queue.shed // came
    admitted_tokens = np.concatenate([[0], np.cumsum(tokens - shed)])
    admitted = np.concatenate([[0], np.cumsum(queue.arrivals - queue.shed)])
    done = np.cumsum(queue.served)
    row = np.clip(np.searchsorted(admitted, done, side="right") - 1, 0, len(came) - 1)
    count = np.maximum(admitted[row + 1] - admitted[row], 1)
    inside = (admitted_tokens[row + 1] - admitted_tokens[row]) * (done - admitted[row]) // count
    done_tokens = admitted_tokens[row] + inside
    served = np.diff(done_tokens, prepend=0)
    return served, admitted_tokens[1:] - done_tokens, shed


@dataclass
class BatchQueue:
    """Requests in the order of their deadlines; all counts are integers.

    All requests have the same time from arrival to deadline, so the oldest one has the earliest
    deadline. A request that has not been served by its deadline expires.

    ``tokens`` (minutes,): prompt and output tokens of all requests that arrive in the minute.
    ``deadline_minutes``: a request that arrives in minute i has to be served by the end of minute i
        + ``deadline_minutes``.
    ``served, late, waiting`` (minutes,): requests served and expired in the minute, and waiting at
        its end.
    """

    arrivals: IntArray
    tokens: IntArray
    deadline_minutes: int
    served: IntArray = field(init=False)
    late: IntArray = field(init=False)
    waiting: IntArray = field(init=False)
    done: int = 0

    def __post_init__(self) -> None:
        for name in ("served", "late", "waiting"):
            setattr(self, name, np.zeros(len(self.arrivals), np.int64))
        self._sums: IntArray = np.concatenate([[0], np.cumsum(self.arrivals)]).astype(np.int64)

    def waits(self, minute: int) -> int:
        """Requests that wait when a minute begins."""
        return int(self._sums[minute]) - self.done

    def came(self, minute: int, minutes: int) -> float:
        """Requests expected within ``minutes`` minutes: as many as came in the last ones."""
        passed = min(minute, minutes)
        return float(self._sums[minute] - self._sums[minute - passed]) * minutes / max(passed, 1)

    def due(self, minute: int) -> IntArray:
        """Waiting requests that have to be served within 1, 2 … minutes; (deadline_minutes,).

        Two requests came in minute 0 and three in minute 1, with three minutes' time:

        >>> BatchQueue(np.array([2, 3, 0, 0]), np.array([2, 3, 0, 0]), 3).due(2).tolist()
        [0, 2, 5]
        """
        arrived = minute - self.deadline_minutes + np.arange(1, self.deadline_minutes + 1)
        return np.maximum(self._sums[np.clip(arrived, 0, minute)] - self.done, 0)

    def finish(self, minute: int, capacity: int) -> None:
        """End a minute in which ``capacity`` requests could be served."""
        served = min(capacity, self.waits(minute + 1))
        self.done += served
        over = int(self._sums[max(0, minute + 1 - self.deadline_minutes)])
        late = max(0, over - self.done)
        self.done += late
        self.served[minute], self.late[minute] = served, late
        self.waiting[minute] = self.waits(minute + 1)

    def tokens_before(self, requests: IntArray) -> IntArray:
        """Tokens of the first ``requests`` requests, rounded down."""
        sums = np.concatenate([[0], np.cumsum(self.tokens)])
        row = np.searchsorted(self._sums, requests, side="right") - 1
        row = np.clip(row, 0, len(self.arrivals) - 1)
        count = np.maximum(self.arrivals[row], 1)
        inside = self.tokens[row] * (requests - self._sums[row]) // count
        return np.asarray(sums[row] + inside)

    def arrived_minute(self, requests: FloatArray) -> IntArray:
        """Minute in which the requests of these numbers arrived."""
        return np.asarray(np.searchsorted(self._sums, requests, side="right") - 1)


@dataclass
class Batch:
    """The batch tier of a running fleet.

    ``rate_per_s`` (minutes,): requests that one saturated unit answers [1/s].
    ``urgent``: units that the deadlines need, which training yields.
    ``joining``: units on their way to batch work.
    ``carry``: part of a request that the last minute has begun.
    """

    queue: BatchQueue
    rate_per_s: FloatArray
    urgent: int = 0
    joining: int = 0
    carry: float = 0.0

    def serve(self, minute: int, unit_s: float) -> None:
        """End a minute in which units worked for ``unit_s`` unit-seconds."""
        possible = unit_s * float(self.rate_per_s[minute]) + self.carry
        self.queue.finish(minute, int(possible))
        self.carry = possible % 1.0 if self.queue.waiting[minute] else 0.0


MINUTE_S = 60.0


@dataclass(frozen=True, eq=False)
class BatchTier:
    """Requests that may wait, and for how long.

    ``demand``: requests that may wait and arrive on top of the demand, instead of a share of it.
    ``deadline_s``: time within which a request has to be answered; after it the request expires
        [s].
    """

    share: float = 0.0
    demand: Demand | None = None
    deadline_s: float = MINUTES_PER_DAY * MINUTE_S

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1 or (self.share > 0) == (self.demand is not None):
            raise InputError(
                f"a batch tier of {self.share:.3g} of the requests"
                f"{' and of a demand of its own' if self.demand is not None else ''}; give a share "
                "above 0 and below 1, or a demand."
            )
        if not self.deadline_s >= MINUTE_S or self.deadline_s == float("inf"):
            raise InputError(
                f"a batch deadline of {self.deadline_s:g} s must be at least a minute, such as 24h."
            )

    @property
    def deadline_minutes(self) -> int:
        """Whole minutes within which a request has to be answered."""
        return int(self.deadline_s // MINUTE_S)


@dataclass(frozen=True, eq=False)
class BatchWork:
    """Requests of a batch tier in a run.

    ``demand``: one service, as long as the run.
    ``rate_per_s`` (minutes,): requests that one saturated unit answers, at the prompt and output
        lengths of that minute [1/s].
    """

    demand: Demand
    rate_per_s: FloatArray
    deadline_minutes: int = MINUTES_PER_DAY
