"""State of lending hour by hour: a private directory of whole files, and its metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from experiments.hourly.demand import Record, minute_of, rows_from_csv
from topologies.support.errors import InputError, shown
from topologies.support.files.kept_files import is_private
from topologies.support.files.reading import read_text
from topologies.support.files.writing import whole_file

FORMAT = 1
STATE, DEMAND, HOURS, LOCK = "state.json", "demand.csv", "hours.jsonl", "lock"
"""Files of a state directory: what is known, the demand, a line for each hour, and a lock."""
LARGEST_BYTES = 2**28
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
PREFIX = "cluster_sim_lend_"
COUNTERS = {
    "answered": ("hours_answered_total", "Hours that were answered"),
    "held": ("hours_held_total", "Hours in which the last answer stayed"),
    "errors": ("errors_total", "Looks at the source that failed"),
    "duplicate_rows": ("duplicate_rows_total", "Rows that repeated an earlier one"),
    "late_rows": ("late_rows_total", "Rows older than the newest one"),
    "refused_rows": ("refused_rows_total", "Rows that were refused"),
    "promises": ("promises_judged_total", "Statements whose night is over"),
    "broken_promises": ("promises_broken_total", "Statements that demand exceeded"),
}
"""Counters that only grow, by their keys in a state: metric and help."""


@dataclass
class State:
    """Everything that a follower has to know after a restart, beside the demand."""

    source: str  # name of what is followed
    period: int = 0  # minutes of a period of the demand
    # Last hour for which there is a line, in minutes since 1970; None before the first
    hour: int | None = None
    cursor: Mapping[str, Any] = field(default_factory=dict)  # where the source goes on
    # Counters by name, see :data:`COUNTERS`
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    # What was kept for serving, by the hour in which it was stated, until judged
    statements: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)  # line of the last hour that was answered
    newest: int | None = None  # end of the newest row
    fault: str = ""  # why the last look at the source failed; empty if it did not
    written_bytes: int = 0  # length of ``hours.jsonl``
    format: int = FORMAT


@contextmanager
def opened(folder: Path, source: str) -> Iterator[tuple[State, Record]]:
    """Give the state and record of a directory of ours, made if need be, under its lock."""
    is_new = not folder.exists()
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    if not is_private(folder):
        raise InputError(f"{folder} can be written by others; name another --state, or chmod 700.")
    lock = FileLock(folder / LOCK, timeout=0, mode=PRIVATE_FILE)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{folder} is followed by another process; end it first.") from None
    try:
        state = read_state(folder) or State(source)
        if state.source != source:
            raise InputError(
                f"{folder} follows {shown(state.source)}, not {shown(source)}; name another "
                "--state."
            )
        demand = folder / DEMAND
        record = Record(period=state.period)
        if demand.exists():
            text = read_text(demand, limit_bytes=LARGEST_BYTES)
            rows = rows_from_csv(text, str(demand), state.period)
            record.rows = {(row.service, row.minute): row for row in rows}
        hours = folder / HOURS
        if hours.exists():
            os.truncate(hours, min(state.written_bytes, hours.stat().st_size))
        yield state, record
    finally:
        lock.release()
        if is_new and not (folder / STATE).exists():  # nothing was learned, and nothing stays
            (folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()


def read_state(folder: Path) -> State | None:
    """Return the state in a directory; None where there is none yet."""
    path = folder / STATE
    if not path.exists():
        return None
    text = read_text(path, limit_bytes=LARGEST_BYTES)
    try:
        state = State(**json.loads(text))
        if state.format != FORMAT:
            raise ValueError(f"format {state.format}")
    except (ValueError, TypeError, RecursionError):
        raise InputError(
            f"{path} was damaged, or written by another version. Start with a new --state."
        ) from None
    return state


def keep_record(folder: Path, record: Record) -> None:
    """Write the demand."""
    with whole_file(folder / DEMAND) as part:
        _write(part, record.text().encode(), os.O_TRUNC)


def keep_state(folder: Path, state: State) -> None:
    """Write the state, after everything that it counts."""
    with whole_file(folder / STATE) as part:
        _write(part, json.dumps(asdict(state), allow_nan=False).encode(), os.O_TRUNC)


def add_line(folder: Path, state: State, line: Mapping[str, Any]) -> None:
    """Add the line of an hour, which counts when the state is kept."""
    content = (json.dumps(line, allow_nan=False) + "\n").encode()
    _write(folder / HOURS, content, os.O_APPEND)
    state.written_bytes += len(content)


def _write(path: Path, content: bytes, how: int) -> None:
    """Write to a file of this user alone, through to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


GAUGES = {
    "lend_units": ("units", "Units lent in this hour"),
    "lend_more_units": ("more_units", "Units lent in addition to the hour before"),
    "take_back_units": ("take_back_units", "Units lent in the hour before and no longer"),
    "need_units": ("need_units", "Units that the demand of the last hour needed"),
    "lent_unit_hours": ("unit_hours", "Unit-hours lent until the end of the night"),
    "filled_minutes": ("filled_minutes", "Minutes of the history that had no row"),
    "confidence": ("confidence", "Confidence of the statement"),
    "units": ("fleet_units", "Units of the fleet"),
}
"""Metrics of the last line that was answered, with their help."""


def exposition(state: State) -> str:
    """Return the metrics of a follower.

    >>> print(exposition(State("demand.csv", fault="gone")).splitlines()[2])
    cluster_sim_lend_hours_answered_total 0
    """
    line, newest = state.last, state.newest
    rows: list[tuple[str, str, str, Any]] = [
        *((name, "counter", text, state.counts[key]) for key, (name, text) in COUNTERS.items()),
        ("source_up", "gauge", "Whether the last look worked", int(not state.fault)),
        ("hour_timestamp_seconds", "gauge", "Hour of the last line", _seconds(state.hour)),
        ("newest_timestamp_seconds", "gauge", "End of the newest row", _seconds(newest)),
        *((name, "gauge", text, line.get(key)) for key, (name, text) in GAUGES.items()),
    ]
    if line:
        stated_s = _seconds(minute_of(line["hour"]))
        rows.append(("stated_timestamp_seconds", "gauge", "Hour of the statement", stated_s))
    stated = [row for row in rows if row[-1] is not None]
    lines = [
        text
        for name, kind, help_text, value in stated
        for text in metric(PREFIX + name, kind, help_text, [("", value)])
    ]
    ahead = [
        (f'{{from="{window["from"]}",to="{window["to"]}"}}', window["units"])
        for window in line.get("windows", ())
    ]
    lines += metric(PREFIX + "window_units", "gauge", "Units of each window tonight", ahead)
    return "\n".join(lines) + "\n"


def _seconds(minute: int | None) -> int | None:
    return None if minute is None else minute * 60


def metric(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """Return the lines of one metric; each sample has its labels, in braces, and its value."""
    values = [f"{name}{labels} {value!r}" for labels, value in samples]
    return [f"# HELP {name} {text}.", f"# TYPE {name} {kind}", *values]
