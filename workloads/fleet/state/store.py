"""The shared store of weights and checkpoints, and its clock of whole milliseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import simpy

MS = 1000  # milliseconds of a second
MINUTE_MS = 60 * MS


def milliseconds(seconds: float, horizon_ms: int) -> int:
    """Whole milliseconds, at most just past the horizon, so that infinity becomes an integer.

    >>> milliseconds(1.5, 10_000), milliseconds(float("inf"), 10_000)
    (1500, 10001)
    """
    if seconds * MS > horizon_ms:
        return horizon_ms + 1
    return round(seconds * MS)


@dataclass
class _Load:
    """A load under way: units that each still lack ``left_bytes``, and the event of its end."""

    units: int
    left_bytes: float
    cap_bytes_per_s: float
    done: simpy.Event
    rate_bytes_per_s: float = 0.0


class Store:
    """Max-min fair sharing of one bandwidth; each unit of a load has a cap of its own."""

    def __init__(self, env: simpy.Environment, bytes_per_s: float) -> None:
        self.env = env
        self.bytes_per_s = bytes_per_s
        self.moved_bytes = 0.0
        self._loads: list[_Load] = []
        self._at_ms = 0
        self._round = 0

    def load(self, *, units: int, bytes_per_unit: float, cap_bytes_per_s: float) -> simpy.Event:
        """Start to load on ``units`` units; the event is triggered when all have their bytes."""
        self._progress()
        entry = _Load(units, float(bytes_per_unit), cap_bytes_per_s, self.env.event())
        self._loads.append(entry)
        self._share()
        return entry.done

    def _progress(self) -> None:
        elapsed_s = (int(self.env.now) - self._at_ms) / MS
        self._at_ms = int(self.env.now)
        for entry in self._loads:
            moved = min(entry.left_bytes, entry.rate_bytes_per_s * elapsed_s)
            entry.left_bytes -= moved
            self.moved_bytes += moved * entry.units

    def _share(self) -> None:
        remaining, waiting = self.bytes_per_s, sum(entry.units for entry in self._loads)
        for entry in sorted(self._loads, key=lambda entry: entry.cap_bytes_per_s):
            entry.rate_bytes_per_s = min(entry.cap_bytes_per_s, remaining / waiting)
            remaining -= entry.rate_bytes_per_s * entry.units
            waiting -= entry.units
        # Rates have changed, so processes that wait for the end of an earlier round do nothing.
        self._round += 1
        if self._loads:
            delay_ms = min(_until_done_ms(entry) for entry in self._loads)
            # A call at the end of a time costs a third of a process that waits for it.
            self.env.timeout(delay_ms).callbacks.append(partial(self._wake, self._round))

    def _wake(self, this_round: int, _event: simpy.Event) -> None:
        if this_round != self._round:
            return
        self._progress()
        done = [entry for entry in self._loads if _until_done_ms(entry) == 0]
        self._loads = [entry for entry in self._loads if _until_done_ms(entry) > 0]
        self._share()
        for entry in done:
            entry.done.succeed()


def _until_done_ms(entry: _Load) -> int:
    """Time until a load ends at its present rate, rounded up."""
    if entry.left_bytes <= 1e-6 or math.isinf(entry.rate_bytes_per_s):
        return 0
    return math.ceil(entry.left_bytes / entry.rate_bytes_per_s * MS - 1e-6)
