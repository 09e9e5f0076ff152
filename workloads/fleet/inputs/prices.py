"""Prices and carbon of electricity by region: what a run's power costs, and when it is too dear."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pandas as pd

from topologies.support.arguments import check_names
from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError, shown
from topologies.support.files.table import read_table

COLUMNS = ("region", "hour", "time", "usd_per_mwh", "carbon_g_per_kwh")
CYCLES = (24, 168)
"""Numbers of rows of a file without dates: the hours of a day, or of a week from Monday UTC."""
MAX_BYTES = 5 * 10**6
J_PER_MWH = 3.6e9
J_PER_KWH = 3.6e6
HIGHEST = 1_000_000  # limit beyond any market's price and any grid's carbon


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices of electricity, and its carbon, in each minute of a run."""

    usd_per_mwh: FloatArray  # (minutes,)
    cap_usd_per_mwh: float = math.inf  # above it nothing trains or evaluates; serving goes on
    carbon_g_per_kwh: FloatArray | None = None  # (minutes,); None where it is not stated
    carbon_usd_per_t: float = 0.0  # price of carbon by which policies weigh it
    # Prices in each region by its name; those above are of the first, or of all where none has own
    regions: Mapping[str, Prices] = field(default_factory=dict)

    def within(self, region: str) -> Prices:
        """Return the prices in a region."""
        return self.regions.get(region, self)

    @property
    def dear(self) -> npt.NDArray[np.bool_]:
        """Minutes above the cap; (minutes,)."""
        return np.asarray(self.usd_per_mwh > self.cap_usd_per_mwh)

    @property
    def weighed_usd_per_mwh(self) -> FloatArray:
        """Price with that of the carbon, which policies look at; (minutes,)."""
        if self.carbon_g_per_kwh is None:
            return self.usd_per_mwh
        return self.usd_per_mwh + self.carbon_g_per_kwh * (self.carbon_usd_per_t / 1000)

    def cost_usd(self, power_w: FloatArray) -> float:
        """Cost of a run that draws ``power_w`` in each minute [USD]."""
        return float(np.sum(power_w * 60.0 * self.usd_per_mwh) / J_PER_MWH)

    def carbon_kg(self, power_w: FloatArray) -> float | None:
        """Carbon of a run that draws ``power_w`` in each minute [kg]; None if not stated."""
        if self.carbon_g_per_kwh is None:
            return None
        return float(np.sum(power_w * 60.0 * self.carbon_g_per_kwh) / J_PER_KWH / 1000)


Tariff = Callable[[str, int], Prices]
"""Prices of a run that begins at a time (UTC) and lasts so many minutes."""


def read_tariff(
    path: str | Path,
    *,
    cap: float = math.inf,
    carbon_usd_per_t: float = 0.0,
    carbon_g_per_kwh: float = 0.0,
    zones: Mapping[str, float] = MappingProxyType({}),
) -> Tariff:
    """Read the prices of any run, in each region of ``zones``, whose clocks are hours ahead."""
    # The file has a column ``usd_per_mwh`` and one of two others. ``hour`` counts 0 to 23 in a day
    # or 0 to 167 in a week from Monday 00:00, which then repeats, in UTC, or by the clocks of the
    # row's ``region``; ``time`` is the moment (UTC) from which a price holds until the next.
    file = Path(path)
    table = _read(file)
    weighs = cap, carbon_usd_per_t
    if carbon_usd_per_t and "carbon_g_per_kwh" not in table:
        raise InputError(
            f"--carbon-price {carbon_usd_per_t:g}: {file} has no column carbon_g_per_kwh; add it."
        )
    if carbon_g_per_kwh and "carbon_g_per_kwh" in table:
        raise InputError(
            f"--carbon {carbon_g_per_kwh:g} beside the column carbon_g_per_kwh of {file}; leave "
            "one of them out."
        )
    if "region" not in table:
        return _quotes(table, str(file), weighs, 0.0)
    parts, names = {}, table["region"].astype(str)
    for name, hours in zones.items():
        if not (names == name).any():
            raise InputError(f"{file} has no rows of region {name}; add them.")
        parts[name] = _quotes(table[names == name], f"{file}, region {name}", weighs, hours)
    if not parts:
        raise InputError(f"{file} has prices by region, and the fleet has none; state --region.")
    return partial(_by_region, parts)


