"""Sources of a demand that grows: a CSV file to which rows are added, and Prometheus' query API."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from experiments.hourly.record import FURTHEST, HOUR, LATEST, Record, Row, moment, rows_from_csv
from topologies.errors import InputError, shown, system_reason
from topologies.files.reading import decoded, open_regular
from workloads.demand.read import MAX_BYTES
from workloads.demand.trace import MINUTES_PER_DAY

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
        """Read the rows that were added; a file that is new or shorter is read from its beginning.

        ``days`` is for sources that keep a longer history than is needed.
        """
        named = f"demand file {self.path}"
        try:
            with open(self.path, "rb", opener=open_regular) as stream:
                status = os.fstat(stream.fileno())
                same = cursor.get("inode") == status.st_ino
                offset = int(cursor.get("offset", 0)) if same else 0
                offset = 0 if offset > status.st_size else offset
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
        """Ask for the minutes that the record has not, up to the server's present.

        ``days``: length of the history at the beginning [days]. ``cursor`` holds the server's clock
        as it was; one that went back is refused, since its values cannot be placed in time.
        """
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
        tokens = [self._series(query, first, now) if query else [] for query in self.tokens]
        prompt, output = (dict(series) for series in tokens)
        held = {minute for _, minute in record.rows}
        rows = [
            Row(
                "service",
                minute,
                rate * 60.0,
                _over(prompt.get(minute), rate),
                _over(output.get(minute), rate),
            )
            for minute, rate in counts
            if minute not in held
        ]
        return Batch(rows, {"clock": now}, now - SETTLE_MIN)

    def _series(self, query: str, first: int, now: int) -> list[tuple[int, float]]:
        """Values of a query by the minute that each is about, from minute ``first`` to the present.

        Raises InputError for several series, and for values below 0.
        """
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
