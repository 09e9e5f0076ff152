"""Reader of demand files: counts per period, load shares, or one row a request.

Columns, in any order (``ALIASES`` has the spellings of public traces):

==================================  ==========================================================
``time`` / ``minute_utc`` / …       ISO time, UTC unless it has a zone, or Unix time of the start of
                                    the row's period
``time_s`` / ``minute`` / …         or time since the start, in that unit
``day`` and ``hour``                or both of these
``service``                         optional; one time series for each
``requests``                        requests in the period
``requests_per_s`` / ``rps`` / …    or their rate in it, also ``requests_per_minute`` / ``rpm``
``load_share`` / ``load`` / ``rate``  or load on any scale, such as a share of the peak: a shape
``chat_requests``                   or one ``…_requests`` column for each service
``prompt_tokens_mean``              optional, mean tokens of a request of the row
``prompt_tokens_sum``               or tokens of all requests of the row
``output_tokens_mean``, ``…_sum``   the same
==================================  ==========================================================

``prompt_tokens`` without a suffix is a sum beside ``requests``, and a mean in a log or beside
``load_share``. A file whose requests have less than one prompt token in the mean, or more than two
million, is refused, because a sum was read as a mean or a mean as a sum.

A file with times and neither requests nor load is read as a log: one row a request, with that
request's tokens. Logs in JSON (:mod:`workloads.demand.request_logs`) are read in the same way. The
period is the smallest distance between two rows; each period's requests are spread evenly over its
minutes. Periods without a row have no requests where their neighbours have few, and are filled
where they have many; a row that comes twice counts once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import BoolArray, FloatArray
from topologies.support.errors import InputError, check_choice, shown, suggestion
from topologies.support.files.table import read_table
from workloads.demand.request_logs import is_json_log, read_json_log
from workloads.demand.trace import MINUTES_PER_DAY, MINUTES_PER_WEEK, Demand, beside

if TYPE_CHECKING:
    import pandas as pd

TIME_S = {
    "time_s": 1.0,
    "timestamp_s": 1.0,
    "window_start_s": 1.0,
    "timestamp_ms": 1e-3,
    "minute": 60.0,
    "minute_from_start": 60.0,
    "hour_index": 3600.0,
}
"""Columns of relative times, with the seconds in one unit of each."""

CLOCK = ("time", "timestamp", "minute_utc", "hour_utc", "time_utc")
"""Columns of absolute times in ISO 8601, UTC; a bare number counts as seconds."""

UNIX_S, UNIX_MS = 946_684_800.0, 1e11
"""Number of seconds, that of the year 2000, from which a time is one since 1970; and bare number
from which such a time is in milliseconds, which as seconds would be the year 5138."""

ALIASES = {
    "model": "service",
    "contexttokens": "prompt_tokens",
    "generatedtokens": "output_tokens",
    "request tokens": "prompt_tokens",
    "response tokens": "output_tokens",
    "input_tokens": "prompt_tokens",
    "num_prefill_tokens": "prompt_tokens",
    "num_decode_tokens": "output_tokens",
    "completion_tokens": "output_tokens",
    "generation_tokens": "output_tokens",
    "arrived_at": "time_s",
    "prompt_tokens_est": "prompt_tokens",
    "output_tokens_est": "output_tokens",
    "load_share_of_peak": "load_share",
    "load": "load_share",
    "rate": "load_share",
    "rps": "requests_per_s",
    "qps": "requests_per_s",
    "requests_per_second": "requests_per_s",
    "rpm": "requests_per_minute",
    "requests_per_min": "requests_per_minute",
    "requests per minute": "requests_per_minute",
    "avg_prompt_tokens": "prompt_tokens_mean",
    "avg_input_tokens": "prompt_tokens_mean",
    "avg_output_tokens": "output_tokens_mean",
    "input_tokens_mean": "prompt_tokens_mean",
    "input_tokens_sum": "prompt_tokens_sum",
    "datetime": "time",
    "date": "time",
}
"""Spellings of public traces, in lower case, and the columns that they stand for."""

PER_MINUTE = {"requests_per_s": 60.0, "requests_per_minute": 1.0}
"""Columns of rates, with the requests in a minute at one unit of each."""
COUNTS = ("requests", *PER_MINUTE)
"""Columns that count requests."""
LOADS = (*COUNTS, "load_share")

LOAD = (
    *LOADS, "prompt_tokens", "output_tokens", "prompt_tokens_mean", "output_tokens_mean",
    "prompt_tokens_sum", "output_tokens_sum", "requests_with_lengths", "input_tokens_covered",
    "output_tokens_covered",
)  # fmt: skip
"""Columns of requests, loads and tokens."""

IGNORED = (
    "clock_utc8", "inference_nodes", "inference_nodes_mean", "theoretical_income_usd",
    "active_clients", "mean_client_cv", "prefix_blocks", "reused_prefix_blocks", "total tokens",
    "log type", "session id", "elapsed time", "request_id", "client_id", "num_total_tokens",
    "pd_ratio", "cached_tokens", "prefix_tokens",
)  # fmt: skip
"""Columns of public traces that are not read."""

WIDE = "_requests"
"""Ending of a column with the requests of one service: ``chat_requests`` for service ``chat``."""


def meanings(header: list[str], path: str) -> dict[str, str]:
    """Map every column of a file to its plain name; columns that are ignored have none.

    >>> meanings(["service", "minute_utc", "requests"], "a.csv")["minute_utc"]
    'minute_utc'
    >>> meanings(["TIMESTAMP", "ContextTokens", "GeneratedTokens"], "a.csv")["ContextTokens"]
    'prompt_tokens'
    """
    columns = {*TIME_S, *CLOCK, *LOAD, "service", "day", "hour"}
    result: dict[str, str] = {}
    for column in header:
        plain = column.strip().lower()
        plain = ALIASES.get(plain, plain)
        if plain in IGNORED:
            continue
        if plain not in columns and not plain.endswith(WIDE):
            raise InputError(
                f"{path}: unknown column {column!r}; a demand file has a time ({', '.join(CLOCK)}, "
                f"{', '.join(TIME_S)}), optionally service, and requests, requests_per_s, "
                f"load_share or one row a request, with prompt_tokens_mean or prompt_tokens_sum "
                f"and the same of output_tokens."
                + suggestion(plain, sorted(columns | set(ALIASES)))
            )
        if plain in result.values():
            raise InputError(f"{path}: two columns mean {plain}; keep one of them.")
        result[column] = plain
    return result


LEAST_MEAN, MOST_MEAN = 1.0, 2e6
"""Least and most mean prompt tokens of a request that are plausible."""
COVERED = {"prompt": "input_tokens_covered", "output": "output_tokens_covered"}
"""Columns with sums over only those requests whose lengths the source publishes."""


def token_column(rows: pd.DataFrame, which: str) -> str | None:
    """Return the column with tokens of the ``prompt`` or ``output``; None without any number."""
    names = (COVERED[which], *(f"{which}_tokens{suffix}" for suffix in ("_sum", "_mean", "")))
    return next((name for name in names if name in rows and rows[name].notna().any()), None)


def mean_tokens(
    rows: pd.DataFrame,
    slot: npt.NDArray[np.int64],
    requests: FloatArray,
    *,
    which: str,
    default: float,
    sums: bool,
) -> FloatArray:
    """Mean tokens of a request in each period, those without take the overall mean; (periods,)."""
    periods = len(requests)
    column = token_column(rows, which)
    if column is None:
        return np.full(periods, default)
    has_tokens = rows[column].notna().to_numpy()
    values = rows[column].fillna(0.0).to_numpy(float)
    if column == COVERED[which] and "requests_with_lengths" in rows:
        counts = rows["requests_with_lengths"].fillna(0.0).to_numpy(float)
    elif column.endswith("_mean") or (column.endswith("_tokens") and not sums):
        # A row's mean is weighted by its requests; a row of a log is one request.
        load = next((name for name in LOADS if name in rows), None)
        counts = np.ones(len(rows)) if load is None else rows[load].to_numpy(float)
        values = values * counts
    else:
        counts = requests[slot] / np.bincount(slot, minlength=periods)[slot]
    tokens = np.bincount(slot, values, periods)
    counted = np.bincount(slot, counts * has_tokens, periods)
    stated = (tokens > 0) & (counted > 0)
    overall = tokens[stated].sum() / counted[stated].sum() if stated.any() else default
    means: FloatArray = np.full(periods, float(overall))
    return np.divide(tokens, counted, out=means, where=stated)


def check_plausible(mean: FloatArray, requests: FloatArray, file: str) -> None:
    """Refuse a mean prompt that is not plausible: a sum was read as a mean, or a mean as a sum."""
    overall = float(np.average(mean, weights=requests))
    if overall < LEAST_MEAN:
        raise InputError(
            f"{file}: {overall:.3g} prompt tokens a request, at least 1 is expected; a column of "
            "means is called prompt_tokens_mean."
        )
    if overall > MOST_MEAN:
        raise InputError(
            f"{file}: {overall:,.0f} prompt tokens a request, at most {MOST_MEAN:,.0f} are "
            "expected; a column of sums is called prompt_tokens_sum."
        )


SURE = 20.0
"""Mean requests of the neighbours from which an empty period is a gap. A Poisson period of that
mean is empty by chance once in 5e8."""
SHORT = 120
"""Longest gap that is bridged by a line [minutes]; a longer one takes the same hours of another
day."""


def filled(
    requests: FloatArray, present: BoolArray, minutes: int, *, counts: bool
) -> tuple[FloatArray, BoolArray]:
    """Fill the gaps of a series, and return their places."""
    # Periods without a row stay without requests if their neighbours have so few that chance
    # explains it. Otherwise nobody counted: a short gap is bridged by a line, a longer one takes
    # the same hours of the nearest day that has them.
    gaps = np.zeros(len(present), bool)
    result = requests.copy()
    day = max(1, MINUTES_PER_DAY // minutes)
    for first, last in _stretches(~present):
        before, after = requests[first - 1], requests[last]
        if counts and (before + after) / 2 < SURE:
            continue
        gaps[first:last] = True
        line = np.linspace(before, after, last - first + 2)[1:-1]
        long = (last - first) * minutes > SHORT
        result[first:last] = _other_day(requests, present, first, last, day, line) if long else line
    return result, gaps


def _check_gaps(gaps: BoolArray, start: pd.Timestamp, minutes: int, where: str) -> None:
    """Refuse a demand of which most would be made up, as after a clock that jumped."""
    if 2 * gaps.sum() <= len(gaps):
        return
    first, last = max(_stretches(gaps), key=lambda each: each[1] - each[0])
    begins = start + timedelta(minutes=first * minutes)
    raise InputError(
        f"{where} has rows for {1 - gaps.mean():.0%} of the time from {start:%Y-%m-%dT%H:%M}, and "
        f"none for {(last - first) * minutes / MINUTES_PER_DAY:,.1f} days from "
        f"{begins:%Y-%m-%dT%H:%M}; at most half is filled. Correct the times of the rows, or leave "
        "out those of another time."
    )


def _stretches(absent: BoolArray) -> list[tuple[int, int]]:
    """Begin and end (exclusive) of every run of absent periods."""
    # The first and the last period always have a row, so changes come in pairs.
    change = np.flatnonzero(np.diff(absent.astype(np.int8)))
    return [(int(first) + 1, int(last) + 1) for first, last in change.reshape(-1, 2)]


def _other_day(
    requests: FloatArray, present: BoolArray, first: int, last: int, day: int, line: FloatArray
) -> FloatArray:
    """Requests of the same hours of the nearest day that has them, an earlier day first."""
    values = line.copy()
    is_open = np.ones(last - first, bool)
    place = np.arange(first, last)
    for days in sorted(range(-len(present) // day, len(present) // day + 1), key=abs):
        other = place + days * day
        fills = is_open & (other >= 0) & (other < len(present))
        fills[fills] = present[other[fills]]
        values[fills] = requests[other[fills]]
        is_open &= ~fills
    return values


MAX_BYTES = 512 * 10**6
"""Largest file that is read [B]; a longer log has to be summed up to minutes first."""

CHECKED_ROWS = 1000
"""Rows whose columns, times and numbers are checked before the whole file is read."""
MAX_MINUTES = 106 * MINUTES_PER_WEEK
MAX_SERVICES = 256
UNDATED = "2024-01-01T00:00"  # start of a file without dates: a Monday
LOG = "log"  # kind of a file with one row a request
USUAL_TOKENS = {"prompt": 1618.0, "output": 110.0}
"""Tokens of a request of which a file states none: the means of Azure's conversations."""


