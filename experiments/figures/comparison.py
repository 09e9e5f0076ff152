"""Figures that compare training steps: stacked parts, and lines over a quantity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from cluster_sim.plot.palette import colors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {
    "compute": "compute",
    "exposed_tp": "exposed tensor parallel",
    "exposed_cp": "exposed context parallel",
    "exposed_ep": "exposed experts",
    "exposed_pp": "exposed pipeline",
    "exposed_dp": "exposed data parallel",
    "bubble": "pipeline bubble",
    "straggler": "waiting for stragglers",
    "optimizer": "optimizer",
    "other": "other",
}
SMALL = 1e-3


def stacked(frame: pd.DataFrame, labels: Sequence[str], title: str) -> Figure:
    """Draw where the time of each row goes, one bar a row.

    Parameters
    ----------
    frame : DataFrame
        With ``iteration_s`` and a column ``<part>_s`` for each part [s].
    labels : sequence of str
        Name of each row.
    title : str
    """
    from matplotlib.figure import Figure

    shown = [
        part
        for part in PARTS
        if f"{part}_s" in frame and (frame[f"{part}_s"] > SMALL * frame["iteration_s"]).any()
    ]
    shades = colors(shown)
    figure = Figure(figsize=(10, 1.6 + 0.42 * len(frame)), layout="constrained")
    axes = figure.subplots()
    left = pd.Series(0.0, index=range(len(frame)))
    for part in shown:
        width = frame[f"{part}_s"].reset_index(drop=True)
        axes.barh(range(len(frame)), width, left=left, color=shades[part], label=PARTS[part])
        left = left + width
    for row, total in enumerate(frame["iteration_s"]):
        axes.annotate(f" {total:.3g} s", (total, row), va="center", fontsize=8)
    axes.set_yticks(range(len(frame)), labels, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("time of one step [s], mean over ranks")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    return figure


def lines(
    frame: pd.DataFrame, x: str, y: str, by: str, title: str, *, labels: tuple[str, str],
    log: bool = True,
) -> Figure:  # fmt: skip
    """Draw one line for each value of a column.

    Parameters
    ----------
    frame : DataFrame
    x, y, by : str
        Columns across, up, and of the lines.
    title : str
    labels : (str, str)
        Of both axes.
    log : bool
        Whether the scale across is logarithmic, with a tick at every value.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    names = [str(name) for name in dict.fromkeys(frame[by])]
    shades = colors(names)
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, (name, group) in enumerate(frame.groupby(by, sort=False)):
        rows = group.sort_values(x)
        style = "o--" if number % 2 else "o-"  # lines that coincide are both seen
        axes.plot(rows[x], rows[y], style, ms=4, color=shades[str(name)], label=str(name))
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
    axes.legend(frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=11)
    return figure
