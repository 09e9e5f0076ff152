"""Planned downtime: windows for which units are out of service, of a fleet or of one job."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from topologies.support.errors import InputError, shown
from topologies.support.units import parse_seconds

FORMS = "out@1d02:00+4h=2 for once, or roll/30d+30min=2 for every 30 days"
PATTERN = re.compile(
    r"(out|roll)([@/])([^@/=]+?)\+(\d+(?:\.\d+)?\s*[a-z]+)=(?:([^=]+):)?(\d{1,9})", re.IGNORECASE
)
MOMENT = re.compile(r"(\d+)d\+?(?:([01]?\d|2[0-3]):([0-5]\d))?")


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
                f"{what}: {self.units:,} units at a time, and there are {units:,}; state 1 to "
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


def stated(text: str, moment_s: Callable[[str], float]) -> tuple[str, Window]:
    """Return the kind of units that a text names, empty for none, and its window.

    ``moment_s`` returns the time from the start of the run to a moment such as ``1d02:00`` [s].
    """
    what = f"--maintenance {shown(text)}"
    match = PATTERN.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{what} cannot be read; write {FORMS}.")
    word, sign, at, length, kind, count = match.groups()
    begin_s = moment_s(at) if sign == "@" else parse_seconds(at, what)
    length_s, every_s = parse_seconds(length, what), math.inf if sign == "@" else begin_s
    if not 0 < length_s < math.inf or not 0 <= begin_s < math.inf or not every_s:
        raise InputError(f"{what}: its times must be finite and above 0; write {FORMS}.")
    rolling = word.lower() == "roll"
    return kind or "", Window(text, begin_s, length_s, int(count), rolling, every_s)


def window_from(text: str) -> Window:
    """Read the planned downtime of a job.

    >>> window_from("roll/90d+30min=2").rounds(16)
    8
    >>> window_from("out@1d02:00+4h=2").begin_s / 3600
    26.0
    """
    what = f"--maintenance {shown(text)}"

    def moment_s(at: str) -> float:
        """Time from the start of the job, which has no clock [s]."""
        match = MOMENT.fullmatch(at)
        if match is None:
            return parse_seconds(at, what)
        days, hours, minutes = (int(part or 0) for part in match.groups())
        return days * 86_400.0 + hours * 3600.0 + minutes * 60.0

    kind, window = stated(text, moment_s)
    if kind:
        raise InputError(f"{what}: a job has one kind of units; end with ={window.units}.")
    return window
