"""Computed work of a job that may still be lost: what no finished checkpoint holds yet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Work:
    """Computing time that no checkpoint holds yet [ms]: useful time, and time lost by slowness."""

    useful: int = 0
    slow: int = 0

    def add(self, ms: int, slower: float) -> None:
        """Add computing time in which a step took longer by the share ``slower``."""
        extra = round(ms * slower / (1 + slower))
        self.useful += ms - extra
        self.slow += extra

    def join(self, other: Work) -> None:
        """Add other work."""
        self.useful += other.useful
        self.slow += other.slow

    def take(self, ms: int) -> int:
        """Take at most ``ms`` away, useful and slow time in proportion; return the amount [ms]."""
        total = self.useful + self.slow
        taken = min(ms, total)
        slow = round(self.slow * taken / total) if total else 0
        self.useful -= taken - slow
        self.slow -= slow
        return taken