def _by_region(parts: Mapping[str, Tariff], start: str, minutes: int) -> Prices:
    regions = {name: part(start, minutes) for name, part in parts.items()}
    return replace(next(iter(regions.values())), regions=regions)


def _quotes(table: pd.DataFrame, where: str, weighs: tuple[float, float], hours: float) -> Tariff:
    """Return the prices of a region whose clocks are so many hours ahead."""
    # ``where``: file and region, for errors. ``weighs``: cap on the price, and price of carbon.
    price, carbon = _numbers(table, "usd_per_mwh", -HIGHEST, where), None
    if "carbon_g_per_kwh" in table:
        carbon = _numbers(table, "carbon_g_per_kwh", 0, where)
    if "hour" in table:
        hour = pd.to_numeric(table["hour"], errors="coerce").to_numpy(float)
        rows = np.argsort(hour)
        if len(hour) not in CYCLES or not np.array_equal(hour[rows], np.arange(len(hour))):
            raise InputError(
                f"{where}: hour must be 0 to 23 of a day, or 0 to 167 of a week from Monday on, in "
                f"one row each. Rows: {len(hour):,}, different hours: {len(set(hour)):,}."
            )
        return partial(_quoted, partial(_by_clock, rows, hours), price, carbon, weighs)
    moments = pd.to_datetime(table["time"], errors="coerce", utc=True, format="ISO8601")
    times = pd.DatetimeIndex(moments.dt.tz_localize(None))
    if times.hasnans or len(times) < 2 or (np.diff(times.asi8) <= 0).any():
        raise InputError(f"{where}: time must be two or more ascending times as 2024-05-10T13:00.")
    return partial(_quoted, partial(_by_moment, times, where), price, carbon, weighs)


def _by_clock(rows: IntArray, ahead_h: float, run: pd.DatetimeIndex) -> IntArray:
    """Return the row of each minute, from those of the hours of a day or a week that repeats."""
    there = run + pd.Timedelta(hours=ahead_h)
    hour_of_week = there.day_of_week.to_numpy() * 24 + there.hour.to_numpy()
    return np.asarray(rows[hour_of_week % len(rows)])


def _by_moment(times: pd.DatetimeIndex, where: str, run: pd.DatetimeIndex) -> IntArray:
    """Return the row of each minute, from the moments from which rows hold."""
    # The last price holds for as long as the one before it did.
    first, end = times[0], times[-1] + (times[-1] - times[-2])
    if first > run[0] or end <= run[-1]:
        raise InputError(
            f"{where}: prices from {first} to {end} do not cover the run, {run[0]} to {run[-1]}; "
            "add rows, or give hour instead of time."
        )
    return np.asarray(times.searchsorted(run, side="right") - 1)


def _quoted(
    rows_of: Callable[[pd.DatetimeIndex], IntArray],
    usd_per_mwh: FloatArray,
    carbon_g_per_kwh: FloatArray | None,
    weighs: tuple[float, float],
    start: str,
    minutes: int,
) -> Prices:
    """Return the prices of a run, from the row that holds in each of its minutes."""
    now = rows_of(pd.date_range(start, periods=minutes, freq="min"))
    cap, carbon_usd_per_t = weighs
    carbon = None if carbon_g_per_kwh is None else carbon_g_per_kwh[now]
    return Prices(usd_per_mwh[now], cap, carbon, carbon_usd_per_t)


def _read(file: Path) -> pd.DataFrame:
    """Return the table of a price file."""
    table = read_table(file, "price", remedy="give a CSV file", limit_bytes=MAX_BYTES)
    check_names(str(file), map(str, table.columns), COLUMNS)
    if "usd_per_mwh" not in table or ("hour" in table) == ("time" in table):
        raise InputError(f"{file}: give usd_per_mwh and one of hour and time.")
    return table


def _numbers(table: pd.DataFrame, column: str, least: float, where: str) -> FloatArray:
    """Return the numbers of a column; (rows,)."""
    numbers = pd.to_numeric(table[column], errors="coerce").to_numpy(float)
    within = (numbers >= least) & (numbers <= HIGHEST)  # false for what is no number
    if not within.all():
        row = int(np.argmin(within))
        cell = table[column].iloc[row]
        written = "empty" if pd.isna(cell) else repr(shown(str(cell)))
        raise InputError(
            f"{where}, row {table.index[row] + 2}: {column} is {written}; "
            f"it must be a number from {least:,} to {HIGHEST:,}."
        )
    return numbers
