"""Figures that compare training steps: stacked parts, and lines over a quantity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cluster_sim.plot.palette import colors, marks
from experiments.figures.training import stacked as bars
from topologies.units import format_seconds
from workloads.training.program.breakdown import PARTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAME = 0.01
"""Relative distance up to which two lines lie on each other and are drawn as one."""


def stacked(frame: pd.DataFrame, labels: Sequence[str], title: str, **shares: Any) -> Figure:
    """Draw the parts of each row's time, one bar a row, with its length behind it.

    ``shares``: ``whole_s`` and ``whole``, of which the bars show shares beside the MFU.
    """
    rows = frame.to_dict("records")
    parts = [{part: row.get(f"{part}_s", 0.0) for part in PARTS} for row in rows]
    notes = [
        format_seconds(row["iteration_s"]) + (f", MFU {row['mfu']:.0%}" if shares else "")
        for row in rows
    ]
    return bars(labels, parts, notes, title=title, **shares)


def lines(
    frame: pd.DataFrame, x: str, y: str, by: str, title: str, *, labels: tuple[str, str],
    log: bool = True,
) -> Figure:  # fmt: skip
    """Draw one line for each value of a column."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    names = [str(name) for name in dict.fromkeys(frame[by])]
    shades, shapes = colors(names), marks(names)
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, (together, rows) in enumerate(_distinct_lines(frame, x, y, by)):
        first, label = together[0], " and ".join(together)
        style = f"{shapes[first]}{'--' if number % 2 else '-'}"
        axes.plot(rows[x], rows[y], style, ms=4, color=shades[first], label=label)
    if log:
        axes.set_xscale("log", base=2)
        ticks = sorted(set(frame[x]))
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, title=by if len(names) == 1 else None)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)
    return figure


def _distinct_lines(
    frame: pd.DataFrame, x: str, y: str, by: str
) -> list[tuple[list[str], pd.DataFrame]]:
    """Return the points of each line and its name; lines that coincide are one with all names."""
    lines: list[tuple[list[str], pd.DataFrame]] = []
    for name, group in frame.groupby(by, sort=False):
        rows = group.sort_values(x)
        points = rows[[x, y]].to_numpy(float)
        for names, others in lines:
            same = others[[x, y]].to_numpy(float)
            if same.shape == points.shape and np.allclose(same, points, rtol=SAME):
                names.append(str(name))
                break
        else:
            lines.append(([str(name)], rows))
    return lines
