"""Prices of electricity: the cost of a run's power, and the minutes too expensive to train."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from topologies.arguments import check_names
from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError, shown
from topologies.files.table import read_table

COLUMNS = ("hour", "time", "usd_per_mwh")
CYCLES = (24, 168)
"""Numbers of rows of a file without dates: the hours of a day, or of a week from Monday UTC."""
MAX_BYTES = 5 * 10**6
J_PER_MWH = 3.6e9
HIGHEST_USD_PER_MWH = 1_000_000  # limit beyond any market's price, above and below zero


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices of electricity in each minute of a run."""

    usd_per_mwh: FloatArray  # (minutes,)
    cap_usd_per_mwh: float = math.inf  # above it nothing trains or evaluates; serving goes on

    @property
    def dear(self) -> npt.NDArray[np.bool_]:
        """Minutes above the cap; (minutes,)."""
        return np.asarray(self.usd_per_mwh > self.cap_usd_per_mwh)

    def cost_usd(self, power_w: FloatArray) -> float:
        """Cost of a run that draws ``power_w`` in each minute [USD]."""
        return float(np.sum(power_w * 60.0 * self.usd_per_mwh) / J_PER_MWH)


def read_tariff(path: str | Path, *, cap: float = math.inf) -> Callable[[str, int], Prices]:
    """Read the prices of any run that begins at a time (UTC) and lasts so many minutes."""
    # The file has a column ``usd_per_mwh`` and one of two others. ``hour`` counts 0 to 23 in a day
    # or 0 to 167 in a week from Monday 00:00 UTC, which then repeats; ``time`` is the moment from
    # which a price holds until the next.
    file = Path(path)
    table, price = _read(file)
    if "hour" in table:
        return partial(_prices, price, cap, partial(_by_hour, _hours(table, file)))
    return partial(_prices, price, cap, partial(_by_time, _moments(table, file), file))


def _prices(
    price: FloatArray, cap: float, rows: Callable[..., IntArray], start: str, minutes: int
) -> Prices:
    run = pd.date_range(start, periods=minutes, freq="min")
    return Prices(price[rows(run)], cap)


def _read(file: Path) -> tuple[pd.DataFrame, FloatArray]:
    """Return the table of a price file, and its prices [USD/MWh]; (rows,)."""
    table = read_table(file, "price", remedy="give a CSV file", limit_bytes=MAX_BYTES)
    check_names(str(file), map(str, table.columns), COLUMNS)
    if "usd_per_mwh" not in table or ("hour" in table) == ("time" in table):
        raise InputError(f"{file}: give usd_per_mwh and one of hour and time.")
    price = pd.to_numeric(table["usd_per_mwh"], errors="coerce").to_numpy(float)
    within = np.abs(price) <= HIGHEST_USD_PER_MWH  # false for what is no number
    if not within.all():
        row = int(np.argmin(within))
        written = shown(str(table["usd_per_mwh"].iloc[row]))
        raise InputError(
            f"{file}, row {row + 2}: usd_per_mwh is {written!r}; "
            f"it must be a number from -{HIGHEST_USD_PER_MWH:,} to {HIGHEST_USD_PER_MWH:,}."
        )
    return table, price


def _by_hour(order: IntArray, run: pd.DatetimeIndex) -> IntArray:
    """Row of the price of each minute, from a day or a week that repeats; (minutes,)."""
    hour_of_week = run.day_of_week.to_numpy() * 24 + run.hour.to_numpy()
    return np.asarray(order[hour_of_week % len(order)])


def _hours(table: pd.DataFrame, file: Path) -> IntArray:
    """Row of the price of each hour of a day or a week; (hours,)."""
    hours = pd.to_numeric(table["hour"], errors="coerce").to_numpy(float)
    order = np.argsort(hours)
    if len(hours) not in CYCLES or not np.array_equal(hours[order], np.arange(len(hours))):
        raise InputError(f"{file}: hour must be 0 to 23, or 0 to 167 from Monday on, once each.")
    return order


def _by_time(moments: pd.DatetimeIndex, file: Path, run: pd.DatetimeIndex) -> IntArray:
    """Row of the price of each minute, from prices with dates; (minutes,)."""
    # The last price holds for as long as the one before it did.
    end = moments[-1] + (moments[-1] - moments[-2])
    if moments[0] > run[0] or end <= run[-1]:
        raise InputError(
            f"{file}: prices from {moments[0]} to {end} do not cover the run, {run[0]} to "
            f"{run[-1]}; add rows, or give hour instead of time."
        )
    return np.asarray(moments.searchsorted(run, side="right") - 1)


def _moments(table: pd.DataFrame, file: Path) -> pd.DatetimeIndex:
    times = pd.to_datetime(table["time"], errors="coerce", utc=True, format="ISO8601")
    moments = pd.DatetimeIndex(times.dt.tz_localize(None))
    if moments.hasnans or len(moments) < 2 or (np.diff(moments.asi8) <= 0).any():
        raise InputError(f"{file}: time must be two or more ascending times as 2024-05-10T13:00.")
    return moments
