"""Demand that grows: its sources, and a record that has every period once."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import numpy as np
import pandas as pd

from topologies.support.errors import InputError, shown, system_reason
from topologies.support.files.reading import decoded, open_regular
from workloads.demand.read import MAX_BYTES, demand_of_rows, long_rows, mean_tokens, meanings
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
        """Add rows in the order of their arrival; those that cannot be believed stay out."""
        # Refused are another value than before, a row older than a day, a month ahead, or off the
        # grid.
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
        """Return the demand of some days up to a minute, and the minutes that had no row."""
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
        for row, stamp in zip(rows, times.tolist(), strict=True):
            cells.writerow([row.service, stamp, *("" if n != n else n for n in row[2:])])
        return text.getvalue()


def _table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a table with the columns of a demand file."""
    table = pd.DataFrame(rows, columns=["service", "time", *COUNTED])
    return table.assign(time=table["time"].to_numpy("M8[m]").astype("M8[s]"))


def rows_from_csv(text: str, named: str, period: int) -> list[Row]:
    """Read a demand file's rows in order; the minutes of a ``period`` make requests of rates."""
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


TIMEOUT_S = 10.0  # longest silence of a server [s]
WHOLE_S = 60.0  # longest time of one answer of a server [s]
LARGEST_ANSWER_BYTES = 2**26
POINTS = 10_000  # values of one query; Prometheus answers at most 11,000
SETTLE_MIN = 1  # minutes after an hour until its last values have been scraped
TOKEN_VARIABLE = "CLUSTER_SIM_SOURCE_TOKEN"
"""Environment variable with the bearer token of a Prometheus server, where it asks for one."""
ADDRESS = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:]+\])(:\d{1,5})?(/[^?#@]*)?")
Cursor = Mapping[str, Any]


@dataclass(frozen=True)
class Batch:
    """Rows that a source has given since the last time."""

    rows: Sequence[Row]
    cursor: Cursor  # where the source goes on, in a form that JSON can hold
    # Minute since 1970 up to which the source has spoken; None where it has no clock of its own,
    # and the newest row is the present
    now: int | None = None


@dataclass(frozen=True)
class GrowingFile:
    """A demand file in CSV to which rows are added; what stands after its last line end waits."""

    path: Path

    @property
    def name(self) -> str:
        """Name by which a state directory knows the source."""
        return str(self.path.absolute())

    def fetch(self, record: Record, cursor: Cursor, days: float) -> Batch:
        """Read the rows that were added; a new or rewritten file is read from its beginning."""
        named = f"demand file {self.path}"
        try:
            with open(self.path, "rb", opener=open_regular) as stream:
                status = os.fstat(stream.fileno())
                same = cursor.get("inode") == status.st_ino
                offset = int(cursor.get("offset", 0)) if same else 0
                stream.seek(max(offset - 1, 0))
                offset = offset if stream.read(1) == b"\n" else 0  # no row ends there any more
                stream.seek(0)
                header = stream.readline(2**16)
                stream.seek(max(offset, len(header)))
                added = stream.read(MAX_BYTES + 1)
        except (OSError, ValueError) as fault:
            raise InputError(f"{named} cannot be read: {system_reason(fault)}") from None
        if len(added) > MAX_BYTES:
            raise InputError(f"{named} has grown by over {MAX_BYTES:,} bytes; sum it up first.")
        whole = added[: added.rfind(b"\n") + 1]
        end = max(offset, len(header)) + len(whole)
        label, rows = f"{self.path}, added rows", []
        if whole.strip():
            rows = rows_from_csv(decoded(header + whole, label), label, record.period)
        return Batch(rows, {"inode": status.st_ino, "offset": end})


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus server, or any other with its query API, asked for a value each minute."""

    url: str
    query: str  # PromQL for the requests per second of the minute before
    # PromQL for the prompt tokens and the output tokens per second; empty where none are counted
    tokens: tuple[str, str] = ("", "")
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not ADDRESS.fullmatch(self.url):
            raise InputError(
                "the source is no address such as http://HOST:9090, without a name and a password; "
                f"a bearer token goes into {TOKEN_VARIABLE}."
            )

    @property
    def name(self) -> str:
        """Name by which a state directory knows the source."""
        return f"{self.url} {self.query}"

    def fetch(self, record: Record, cursor: Cursor, days: float) -> Batch:
        """Ask for the minutes that the record has not, up to the server's present."""
        # Values of a server whose clock went back cannot be placed in time.
        try:
            return self._fetch(record, cursor, days)
        except InputError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as fault:
            raise InputError(
                f"source {shown(self.url)} answers in another form than Prometheus' query API "
                f"({type(fault).__name__}). Is the address right?"
            ) from None

    def _fetch(self, record: Record, cursor: Cursor, days: float) -> Batch:
        now = int(float(self._ask("query", {"query": "time()"})["result"][1]) // 60)
        before = int(cursor.get("clock", now))
        if now < before:
            raise InputError(
                f"the clock of {shown(self.url)} went back from {moment(before)} to {moment(now)}; "
                "nothing is taken until it has caught up."
            )
        first = now - round(days * MINUTES_PER_DAY) - 2 * HOUR  # whole days before the last hour
        if record.newest is not None:
            first = max(record.newest, now - FURTHEST) - LATEST
        counts = self._series(self.query, first, now)
        tokens = [dict(self._series(query, first, now) if query else ()) for query in self.tokens]
        held = {minute for _, minute in record.rows}
        rows = [
            Row("service", minute, rate * 60.0, *(_over(of.get(minute), rate) for of in tokens))
            for minute, rate in counts
            if minute not in held
        ]
        return Batch(rows, {"clock": now}, now - SETTLE_MIN)

    def _series(self, query: str, first: int, now: int) -> list[tuple[int, float]]:
        """Values of a query, a single series, by the minute that each is about."""
        values: list[tuple[int, float]] = []
        for begin in range(first + 1, now + 1, POINTS):
            end = min(begin + POINTS - 1, now)
            bounds = {"query": query, "start": begin * 60, "end": end * 60, "step": 60}
            series = self._ask("query_range", bounds).get("result", [])
            if len(series) > 1:
                raise InputError(
                    f"{shown(query)} has {len(series)} series at {shown(self.url)}; make one of "
                    "them, such as sum(…)."
                )
            # The value at the end of a minute is that of the minute before.
            points = [(float(at), float(value)) for one in series for at, value in one["values"]]
            values += [(int(at // 60) - 1, value) for at, value in points if math.isfinite(value)]
        for minute, value in values:
            if value < 0:
                raise InputError(
                    f"{shown(query)} is {value:g} at {moment(minute)}; a rate is at least 0."
                )
        return values

    def _ask(self, what: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the data of one answer of the query API."""
        named = f"source {shown(self.url)}"
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(str(parts.hostname), parts.port, timeout=TIMEOUT_S)
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        target = f"{parts.path.rstrip('/')}/api/v1/{what}?{urlencode(parameters)}"
        try:
            connection.request("GET", target, headers=headers)
            with connection.getresponse() as answer:
                content = _bounded(answer)
        except (OSError, HTTPException) as fault:
            raise InputError(f"{named} does not answer ({fault}). Is it running?") from None
        finally:
            connection.close()
        document = json.loads(content)
        if document["status"] != "success":
            raise InputError(f"{named} refuses {what}: {shown(str(document['error']), 200)}.")
        data: Mapping[str, Any] = document["data"]
        return data


def _bounded(answer: Any) -> bytes:
    """Read an answer of limited size in limited time."""
    parts, size, end_s = [], 0, time.monotonic() + WHOLE_S
    while part := answer.read1(2**16):
        parts.append(part)
        size += len(part)
        if size > LARGEST_ANSWER_BYTES:
            raise OSError(f"its answer is over {LARGEST_ANSWER_BYTES:,} bytes")
        if time.monotonic() > end_s:
            raise OSError(f"its answer took over {WHOLE_S:g} s")
    return b"".join(parts)


def _over(tokens_per_s: float | None, requests_per_s: float) -> float:
    """Mean tokens of a request; NaN where there are no requests or no tokens are counted."""
    return tokens_per_s / requests_per_s if tokens_per_s and requests_per_s else math.nan


def source_of(text: str, query: str | None, tokens: tuple[str, str]) -> GrowingFile | Prometheus:
    """Return the source that an address and a query, or a path, name."""
    is_address = "://" in text
    if is_address and not query:
        raise InputError(
            f"--follow {shown(text)} needs --query, such as "
            "'sum(rate(vllm:request_success_total[1m]))', requests a second."
        )
    if is_address:
        return Prometheus(text.rstrip("/"), str(query), tokens, os.environ.get(TOKEN_VARIABLE, ""))
    if query or any(tokens):
        raise InputError(f"--query is for a server, and {shown(text)} is a file; leave it out.")
    return GrowingFile(Path(text))
