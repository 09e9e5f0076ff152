"""Outcome of one simulated run of a job: its time by part, and counts of what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workloads.job.job import PARTS


@dataclass(frozen=True)
class Outcome:
    """Result of one simulated run.

    Attributes
    ----------
    parts_ms : mapping of str to int
        Time of each of ``PARTS`` [ms]; the sum is the length of the run.
    failures : mapping of str to int
        Number of failures of each cause.
    checkpoints : int
        Checkpoints whose stall was not interrupted by a failure.
    replaced : int
        Units that a spare replaced.
    spares_used : int
        Most units in repair at one time.
    pairs_lost : int
        Number of times that both units with a part of the state were out, so that it had to be read
        from the store.
    slices : tuple of (int, mapping of str to int)
        Time at the end of each slice of the run, and the time of each part until then [ms]. Work
        that no checkpoint holds yet is not in any part.
    """

    parts_ms: Mapping[str, int]
    failures: Mapping[str, int]
    checkpoints: int
    replaced: int
    spares_used: int
    pairs_lost: int = 0
    slices: tuple[tuple[int, Mapping[str, int]], ...] = ()

    @property
    def span_ms(self) -> int:
        """Length of the run [ms]."""
        return sum(self.parts_ms.values())

    @property
    def goodput(self) -> float:
        """Useful share of time."""
        return self.parts_ms["useful"] / self.span_ms

    @property
    def shares(self) -> dict[str, float]:
        """Share of time of each part; the shares sum to 1."""
        return {part: self.parts_ms[part] / self.span_ms for part in PARTS}
