"""Record of a demand that grows: every period once, whatever the order in which rows arrive."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from topologies.errors import InputError, shown
from workloads.demand.read import demand_of_rows, long_rows, mean_tokens, meanings
from workloads.demand.trace import MINUTES_PER_DAY, Demand

HOUR = 60  # minutes of an hour
LATEST = MINUTES_PER_DAY  # minutes by which a row may come late, counted from the newest row
FURTHEST = 31 * MINUTES_PER_DAY  # minutes by which a row or a clock may be ahead of the newest one
LEAST_PRESENT = 0.5  # share of the periods of the last hour without which nothing is stated
COUNTED = ("requests", "prompt_tokens_mean", "output_tokens_mean")
"""Columns of the numbers of a row."""


class Row(NamedTuple):
    """Requests of a service in one period, with their mean tokens; NaN for tokens not stated."""

    service: str
    minute: int  # beginning of the period, UTC, in minutes since 1970
    requests: float
    prompt_tokens: float = float("nan")
    output_tokens: float = float("nan")


@dataclass
class Taken:
    """Outcome of taking rows: how many were new, equal to earlier ones, late, or refused."""

    new: int = 0
    duplicate: int = 0
    late: int = 0
    refused: int = 0
    reason: str = ""  # sentence on the first row that was refused; empty if none was

    def refuse(self, reason: str) -> None:
        """Count a row that is refused."""
        self.refused += 1
        self.reason = self.reason or reason


@dataclass
class Record:
    """Rows by service and minute."""

    rows: dict[tuple[str, int], Row] = field(default_factory=dict)
    period: int = 0  # minutes of a period; 0 until two rows have shown it

    @property
    def newest(self) -> int | None:
        """Beginning of the newest period; None without rows."""
        return max((minute for _, minute in self.rows), default=None)

    @property
    def end(self) -> int | None:
        """End of the newest period; None without rows."""
        return None if self.newest is None else self.newest + (self.period or HOUR)

    def take(self, rows: Iterable[Row], named: str) -> Taken:
        """Add rows in the order of their arrival; rows that cannot be believed stay out.

        A row with the requests of an earlier one is counted and left out. Refused are a period
        with another value than before, a row older than a day, one that is a month ahead, and one
        off the grid of periods. ``named``: name of the source, for reasons.
        """
        rows = list(rows)
        self.period = self.period or _period({row.minute for row in rows}, named)
        taken, newest_of = Taken(), dict[str, int]()
        for service, minute in self.rows:
            newest_of[service] = max(minute, newest_of.get(service, minute))
        for row in rows:
            key, newest = (row.service, row.minute), newest_of.get(row.service)
            before = self.rows.get(key)
            when = f"{named}: the row of {moment(row.minute)}"
            if before is not None and math.isclose(before.requests, row.requests):
                taken.duplicate += 1
            elif before is not None:
                taken.refuse(
                    f"{when} repeats a period with {row.requests:g} requests, which had "
                    f"{before.requests:g}; times must be UTC and never go back."
                )
            elif newest is not None and row.minute < newest - LATEST:
                taken.refuse(
                    f"{when} goes back by more than a day from {moment(newest)}; correct the clock."
                )
            elif newest is not None and row.minute > newest + FURTHEST:
                taken.refuse(
                    f"{when} is more than 31 days after {moment(newest)}; correct the clock, or "
                    "start with a new --state."
                )
            elif newest is not None and (row.minute - newest) % (self.period or 1):
                taken.refuse(f"{when} is off the grid of {self.period} minutes; resample it.")
            else:
                self.rows[key] = row
                taken.new += 1
                taken.late += newest is not None and row.minute < newest
                newest_of[row.service] = row.minute if newest is None else max(newest, row.minute)
        return taken

    def forget(self, minute: int) -> None:
        """Drop the rows of periods that begin before a minute."""
        self.rows = {key: row for key, row in self.rows.items() if key[1] >= minute}

    def until(self, end: int, days: float) -> tuple[Demand, int]:
        """Return the demand that ends at a minute, and the minutes that had no row.

        Gaps are filled as those of a demand file. ``days``: length of the history, as far as there
        are rows [days].

        Raises InputError where the last hour has too few rows.
        """
        step, first = self.period or HOUR, end - days * MINUTES_PER_DAY
        rows: dict[str, dict[int, Row]] = {}
        for (service, minute), row in sorted(self.rows.items()):
            if first <= minute <= end - step:
                rows.setdefault(service, {})[minute] = row
        begin = max((min(each) for each in rows.values()), default=end)
        kept: list[Row] = []
        missing = len(rows) * (end - begin)
        for service, each in rows.items():
            counts = [each[minute].requests for minute in each if minute >= end - HOUR]
            present = len(counts) * step / HOUR
            if present < LEAST_PRESENT:
                raise InputError(
                    f"{shown(service)} has rows for {present:.0%} of the hour to {moment(end)}, "
                    f"and needs them for {LEAST_PRESENT:.0%}; is the metric still there?"
                )
            since = [row for minute, row in each.items() if minute >= begin]
            missing -= step * len(since)
            kept += since
            if end - step not in each:  # an hour that is cut short goes on as it was
                kept.append(Row(service, end - step, sum(counts) / len(counts)))
        if not kept:
            raise InputError(f"there are no rows before {moment(end)}; is the metric still there?")
        return demand_of_rows(_table(kept), Path("the record")), missing

    def text(self) -> str:
        """Return the record as a demand file, which :func:`rows_from_csv` reads."""
        rows = sorted(self.rows.values(), key=lambda row: row[1::-1])
        times = np.datetime_as_string(np.array([row.minute for row in rows], "M8[m]"))
        text = io.StringIO()
        cells = csv.writer(text, lineterminator="\n")
        cells.writerow(["service", "time", *COUNTED])
        for row, time in zip(rows, times.tolist(), strict=True):
            cells.writerow([row.service, time, *("" if n != n else n for n in row[2:])])
        return text.getvalue()


def _table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a table with the columns of a demand file."""
    table = pd.DataFrame(rows, columns=["service", "time", *COUNTED])
    return table.assign(time=table["time"].to_numpy("M8[m]").astype("M8[s]"))


