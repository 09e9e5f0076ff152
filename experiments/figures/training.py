"""Step times as stacked bars of their parts, and lines that compare them over a quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster_sim.plot.palette import colors, ink, marks
from experiments.figures.layout import canvas, dress, entitle, lay_out
from topologies.support.arrays import FloatArray
from topologies.support.units import format_seconds
from workloads.training.program.breakdown import PARTS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from workloads.confidence.interval import Interval


NAMES: Mapping[str, str] = {
    "compute": "compute",
    "exposed_tp": "tensor parallel, exposed",
    "exposed_pp": "pipeline transfers, exposed",
    "exposed_dp": "data parallel, exposed",
    "exposed_cp": "context parallel, exposed",
    "exposed_ep": "expert parallel, exposed",
    "bubble": "bubble (waiting for a peer)",
    "straggler": "waiting for a straggler",
    "optimizer": "optimizer",
    "scheduling": "scheduling (unexplained)",
    "host": "host issues work",
    "other": "other",
}

INCHES_A_LETTER = 0.068
ABOVE_BAR = -0.45
"""Vertical place of an interval, in rows: the bar is row 0 and extends from -0.33 to 0.33."""
MARK: Mapping[str, Any] = {
    "marker": "|", "color": "black", "linestyle": "", "ms": 26, "mew": 1.5, "zorder": 3
}  # fmt: skip
"""Style of a time that is marked on a bar."""
AT_PEAK = "the model's FLOPs at peak rate"  # name of a mark at MFU times the iteration


def one_step(headline: str, parts: Mapping[str, float], mfu: float, ends: Interval) -> Figure:
    """Draw one iteration as a bar with its interval, under a title that states the finding."""
    seconds = sum(parts.values())
    low, high = (format_seconds(float(f"{end:.3g}")) for end in (ends.low, ends.high))
    figure, axes = _axes([""])
    scale = np.ones(1)
    _stack(axes, [parts], scale)
    axes.plot([mfu * seconds], [0], **MARK, label=AT_PEAK)
    middle = (ends.low + ends.high) / 2
    axes.errorbar(
        [middle], [ABOVE_BAR], xerr=ends.high - middle, fmt="none", ecolor="black",
        elinewidth=1.5, capsize=4, label=f"{ends.level:.0%} of measured steps should lie here",
    )  # fmt: skip
    axes.set_xlim(0, 1.02 * max(seconds, ends.high))
    _label(axes, [""], "time of one iteration [s]")
    axes.set_ylim(0.4, ABOVE_BAR - 0.12)
    between = f" ({ends.level:.0%}: {low} – {high})"
    _finish(figure, f"{headline}\n{finding(parts, between=between)}; MFU {mfu:.0%}")
    _write_in(figure, axes, scale, np.array([seconds]))
    return figure


def finding(parts: Mapping[str, float], most: int = 3, between: str = "") -> str:
    """Return the length of an iteration, its interval in words, and its largest parts, in one line.

    >>> finding({"compute": 3.0, "exposed_tp": 0.9, "bubble": 0.1}, most=2)
    '4 s a step: 75% compute; 22% tensor parallel, exposed'
    """
    seconds = sum(parts.values())
    largest = sorted(parts, key=lambda part: -parts[part])[:most]
    shares = [f"{parts[part] / seconds:.0%} {NAMES[part]}" for part in largest if parts[part]]
    return f"{format_seconds(seconds)} a step{between}: {'; '.join(shares)}"


def stacked(
    labels: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    notes: Sequence[str] = (),
    *,
    whole_s: Sequence[float] | None = None,
    whole: str = "one iteration",
    marks: Sequence[float] = (),
    mark: str = "",
    title: str = "",
) -> Figure:
    """Draw a bar of parts for each iteration, or of their shares of ``whole_s`` [s]."""
    figure, axes = _axes(labels)
    scale = np.ones(len(labels)) if whole_s is None else 1 / np.asarray(whole_s, float)
    ends = _stack(axes, parts, scale)
    longest = float(ends.max())
    if marks:
        at = np.asarray(marks) * scale
        axes.plot(at, np.arange(len(labels)), **MARK, label=mark)
        ends = np.maximum(ends, at)
    for row, note in enumerate(notes):
        axes.text(ends[row] + 0.01 * longest, row, note, va="center", fontsize=8)
    axes.set_xlim(0, longest * (1.2 if notes else 1.02))
    _label(axes, labels, "time of one iteration [s]" if whole_s is None else f"share of {whole}")
    _finish(figure, title)
    sums = np.array([sum(part.values()) for part in parts])
    _write_in(figure, axes, scale, sums if whole_s is None else 1 / scale)
    return figure


def _axes(labels: Sequence[str]) -> tuple[Figure, Axes]:
    """Return a figure with room for bars of these labels, and its axes."""
    lines = max(label.count("\n") + 1 for label in labels)
    row_inches = max(0.55, 0.18 * lines)
    return canvas(9.5, 1.9 + row_inches * len(labels))


def _finish(figure: Figure, title: str) -> None:
    if title:
        entitle(figure, title)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8, markerscale=0.4)


def _write_in(figure: Figure, axes: Axes, scale: FloatArray, totals: FloatArray) -> None:
    """Write the time of a part and its share of the total where its bar is wide enough."""
    from matplotlib.colors import to_hex

    lay_out(figure)
    low, high = axes.get_xlim()
    inches = axes.get_window_extent().width / figure.dpi / (high - low)
    for bars in axes.containers:
        for row, bar in enumerate(getattr(bars, "patches", ())):
            seconds, width = bar.get_width() / scale[row], bar.get_width()
            lines = [format_seconds(seconds), f"{seconds / totals[row]:.0%}"]
            # A per cent sign is nearly as wide as two letters.
            wide = [(len(line) + 0.7 * line.count("%")) * INCHES_A_LETTER for line in lines]
            fits = [line for line, need in zip(lines, wide, strict=True) if need < width * inches]
            if seconds and fits:
                axes.text(bar.get_x() + width / 2, row, "\n".join(fits), ha="center", va="center",
                          fontsize=8, color=ink(to_hex(bar.get_facecolor())))  # fmt: skip


def _stack(axes: Axes, parts: Sequence[Mapping[str, float]], scale: FloatArray) -> FloatArray:
    """Draw the parts of each bar, and return the ends of the bars."""
    shade, rows = colors(PARTS), np.arange(len(parts))
    left = np.zeros(len(parts))
    for part in PARTS:
        width = np.array([times.get(part, 0.0) for times in parts]) * scale
        if width.any():
            axes.barh(rows, width, left=left, color=shade[part], label=NAMES[part], height=0.66)
            left += width
    return left


def _label(axes: Axes, labels: Sequence[str], measure: str) -> None:
    """Label both axes of horizontal bars, the first bar on top."""
    axes.set_yticks(np.arange(len(labels)), labels, fontsize=9)
    axes.invert_yaxis()
    if measure.startswith("share"):
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel(f"{measure}, mean over ranks")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


SAME = 0.01  # relative distance up to which two lines lie on each other and are drawn as one


def stacked_rows(frame: pd.DataFrame, labels: Sequence[str], title: str, **shares: Any) -> Figure:
    """Draw the parts of each row's time, one bar a row, with its length or MFU behind it."""
    rows = frame.to_dict("records")
    parts = [{part: row.get(f"{part}_s", 0.0) for part in PARTS} for row in rows]
    notes = [
        format_seconds(row["iteration_s"]) + (f", MFU {row['mfu']:.0%}" if shares else "")
        for row in rows
    ]
    return stacked(labels, parts, notes, title=title, **shares)


def lines(
    frame: pd.DataFrame, x: str, y: str, by: str, title: str, *, labels: tuple[str, str]
) -> Figure:
    """Draw one line for each value of a column."""
    from matplotlib.ticker import NullLocator

    names = [str(name) for name in dict.fromkeys(frame[by])]
    shades, shapes = colors(names), marks(names)
    figure, axes = canvas(8.4, 4.6)
    for number, (together, rows) in enumerate(_distinct_lines(frame, x, y, by)):
        first, label = together[0], " and ".join(together)
        style = f"{shapes[first]}{'--' if number % 2 else '-'}"
        axes.plot(rows[x], rows[y], style, ms=4, color=shades[first], label=label)
    axes.set_xscale("log", base=2)
    ticks = sorted(set(frame[x]))
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    dress(axes, *labels, grid="both")
    axes.legend(frameon=False, fontsize=9, title=by if len(names) == 1 else None)
    entitle(figure, title)
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