def read_demand(
    path: str | Path,
    *,
    service: str | None = None,
    prompt_tokens: float = USUAL_TOKENS["prompt"],
    output_tokens: float = USUAL_TOKENS["output"],
) -> Demand:
    """Read a demand file with the columns of this module's table."""
    file = Path(path)
    if not is_json_log(file):
        # A mistake shows in the first rows; reading a large file whole takes half a minute.
        long_rows(_table(file, CHECKED_ROWS), file)
    long = long_rows(_table(file), file)
    if service is not None:
        check_choice(f"{file}: service", service, sorted(set(long["service"])))
        long = long[long["service"] == service]
    return demand_of_rows(long, file, {"prompt": prompt_tokens, "output": output_tokens})


def demand_of_rows(
    long: pd.DataFrame, file: Path, assumed: Mapping[str, float] = USUAL_TOKENS
) -> Demand:
    """Return the demand of a table that :func:`long_rows` gave; ``file`` names its source."""
    series = [
        _series(rows, str(name), file, assumed)
        for name, rows in long.groupby("service", sort=False)
    ]
    if len({(each.start, each.minutes) for each in series}) > 1:
        spans = "; ".join(
            f"{each.services[0]} {each.minutes} min from {each.start}" for each in series
        )
        raise InputError(
            f"{file}: services cover different spans ({spans}); name one service, such as "
            f"--service {series[0].services[0]}."
        )
    return beside(series, [each.services[0] for each in series])