def rows_from_csv(text: str, named: str, period: int) -> list[Row]:
    """Read the rows of a demand file in their order.

    ``period``: minutes of a period, with which rates become requests; 0 where it is still open.
    """
    label = Path(named)
    try:
        table = pd.read_csv(io.StringIO(text), dtype=str)
    except ValueError as fault:
        reason = " ".join(str(fault).split())
        raise InputError(f"{label} is no CSV: {reason}. Correct it.") from None
    plain = meanings([str(column) for column in table.columns], named)
    frame = long_rows(table[list(plain)].rename(columns=plain), label)
    if "requests" not in frame and "requests_per_s" not in frame:
        raise InputError(
            f"{named} has neither requests nor requests_per_s; a share of load has no size, so add "
            "up requests to periods of a minute to an hour."
        )
    minutes = frame["time"].to_numpy("M8[m]").astype(np.int64).tolist()
    if "requests" in frame:
        requests = frame["requests"].to_numpy(float)
    else:
        step = period or _period(set(minutes), named) or HOUR
        requests = frame["requests_per_s"].to_numpy(float) * step * 60.0
    places = np.arange(len(frame))
    tokens = [
        mean_tokens(frame, places, requests, which=which, default=math.nan, sums=True).tolist()
        for which in ("prompt", "output")
    ]
    cells = zip(frame["service"], minutes, requests.tolist(), *tokens, strict=True)
    return [Row(str(service), *rest) for service, *rest in cells]


def moment(minute: int) -> str:
    """Return a minute since 1970 as a time, UTC.

    >>> moment(minute_of("2024-05-10T13:00"))
    '2024-05-10T13:00'
    """
    return str(np.datetime64(minute, "m"))


def minute_of(text: str) -> int:
    """Read a time, UTC, as minutes since 1970."""
    return int(np.datetime64(text, "m").astype(np.int64))


def _period(minutes: set[int], named: str) -> int:
    """Smallest distance of two rows, which must divide an hour; 0 for fewer than two rows."""
    if len(minutes) < 2:
        return 0
    period = int(np.diff(sorted(minutes)).min())
    if HOUR % period:
        raise InputError(
            f"{shown(named)}: rows are {period} minutes apart, which does not divide an hour; "
            "resample them to 1, 5, 15 or 60 minutes."
        )
    return period
