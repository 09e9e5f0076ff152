"""Scatter plot of predicted against published values, with a band around the diagonal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments.figures.layout import canvas
from topologies.support.units import format_seconds

BAND = 0.2  # half-width of the shaded band around the diagonal, as a relative error
MOST_DECADES = 1.7  # longest axis, in powers of ten, that has labels at 2 and 5 as well
MOST_TICKS = 7
STEP = 5.0
FEWEST_COUNTED = 12  # rows from which a histogram of their errors is drawn


def scatter(compared: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Draw predicted over published, and the errors: a histogram, or the points of few rows."""
    figure, (plane, side) = canvas(10, 4.6, 1, 2, width_ratios=(3, 2))
    good = [row for row in compared if row["error"] is not None]
    if good:
        published, predicted = ([row[key] for row in good] for key in ("published", "predicted"))
        plane.scatter(published, predicted, s=14, alpha=0.7, lw=0)
        _diagonal(plane, good)
        errors = np.sort(np.clip([100 * row["error"] for row in good], -100, 100))
        # The bars of few rows would say less than the rows themselves, in order.
        if len(good) < FEWEST_COUNTED:
            side.plot(errors, np.arange(1, len(good) + 1), "o", color="#4477aa")
            side.set_ylim(0, len(good) + 1)
        else:
            widest = max(STEP, float(STEP * np.ceil(np.abs(errors).max() / STEP)))
            side.hist(errors, bins=np.arange(-widest, widest + STEP, STEP), color="#4477aa")
    words = "rows" if len(good) >= FEWEST_COUNTED else "rows by their error, each a point"
    plane.set(xlabel=f"published {_quantity(good)}", ylabel=f"predicted {_quantity(good)}")
    side.set(xlabel="error of the prediction [%]; larger ones count as 100", ylabel=words)
    side.axvline(0, color="black", linewidth=1)
    side.yaxis.get_major_locator().set_params(integer=True)
    plane.set_title(f"{title}{_finding(good)}", loc="left", fontsize=10)
    return figure


def _finding(good: Sequence[Mapping[str, Any]]) -> str:
    if not good:
        return ""
    median, ninth = np.quantile([abs(row["error"]) for row in good], (0.5, 0.9))
    within = f"shaded: within {BAND:.0%}"
    return f": median error {median:.1%}, 90th percentile {ninth:.1%} ({within})"


def _diagonal(plane: Any, good: Sequence[Mapping[str, Any]]) -> None:
    values = [row[key] for row in good for key in ("published", "predicted")]
    line = np.array([min(values) / 1.5, max(values) * 1.5])
    plane.plot(line, line, color="0.5", linewidth=1)
    plane.fill_between(line, line * (1 - BAND), line * (1 + BAND), color="0.9", zorder=0)
    plane.set(xscale="log", yscale="log")
    text = _seconds if _is_time(good) else "{:g}".format
    decades = np.log10(max(values) / min(values))
    subs = (1, 2, 5) if decades < MOST_DECADES else (1,)
    for axis in (plane.xaxis, plane.yaxis):
        axis.set_major_locator(LogLocator(subs=subs, numticks=MOST_TICKS))
        axis.set_major_formatter(lambda value, _: text(value))
        axis.set_minor_formatter("")
    plane.set(xlim=line[[0, -1]], ylim=line[[0, -1]], aspect="equal")


def _seconds(value: float) -> str:
    """Text of a time on an axis, in seconds up to ten minutes, as its labels are 1, 2 and 5."""
    return f"{value:g} s" if 60 <= value < 600 else format_seconds(value)


def _is_time(good: Sequence[Mapping[str, Any]]) -> bool:
    name = str(good[0]["quantity"]) if good else ""
    return name.endswith("_s") and not name.endswith("_per_s")


def _quantity(good: Sequence[Mapping[str, Any]]) -> str:
    """Name of the compared quantity, with its unit unless the tick labels have one."""
    name = str(good[0]["quantity"]) if good else "value"
    if _is_time(good) or "_per_" in name:
        return name.removesuffix("_s" if _is_time(good) else "").replace("_", " ")
    stem, _, unit = name.rpartition("_")
    return f"{stem.replace('_', ' ')} [{unit}]" if stem else name