def _table(file: Path, rows: int | None = None) -> pd.DataFrame:
    """Read the first ``rows`` rows, or all, with columns under their plain names."""
    if is_json_log(file):
        return read_json_log(file, rates=True)
    remedy = "give a CSV file, the JSON of Prometheus' query_range, or a bundled name"
    table = read_table(file, "demand", remedy=remedy, limit_bytes=MAX_BYTES, dtype=str, nrows=rows)
    named = meanings([str(column) for column in table.columns], str(file))
    return table[list(named)].rename(columns=named)


def long_rows(table: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Return a long table with the service, time (ns) and numbers of each row."""
    import pandas as pd

    result = pd.DataFrame({"time": _times(table, file)})
    names = [name for name in table.columns if name in LOAD]
    for name in names:
        result[name] = _numbers(table[name], name, file, blank=name not in LOADS)
    wide = [name for name in table.columns if name.endswith(WIDE)]
    labels = table["service"].fillna("service").str.strip() if "service" in table else "service"
    result = result.assign(service=labels)
    services = len(wide) or result["service"].nunique()
    if services > MAX_SERVICES:
        raise InputError(
            f"{file}: {services} services, at most {MAX_SERVICES} are read; join the small ones."
        )
    if wide:
        parts = [
            result.assign(
                service=name.removesuffix(WIDE), requests=_numbers(table[name], name, file)
            )
            for name in wide
        ]
        return pd.concat(parts, ignore_index=True)
    return result


def _cell(column: pd.Series[Any], row: int) -> str:
    return "empty" if column.isna().iloc[row] else repr(shown(str(column.iloc[row])))


def _numbers(column: pd.Series[Any], name: str, file: Path, *, blank: bool = False) -> FloatArray:
    """Read a column of numbers; ``blank`` allows empty cells, which become NaN."""
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce").to_numpy(float)
    empty = column.isna().to_numpy()
    bad = ~np.isfinite(values) & ~(empty & blank) | (values < 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"{file}, row {row + 2}: {name} is {_cell(column, row)}; it must be a "
            "number of at least 0."
        )
    return values


def stated_times(table: pd.DataFrame, file: Path) -> pd.Series[Any] | FloatArray:
    """Read the times of the rows: dates, or seconds since 1970 or since any start."""
    import pandas as pd

    clock = next((name for name in CLOCK if name in table), None)
    unit = next((name for name in TIME_S if name in table), None)
    if clock is not None and pd.to_numeric(table[clock], errors="coerce").isna().any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            moments = pd.to_datetime(table[clock], errors="coerce", utc=True, format="ISO8601")
        bad = moments.isna().to_numpy()
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"{file}, row {row + 2}: {clock} is {_cell(table[clock], row)}; "
                "it must be a time such as 2024-05-10T13:45."
            )
        return moments.dt.tz_localize(None)
    if clock is not None:
        seconds = _numbers(table[clock], clock, file)
        seconds = seconds / 1000.0 if seconds.min() >= UNIX_MS else seconds
    elif unit is not None:
        seconds = _numbers(table[unit], unit, file) * TIME_S[unit]
    elif "hour" in table:
        days = _numbers(table["day"], "day", file) if "day" in table else 0.0
        seconds = days * 86400.0 + _numbers(table["hour"], "hour", file) * 3600.0
    else:
        raise InputError(f"{file}: no time column; add time, minute_utc, time_s or minute.")
    return seconds


def _times(table: pd.DataFrame, file: Path) -> pd.Series[Any]:
    """Read the times of the rows as dates; relative ones count from Monday, 1 January 2024."""
    import pandas as pd

    seconds = stated_times(table, file)
    if isinstance(seconds, pd.Series):
        return seconds
    if seconds.min() >= UNIX_S:
        return pd.Series(pd.to_datetime(np.rint(seconds * 1000), unit="ms"))
    if seconds.max() > MAX_MINUTES * 60.0:
        raise InputError(
            f"{file}: a time of {seconds.max():,.0f} s, limit {MAX_MINUTES * 60:,} s; "
            "check the unit in the column's name."
        )
    milliseconds = pd.to_timedelta(np.rint(seconds * 1000), unit="ms")
    return pd.Series(pd.Timestamp(UNDATED) + milliseconds)


def _series(rows: pd.DataFrame, service: str, file: Path, assumed: Mapping[str, float]) -> Demand:
    kind = next((name for name in LOADS if name in rows), LOG)
    repeated = rows.duplicated() if kind != LOG else np.zeros(len(rows), bool)
    rows = rows[~repeated]
    start, slot, period, periods = _grid(rows["time"], file, service, is_log=kind == LOG)
    weights = np.ones(len(rows)) if kind == LOG else rows[kind].to_numpy(float)
    if kind in PER_MINUTE:
        weights = weights * period * PER_MINUTE[kind]
    requests = np.bincount(slot, weights, periods).astype(float)
    if requests.sum() <= 0:
        raise InputError(f"{file}: service {service} has no requests at all; check the columns.")
    gaps = np.zeros(periods, bool)
    if kind != LOG:
        present = np.bincount(slot, minlength=periods) > 0
        requests, gaps = filled(requests, present, period, counts=kind in COUNTS)
        _check_gaps(gaps, start, period, f"{file}: {service}")
    means = [
        mean_tokens(rows, slot, requests, which=which, default=default, sums=kind in COUNTS)
        for which, default in assumed.items()
    ]
    check_plausible(means[0], requests, str(file))
    return Demand(
        (service,),
        start.strftime("%Y-%m-%dT%H:%M"),
        np.repeat(requests / period, period)[None, :],
        np.repeat(means[0], period)[None, :],
        np.repeat(means[1], period)[None, :],
        absolute=kind != "load_share",
        notes=_notes(rows, service, assumed, int(gaps.sum()) * period, int(repeated.sum())),
    )


def _notes(
    rows: pd.DataFrame, service: str, assumed: Mapping[str, float], minutes: int, repeated: int
) -> tuple[str, ...]:
    """Say what was assumed, filled and left out about a service."""
    notes = []
    if minutes:
        notes.append(
            f"{minutes:,} minutes of {service} had no row in the demand file and were filled."
        )
    if repeated:
        notes.append(
            f"rows of {service} that came twice in the demand file count once: {repeated:,}."
        )
    unstated = [which for which in assumed if token_column(rows, which) is None]
    if unstated:
        tokens = " and ".join(f"{assumed[which]:,.0f} {which} tokens" for which in unstated)
        columns = " and ".join(f"{which}_tokens_mean" for which in unstated)
        notes.append(
            f"the demand of {service} states no lengths: a request is taken to have {tokens}; "
            f"{columns} would state them."
        )
    return tuple(notes)


def _grid(
    times: pd.Series[Any], file: Path, service: str, *, is_log: bool
) -> tuple[pd.Timestamp, np.ndarray[Any, np.dtype[np.int64]], int, int]:
    """Place rows on a grid of equal periods."""
    # Returns ``start``: beginning of the first period. ``slot`` (rows,): number of each row's
    # period. ``period, periods``: minutes in a period, and number of periods.
    import pandas as pd

    first = times.min().floor("min")
    since = (times - first) / pd.Timedelta(minutes=1)
    if is_log:
        period = 1
    else:
        distinct = np.unique(since.to_numpy(float))
        if len(distinct) != len(times):
            raise InputError(f"{file}: service {service} has two rows for one period; add them up.")
        steps = np.diff(distinct)
        period = round(float(steps.min())) if len(steps) else 60
        if period < 1 or np.any(np.abs(since / period - np.rint(since / period)) > 1e-6):
            raise InputError(
                f"{file}: rows of service {service} are not on a grid of whole minutes "
                f"(smallest step {steps.min():.4g} min); resample to equal periods."
            )
    slot = np.floor(since.to_numpy(float) / period + 1e-9).astype(np.int64)
    periods = int(slot.max()) + 1
    if periods * period > MAX_MINUTES:
        raise InputError(
            f"{file}: {periods * period:,} minutes, limit {MAX_MINUTES:,}; cut the file."
        )
    return first, slot, period, periods
