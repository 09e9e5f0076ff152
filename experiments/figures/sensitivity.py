"""Tornado plot: effects of the most important numbers of the catalogue on an answer."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from experiments.figures.layout import canvas, dress
from topologies.support.units import format_seconds
from workloads.confidence.sensitivity import Sensitivity

MOST_BARS = 12
LOW_COLOUR, HIGH_COLOUR = "#4477aa", "#ee6677"


def tornado(rows: Sequence[Sensitivity], what: str) -> Figure:
    """Draw a bar for each number, between the answers at its ends or, lighter, at ± 10 %."""
    shown = list(rows[:MOST_BARS])[::-1]
    figure, axes = canvas(8.5, 1.3 + 0.36 * max(1, len(shown)))
    for place, row in enumerate(shown):
        low, high, ranged = _ends(row)
        alpha = 1.0 if ranged else 0.45
        axes.barh(place, 100 * low, color=LOW_COLOUR, alpha=alpha, height=0.7)
        axes.barh(place, 100 * high, color=HIGH_COLOUR, alpha=alpha, height=0.7)
    axes.set_yticks(range(len(shown)), [_label(row) for row in shown])
    axes.axvline(0, color="black", linewidth=0.8)
    dress(axes, "relative change of the answer [%]", "")
    axes.set_title(f"What {what} depends on most", loc="left", fontsize=11)
    names = {LOW_COLOUR: "input at its low end", HIGH_COLOUR: "input at its high end"}
    handles = [axes.barh(0, 0, color=colour, label=text) for colour, text in names.items()]
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside lower right", ncols=2)
    return figure


def _ends(row: Sensitivity) -> tuple[float, float, bool]:
    """Return the changes at both ends, and whether they are those of a range in the catalogue."""
    if row.change_low is None and row.change_high is None:
        return -0.1 * row.elasticity, 0.1 * row.elasticity, False
    return row.change_low or 0.0, row.change_high or 0.0, True


def _label(row: Sensitivity) -> str:
    ranged = row.change_low is not None or row.change_high is not None
    ends = ["?" if end is None else _amount(end, row.unit) for end in (row.low, row.high)]
    span = " – ".join(ends) if ranged else "±10 %"
    return f"{row.input}  ({span}, {row.grade})"


def _amount(value: float, unit: str) -> str:
    """Write a number with its unit: times in ms, min or h, others with a decimal prefix."""
    if unit in ("count", "ratio"):
        return f"{value:,.4g}"
    if unit == "s":
        return format_seconds(value)
    if unit == "USD/s":
        return f"{value * 3600:,.4g} USD/h"
    return str(EngFormatter(unit=unit, places=None)(float(f"{value:.3g}")))
