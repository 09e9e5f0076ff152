"""Batch tier of a running fleet: waiting requests, their deadlines, and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from topologies.arrays import FloatArray, IntArray


@dataclass
class BatchQueue:
    """Requests in the order of their deadlines; all counts are integers.

    All requests have the same time from arrival to deadline, so the oldest one has the earliest
    deadline. A request that has not been served by its deadline expires.

    Attributes
    ----------
    arrivals : int64 array (minutes,)
        Requests that arrive in each minute.
    tokens : int64 array (minutes,)
        Prompt and output tokens of all requests that arrive in the minute.
    deadline_minutes : int
        A request that arrives in minute i has to be served by the end of minute
        i + ``deadline_minutes``.
    served, late, waiting : int64 array (minutes,)
        Requests served and expired in the minute, and waiting at its end.
    done : int
        Requests served or expired so far.
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

        Examples
        --------
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
        """Tokens of the first ``requests`` requests, rounded down.

        The tokens of a minute are divided equally among its requests.
        """
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

    Attributes
    ----------
    queue : BatchQueue
    rate_per_s : float array (minutes,)
        Requests that one saturated unit answers [1/s].
    urgent : int
        Units that the deadlines need, which training yields.
    joining : int
        Units on their way to batch work.
    carry : float
        Part of a request that the last minute has begun.
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
