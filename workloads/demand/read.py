"""Reader of demand files: counts per period, load shares, or one row a request.

Columns, in any order (spellings of public traces are understood, see
:mod:`workloads.demand.columns`):

==================================  ==========================================================
``time`` / ``minute_utc`` / …       ISO time, UTC, of the start of the row's period
``time_s`` / ``minute`` / …         or time since the start, in that unit
``day`` and ``hour``                or both of these
``service``                         optional; one time series for each
``requests``                        requests in the period
``requests_per_s`` / ``rps`` / …    or their rate in it
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
where they have many (:mod:`workloads.demand.gaps`).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError, shown
from topologies.files.frame import read_table
from workloads.demand.columns import CLOCK, LOAD, TIME_S, WIDE, meanings
from workloads.demand.gaps import filled
from workloads.demand.request_logs import is_json_log, read_json_log
from workloads.demand.token_columns import check_plausible, mean_tokens
from workloads.demand.trace import MINUTES_PER_WEEK, Demand

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 512 * 10**6
"""Largest file that is read [B]; a longer log has to be summed up to minutes first."""

CHECKED_ROWS = 1000
"""Rows whose columns, times and numbers are checked before the whole file is read."""
MAX_MINUTES = 106 * MINUTES_PER_WEEK
MAX_SERVICES = 64
UNDATED = "2024-01-01T00:00"
"""Start of a file without dates: a Monday."""
COUNTS = ("requests", "requests_per_s")
"""Columns that count requests."""
LOADS = (*COUNTS, "load_share")
LOG = "log"
"""Kind of a file with one row a request."""


def read_demand(
    path: str | Path,
    *,
    service: str | None = None,
    prompt_tokens: float = 1618.0,
    output_tokens: float = 110.0,
) -> Demand:
    """Read a demand file with the columns of this module's table.

    Parameters
    ----------
    path : str or Path
    service : str, optional
        The only service that is kept; needed when services cover different spans.
    prompt_tokens, output_tokens : float
        Mean tokens of a request where the file has none (the defaults are the means of Azure's
        2024 conversation service).

    Raises
    ------
    InputError
        For a missing or too large file, unknown columns, bad values, different spans.
    """
    file = Path(path)
    if not is_json_log(file):
        # A mistake shows in the first rows; reading a large file whole takes half a minute.
        _long(_table(file, CHECKED_ROWS), file)
    long = _long(_table(file), file)
    if service is not None:
        long = _one_service(long, service, file)
    series = [
        _series(rows, str(name), file, prompt_tokens, output_tokens)
        for name, rows in long.groupby("service", sort=False)
    ]
    if len({(each.start, each.minutes) for each in series}) > 1:
        spans = "; ".join(
            f"{each.services[0]} {each.minutes} min from {each.start}" for each in series
        )
        raise InputError(f"{file}: services cover different spans ({spans}); name one service.")
    return Demand(
        tuple(each.services[0] for each in series),
        series[0].start,
        np.concatenate([each.requests for each in series]),
        np.concatenate([each.prompt_tokens for each in series]),
        np.concatenate([each.output_tokens for each in series]),
        absolute=series[0].absolute,
        notes=tuple(note for each in series for note in each.notes),
    )


def _table(file: Path, rows: int | None = None) -> pd.DataFrame:
    """Read the first ``rows`` rows, or all, with columns under their plain names."""
    if is_json_log(file):
        return read_json_log(file)
    table = read_table(
        file,
        "demand",
        remedy="give a CSV file or a bundled name",
        limit_bytes=MAX_BYTES,
        dtype=str,
        nrows=rows,
    )
    named = meanings([str(column) for column in table.columns], str(file))
    return table[list(named)].rename(columns=named)


def _long(table: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Return a long table with the service, time (ns) and numbers of each row.

    A row is a period of one service, or a request; columns such as ``chat_requests`` become rows.
    """
    import pandas as pd

    result = pd.DataFrame({"time": _times(table, file)})
    names = [name for name in table.columns if name in LOAD]
    for name in names:
        result[name] = _numbers(table[name], name, file, blank=name not in LOADS)
    wide = [name for name in table.columns if name.endswith(WIDE)]
    if wide:
        parts = [
            result.assign(
                service=name.removesuffix(WIDE), requests=_numbers(table[name], name, file)
            )
            for name in wide
        ]
        return pd.concat(parts, ignore_index=True)
    labels = table["service"].fillna("service").str.strip() if "service" in table else "service"
    result = result.assign(service=labels)
    if result["service"].nunique() > MAX_SERVICES:
        raise InputError(
            f"{file}: {result['service'].nunique()} services, at most {MAX_SERVICES} are read; "
            "join the small ones."
        )
    return result


