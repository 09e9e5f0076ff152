"""Planned downtime: windows for which units are out of service, of a fleet or of one job."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from topologies.support.errors import InputError, shown
from topologies.support.units import parse_seconds

FORMS = "out/30d+4h=2 or roll/90d+30min=2"
PATTERN = re.compile(
    r"(out|roll)/(\d+(?:\.\d+)?\s*[a-z]+)\+(\d+(?:\.\d+)?\s*[a-z]+)=(\d{1,9})", re.IGNORECASE
)


@dataclass(frozen=True)
class Window:
    """Time for which units of one kind are out of service."""

    text: str  # as it was stated
    begin_s: float  # time from the start of the run at which units begin to leave [s]
    length_s: float  # time for which each unit is out [s]
    units: int  # units that are out at the same time
    rolling: bool = False  # whether all units of the kind have their turn, ``units`` at a time
    every_s: float = math.inf  # time from one begin to the next [s]

    def rounds(self, units: int) -> int:
        """Number of groups of units that leave one after the other, of a kind of ``units``."""
        return -(-units // self.units) if self.rolling and self.units else 1

    def check(self, units: int) -> None:
        """Refuse a window of more units than there are, and one that begins before it is over."""
        what = f"--maintenance {shown(self.text)}"
        if not 1 <= self.units <= units:
            raise InputError(
                f"{what}: {self.units:,} units at a time, and the job has {units:,}; state 1 to "
                f"{units:,}."
            )
        whole_s = self.length_s * self.rounds(units)
        if whole_s >= self.every_s:
            turns = f", in {self.rounds(units):,} turns" if self.rolling else ""
            raise InputError(
                f"{what} overlaps the next one: it takes {whole_s / 3600:,.4g} h{turns}, and "
                f"begins every {self.every_s / 3600:,.4g} h; state a longer time between them, or "
                "more units at a time."
            )


def window_from(text: str) -> Window:
    """Read the planned downtime of a job.

    >>> window_from("roll/90d+30min=2").rounds(16)
    8
    """
    what = f"--maintenance {shown(text)}"
    match = PATTERN.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{what} cannot be read; write {FORMS}.")
    every_s, length_s = (parse_seconds(match[part], what) for part in (2, 3))
    if not 0 < length_s < math.inf or not 0 < every_s < math.inf:
        raise InputError(f"{what}: both times must be above 0; write {FORMS}.")
    return Window(text, every_s, length_s, int(match[4]), match[1].lower() == "roll", every_s)
