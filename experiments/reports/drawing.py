"""Data of a figure beside its picture: values that a pointer shows, and slices of a timeline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FuncFormatter
from matplotlib.transforms import Bbox

from cluster_sim.analysis.stretches import end_of_run_ps
from cluster_sim.plot.palette import colors
from cluster_sim.plot.timeline_figure import Bars, busy_share, trace_bars
from cluster_sim.trace.trace import Trace
from topologies.support.units import PS_PER_S

MOST_POINTS = 3_000  # most points of a figure with values; longer lines are sampled evenly
MOST_NAMES = 12
PLACE_DIGITS = 4


def description(figure: Figure) -> str:
    """Description of a figure: its title, its axes, and the names of the drawn data."""
    titles = [figure.get_suptitle()]
    labels, names = [], []
    for axes in figure.axes:
        titles += [axes.get_title(loc=place) for place in ("left", "center", "right")]
        across, up = axes.get_xlabel(), axes.get_ylabel()
        both = (("Across: ", across), ("up: ", up))
        labels.append("; ".join(before + text for before, text in both if text))
        names += axes.get_legend_handles_labels()[1]
    shown = [name for name in dict.fromkeys(names) if not name.startswith("_")]
    more = f" and {len(shown) - MOST_NAMES} more" if len(shown) > MOST_NAMES else ""
    parts = [
        *dict.fromkeys(text for text in titles if text),
        *dict.fromkeys(text for text in labels if text),
        f"Shown: {', '.join(shown[:MOST_NAMES])}{more}" if shown else "",
    ]
    return " ".join(f"{_flat(part).rstrip('.')}." for part in parts if part)


def headline(figure: Figure) -> str:
    """Title of a figure, or else of its first panel, in one line, with its lines as sentences."""
    panels = [axes.get_title(loc=place) for axes in figure.axes for place in ("left", "center")]
    title = next((text for text in (figure.get_suptitle(), *panels) if text), "")
    return _flat(re.sub(r"([^.,:;?!\s])[ \t]*\n\s*(?=\S)", r"\1. ", title))


def hover(figure: Figure, drawn: Bbox) -> dict[str, list[list[Any]]]:
    """Values of a figure's points and boxes, placed in shares of the picture from upper left."""
    corner = np.array([drawn.x0, drawn.y1]) * figure.dpi
    size = np.array([drawn.width, -drawn.height]) * figure.dpi

    def place(pixels: Any) -> Any:
        return np.round((np.asarray(pixels, float) - corner) / size, PLACE_DIGITS)

    points, boxes = [], []
    for axes in figure.axes:
        for at, text in _points(axes):
            points.append([*place(at).tolist(), text])
        for low, high, text in _bars(axes):
            (left, bottom), (right, top) = place([low, high]).tolist()
            boxes.append([left, top, right, bottom, text])
    every = -(-len(points) // MOST_POINTS) or 1
    return {"points": points[::every], "boxes": boxes[:MOST_POINTS]}


def _points(axes: Axes) -> Iterator[tuple[Any, str]]:
    """Yield points of lines and scatter plots in data coordinates [pixels], with their texts."""
    data = axes.transData
    for line in axes.lines:
        is_drawn = line.get_visible() and np.size(line.get_xdata()) > 0
        if all(line.get_transform().contains_branch_seperately(data)) and is_drawn:
            values = np.column_stack([line.get_xdata(orig=False), line.get_ydata(orig=False)])
            yield from _valued(axes, values.astype(float), str(line.get_label()))
    for cloud in axes.collections:
        if type(cloud).__name__ == "PathCollection":
            values = np.ma.filled(np.ma.asarray(cloud.get_offsets(), float), np.nan)
            yield from _valued(axes, values, str(cloud.get_label()))


def _valued(axes: Axes, values: Any, label: str) -> Iterator[tuple[Any, str]]:
    values = values[:: -(-len(values) // MOST_POINTS) or 1]
    (low, high), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    name = "" if label.startswith("_") else f"{label}\n"
    for (x, y), at in zip(values.tolist(), axes.transData.transform(values).tolist(), strict=True):
        if low <= x <= high and bottom <= y <= top:
            yield at, f"{name}{_text(axes.xaxis, x)}\n{_text(axes.yaxis, y)}"


def _bars(axes: Axes) -> Iterator[tuple[Any, Any, str]]:
    """Yield the corners of bars [pixels], with the text of each bar."""
    for container in axes.containers:
        label = str(container.get_label())
        name = "" if label.startswith("_") else f"{label}\n"
        lying = getattr(container, "orientation", None) == "horizontal"
        for patch in container.patches if hasattr(container, "patches") else ():
            x, y, width, height = patch.get_bbox().bounds
            if not width or not height:
                continue
            length, axis = (width, axes.xaxis) if lying else (height, axes.yaxis)
            middle, other = (y + height / 2, axes.yaxis) if lying else (x + width / 2, axes.xaxis)
            corners = axes.transData.transform([(x, y), (x + width, y + height)])
            whose = _flat(_text(other, middle))
            yield corners.min(0), corners.max(0), f"{name}{whose}\n{_text(axis, length)}".strip()


def _text(axis: Axis, value: float) -> str:
    """Text of a value by the tick labels of its axis, with the unit of the axis."""
    formatter = axis.get_major_formatter()
    label = axis.get_label_text()
    unit = re.search(r"\[([^\]]+)\]", label)
    if isinstance(formatter, FixedFormatter):
        ticks = np.asarray(axis.get_majorticklocs(), float)
        nearest = int(np.abs(ticks - value).argmin()) if len(ticks) else 0
        exact = len(ticks) and abs(ticks[nearest] - value) < 1e-6 * max(1.0, abs(value))
        if exact and nearest < len(formatter.seq):
            return str(formatter.seq[nearest]).strip()
    elif "date" in type(formatter).__name__.lower() or isinstance(formatter, FuncFormatter):
        text = str(formatter(value, None)).strip()
        if text:
            bare = re.fullmatch(r"[\d.,e+-]+", text)
            return f"{_named(label)}{text}" + (f" {unit[1]}" if unit and bare else "")
    return f"{_named(label)}{value:,.4g}" + (f" {unit[1]}" if unit else "")


def _named(label: str) -> str:
    """Name of an axis without its unit, to be put before a value; empty if it is long."""
    name = _flat(re.sub(r"\[[^\]]*\]", "", label)).split(",")[0].strip()
    return f"{name}: " if name and len(name) <= 40 else ""


def _flat(text: str) -> str:
    return " ".join(text.split())


MOST_SLICES = 4_000
"""Most ops that are shown one by one. With more, time is divided into moments, and each shows the
category that fills most of it."""
MOST_LANES = 32
MOST_MOMENTS = 24_000  # number of lanes times moments of a timeline in moments
LEAST_BUSY = 0.05  # share of a moment below which a lane counts as idle
TIME_DIGITS = 7


def slices(
    trace: Trace,
    *,
    by: str = "resource",
    what: str | None = None,
    ranks: list[int] | None = None,
    words: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a timeline's lanes, and the slices [s] in which one is busy with a category."""
    bars = trace_bars(trace, by, what, None, trace.rows(ranks, None))
    end_s = end_of_run_ps(trace) / PS_PER_S
    kept = np.unique(np.linspace(0, len(bars.lanes) - 1, MOST_LANES).round().astype(np.int64))
    exact = int(np.isin(bars.lane, kept).sum()) <= MOST_SLICES
    notes = [
        f"{len(kept)} of {len(bars.lanes):,} lanes" if len(kept) < len(bars.lanes) else "",
        "" if exact else "each moment by what fills most of it",
    ]
    shade, names = colors(bars.categories), words or {}
    rows = _each(bars, kept.tolist()) if exact else _moments(bars, kept.tolist(), end_s)
    return {
        "lanes": [bars.lanes[lane] for lane in kept.tolist()],
        "categories": [names.get(name, name) for name in bars.categories],
        "colors": [shade[name] for name in bars.categories],
        "end_s": end_s,
        "note": ", ".join(note for note in notes if note),
        "slices": [
            [lane, category, float(f"{start:.{TIME_DIGITS}g}"), float(f"{end:.{TIME_DIGITS}g}")]
            for lane, category, start, end in rows
        ],
    }


def _each(bars: Bars, kept: list[int]) -> Iterator[tuple[int, int, float, float]]:
    """Yield every op of some lanes as a slice."""
    place = {lane: row for row, lane in enumerate(kept)}
    columns = (bars.lane, bars.category, bars.start_s, bars.end_s)
    for lane, category, start, end in zip(*(column.tolist() for column in columns), strict=True):
        if lane in place:
            yield place[lane], category, start, end


def _moments(bars: Bars, kept: list[int], end_s: float) -> Iterator[tuple[int, int, float, float]]:
    """Yield runs of moments in which the same category fills most of the time, as slices."""
    moments = MOST_MOMENTS // len(kept)
    for row, lane in enumerate(kept):
        share = np.stack([
            busy_share(np.zeros(int(on.sum()), np.int64), bars.start_s[on], bars.end_s[on], 1,
                       (0.0, end_s), moments)[0]
            for on in (
                (bars.lane == lane) & (bars.category == k) for k in range(len(bars.categories))
            )
        ])  # fmt: skip
        fills = np.where(share.max(0) > LEAST_BUSY, share.argmax(0), -1)
        edges = np.flatnonzero(np.diff(fills)) + 1
        starts, ends = np.r_[0, edges], np.r_[edges, moments]
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
            if fills[first] >= 0:
                yield row, int(fills[first]), first * end_s / moments, last * end_s / moments