def _numbers(column: pd.Series[Any], name: str, file: Path, *, blank: bool = False) -> FloatArray:
    """Read a column of numbers; ``blank`` allows empty cells, which become NaN."""
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce").to_numpy(float)
    empty = column.isna().to_numpy()
    bad = ~np.isfinite(values) & ~(empty & blank) | (values < 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"{file}, row {row + 2}: {name} is {shown(str(column.iloc[row]))!r}; it must be a "
            "number of at least 0."
        )
    return values


def _times(table: pd.DataFrame, file: Path) -> pd.Series[Any]:
    """Read the times of the rows; relative times count from Monday, 1 January 2024."""
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
                f"{file}, row {row + 2}: {clock} is {shown(str(table[clock].iloc[row]))!r}; "
                "it must be a time such as 2024-05-10T13:45."
            )
        return moments.dt.tz_localize(None)
    if clock is not None:
        seconds = _numbers(table[clock], clock, file)
    elif unit is not None:
        seconds = _numbers(table[unit], unit, file) * TIME_S[unit]
    elif "hour" in table:
        days = _numbers(table["day"], "day", file) if "day" in table else 0.0
        seconds = days * 86400.0 + _numbers(table["hour"], "hour", file) * 3600.0
    else:
        raise InputError(f"{file}: no time column; add time, minute_utc, time_s or minute.")
    if seconds.max() > MAX_MINUTES * 60.0:
        raise InputError(
            f"{file}: a time of {seconds.max():,.0f} s, limit {MAX_MINUTES * 60:,} s; "
            "check the unit in the column's name."
        )
    milliseconds = pd.to_timedelta(np.rint(seconds * 1000), unit="ms")
    return pd.Series(pd.Timestamp(UNDATED) + milliseconds)


def _one_service(long: pd.DataFrame, service: str, file: Path) -> pd.DataFrame:
    """Rows of one service."""
    kept = long[long["service"] == service]
    if kept.empty:
        raise InputError(
            f"{file}: no service {service!r}; it has {', '.join(sorted(set(long['service'])))}."
        )
    return kept


def _series(
    rows: pd.DataFrame, service: str, file: Path, prompt_tokens: float, output_tokens: float
) -> Demand:
    """Return the demand of one service by the minute, from its rows."""
    kind = next((name for name in LOADS if name in rows), LOG)
    start, slot, period, periods = _grid(rows["time"], file, service, is_log=kind == LOG)
    weights = np.ones(len(rows)) if kind == LOG else rows[kind].to_numpy(float)
    if kind == "requests_per_s":
        weights = weights * period * 60.0
    requests = np.bincount(slot, weights, periods).astype(float)
    if requests.sum() <= 0:
        raise InputError(f"{file}: service {service} has no requests at all; check the columns.")
    gaps = np.zeros(periods, bool)
    if kind != LOG:
        present = np.bincount(slot, minlength=periods) > 0
        requests, gaps = filled(requests, present, period, counts=kind in COUNTS)
    means = [
        mean_tokens(rows, slot, requests, which=which, default=default, sums=kind in COUNTS)
        for which, default in (("prompt", prompt_tokens), ("output", output_tokens))
    ]
    check_plausible(means[0], requests, str(file))
    return Demand(
        (service,),
        start.strftime("%Y-%m-%dT%H:%M"),
        np.repeat(requests / period, period)[None, :],
        np.repeat(means[0], period)[None, :],
        np.repeat(means[1], period)[None, :],
        absolute=kind != "load_share",
        notes=_gap_note(service, int(gaps.sum()) * period),
    )


def _gap_note(service: str, minutes: int) -> tuple[str, ...]:
    """Remark that minutes were filled, if any were."""
    if not minutes:
        return ()
    return (f"{minutes:,} minutes of {service} had no row in the demand file and were filled.",)


def _grid(
    times: pd.Series[Any], file: Path, service: str, *, is_log: bool
) -> tuple[pd.Timestamp, np.ndarray[Any, np.dtype[np.int64]], int, int]:
    """Place rows on a grid of equal periods.

    Returns
    -------
    start : Timestamp
        Beginning of the first period.
    slot : int64 array (rows,)
        Number of each row's period.
    period, periods : int
        Minutes in a period, and number of periods.
    """
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
