"""The timeline figure: ops over time, legible with ten ops and with a hundred thousand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cluster_sim.analysis.stretches import end_of_run_ps, groups_of, stretches
from cluster_sim.plot.palette import colors
from cluster_sim.schedule.table import PS_PER_S, Codes
from cluster_sim.trace.trace import Picks, Trace
from topologies.support.arguments import checked
from topologies.support.arrays import FloatArray, IntArray, present
from topologies.support.errors import InputError

MOST_NAMED_LANES = 48  # most lanes whose names are written; of more, every n-th is named


@dataclass(frozen=True, eq=False)
class Bars:
    """Bars of a timeline, one for each stretch of time in which an op ran, cut to the window."""

    lane: IntArray  # index into lanes
    category: IntArray  # index into categories
    start_s: FloatArray
    end_s: FloatArray
    op: IntArray
    lanes: list[str]  # names, from the top
    categories: list[str]


def trace_bars(
    trace: Trace, by: str, what: str | None, window_s: tuple[float, float] | None, rows: IntArray
) -> Bars:
    """Return the bars of some ops in a window; see :func:`timeline` for the parameters."""
    ran = stretches(trace)
    low, high = (0, end_of_run_ps(trace)) if window_s is None else _window_ps(window_s)
    chosen = np.zeros(len(trace), np.bool_)
    chosen[rows] = True
    drawn = (
        chosen[ran.op] & (ran.end_ps > low) & (ran.start_ps < high) & (ran.end_ps > ran.start_ps)
    )
    if by == "resource":
        drawn &= trace.schedule.crossed[ran.op] >= 0
    if not drawn.any():
        raise InputError("no op runs on what was asked for in that window; nothing to draw")
    op = ran.op[drawn]
    lane, lanes = _lanes(trace, by, op)
    category, categories = _categories(trace, what, op)
    return Bars(
        lane=lane,
        category=category,
        start_s=np.maximum(ran.start_ps[drawn], low) / PS_PER_S,
        end_s=np.minimum(ran.end_ps[drawn], high) / PS_PER_S,
        op=op,
        lanes=lanes,
        categories=categories,
    )


def _window_ps(window_s: tuple[float, float]) -> tuple[int, int]:
    low, high = (round(instant * PS_PER_S) for instant in window_s)
    if not 0 <= low < high:
        raise InputError(f"window {window_s[0]} to {window_s[1]} s: it must grow, from 0 on")
    return low, high


def _lanes(trace: Trace, by: str, op: IntArray) -> tuple[IntArray, list[str]]:
    """Return the lane of each op, and the names of the lanes that occur."""
    if by == "resource":
        numbers, lane = present(trace.schedule.crossed[op])
        return lane, trace.schedule.resources.names(numbers)
    code, values = groups_of(trace, by)
    shown, lane = present(code[op])
    named = [f"{by} {values[k]}" for k in shown.tolist()]
    kind, kinds = _resource_kinds(trace, op)
    if len(kinds) == 1 or len(named) > MOST_NAMED_LANES // len(kinds):
        return lane, named
    # With few lanes there is room for one for each kind of resource, whose ops may overlap.
    pairs, lane = present(lane * len(kinds) + kind)
    return lane, [f"{named[k // len(kinds)]} {kinds[k % len(kinds)]}" for k in pairs.tolist()]


def _categories(trace: Trace, what: str | None, op: IntArray) -> tuple[IntArray, list[str]]:
    """Return the category of each op, and the names of categories in the order of the label."""
    label = trace.schedule.labels.get(what or "what")
    if isinstance(label, Codes):
        return _present(label.code[op], list(label.names))
    if what is not None:
        raise InputError(f"no label {what} of names to colour by; give one of the trace.")
    return _resource_kinds(trace, op)


def _resource_kinds(trace: Trace, op: IntArray) -> tuple[IntArray, list[str]]:
    resources, held = trace.schedule.resources, trace.schedule.resource[op]
    code = np.where(held < 0, len(resources.kinds), resources.kind[held])
    return _present(code, [*resources.kinds, "shared"])


def _present(code: IntArray, names: list[str]) -> tuple[IntArray, list[str]]:
    """Renumber codes so that only names that occur are left."""
    occurring, dense = present(code)
    return dense, [names[k] for k in occurring.tolist()]


RESIDUE = 1e-7
"""Share of a pixel's time below which it is only the rounding error of sums over a lane."""
RESOLVED = 8
"""Pixels between the starts of two ops of a lane from which on each can be seen by itself."""
TURNS = 3  # ops over which shares are averaged where single ops cannot be seen
PIXELS = 1_400  # pixels across the window, about as many as a printed figure has


def smoothed(share: FloatArray, bars: Bars, window_s: tuple[float, float]) -> FloatArray:
    """Average shares over neighbouring pixels where ops alternate within few pixels."""
    # Otherwise the beat between their period and the width of a pixel would show as a pattern.
    order = np.lexsort((bars.start_s, bars.lane))
    gaps = np.diff(bars.start_s[order])[np.diff(bars.lane[order]) == 0]
    turn = float(np.median(gaps)) / ((window_s[1] - window_s[0]) / PIXELS) if len(gaps) else 0.0
    if not 0 < turn < RESOLVED:
        return share
    size = int(np.ceil(TURNS * turn))
    return _moving_mean(_moving_mean(share, size), size)


def _moving_mean(share: FloatArray, size: int) -> FloatArray:
    """Return the mean of ``size`` pixels around each; rows are mirrored at their ends."""
    before, lanes = size // 2, [(0, 0)] * (share.ndim - 1)
    padded = np.pad(share, [*lanes, (before, size - 1 - before)], mode="symmetric")
    sums = np.cumsum(np.pad(padded, [*lanes, (1, 0)]), axis=-1)
    return np.asarray((sums[..., size:] - sums[..., :-size]) / size)


def busy_share(
    row: IntArray,
    start_s: FloatArray,
    end_s: FloatArray,
    rows: int,
    window_s: tuple[float, float],
    pixels: int = PIXELS,
) -> FloatArray:
    """Return the share of each pixel's time that intervals in rows cover, float (rows, pixels)."""
    low, width = window_s[0], (window_s[1] - window_s[0]) / pixels
    covered = np.zeros((rows, pixels + 1))
    # Up to an edge e between pixels, an interval covers max(0, e - start) - max(0, e - end). Summed
    # over intervals, both need only the number and the sum of the instants before the edge.
    for instant, sign in ((start_s, 1.0), (end_s, -1.0)):
        position = (instant - low) / width
        edge_after = np.clip(np.ceil(position), 0, pixels).astype(np.int64)
        slot = row * (pixels + 1) + edge_after
        size = rows * (pixels + 1)
        number = np.bincount(slot, minlength=size).reshape(rows, -1).cumsum(1)
        total = np.bincount(slot, weights=position, minlength=size).reshape(rows, -1).cumsum(1)
        covered += sign * (number * np.arange(pixels + 1) - total)
    share = np.diff(covered, axis=1)
    return np.where(share > RESIDUE, share, 0)


MOST_BARS = 3_000
"""Most ops that are drawn as bars; of more, the share of each pixel's time is drawn."""
MOST_LANES = 480  # most lanes that are drawn; with more, neighbours share a lane
MOST_HEIGHTS = 64  # most rows of pixels in a lane, more than a lane has in a printed figure
WHITE = (1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Legend:
    """Colours, and texts in place of names, of categories, such as ``{"compute": "#ff0000"}``."""

    colors: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)


@checked()
def timeline(
    trace: Trace,
    *,
    by: str = "resource",
    what: str | None = None,
    window_s: tuple[float, float] | None = None,
    ranks: int | list[int] | None = None,
    resources: Picks | None = None,
    legend: Legend | None = None,
    title: str = "",
) -> Figure:
    """Draw ops over time, with a lane for each resource or each value of a label.

    Up to a few thousand ops are drawn as bars. With more, the height of a colour in a lane is its
    share of a pixel's time, averaged over lanes and ops that are too many to be told apart. White
    is idle. A flow that holds no resource is drawn in the lane of the first that it shares.

    Parameters
    ----------
    trace : Trace
        Trace of a run.
    by : str
        Meaning of a lane: ``"resource"``, or a label such as ``"rank"``.
    what : str, optional
        Label that gives the colour; by default ``what``, or the kind of resource without one.
    window_s : (float, float), optional
        Beginning and end of the part that is drawn [s]; by default the whole run.
    ranks, resources : optional
        Ranks and resources that are drawn, as in :meth:`Trace.frame`; by default all of them.
    legend : Legend, optional
        Colours and words instead of the usual ones.
    title : str, optional
        Title of the figure; by default the facts of the schedule.

    Returns
    -------
    Figure

    Raises
    ------
    InputError
        When nothing is left to draw, or a label, rank or resource is unknown.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> ring = cs.Group(cs.cluster("ring:4", bandwidth="100GB/s", latency="1us"), range(4))
    >>> trace = cs.simulate(cs.collective("all-gather", ring, size_bytes="4MiB", algorithm="ring"))
    >>> timeline(trace, by="rank").axes[0].get_xlabel()
    'time [µs]'
    """
    bars = trace_bars(trace, by, what, window_s, trace.rows(ranks, resources))
    window = window_s or (0.0, end_of_run_ps(trace) / PS_PER_S)
    legend = legend or Legend()
    shade = {**colors(bars.categories), **legend.colors}
    figure, axes = _draw(bars, shade, window)
    _label_axes(axes, bars, by, window)
    axes.set_title(title or _title(trace), loc="left", fontsize=11)
    _explain(axes, [(legend.words.get(name, name), shade[name]) for name in bars.categories])
    return figure


def _draw(bars: Bars, shade: Mapping[str, str], window: tuple[float, float]) -> tuple[Figure, Axes]:
    """Draw bars if they can be told apart, otherwise shares of the time of pixels."""
    height = float(np.clip(1.3 + 0.26 * len(bars.lanes), 2.4, 10.0))
    figure = Figure(figsize=(11, height), layout="constrained")
    axes = figure.subplots()
    if len(bars.op) <= MOST_BARS and len(bars.lanes) <= MOST_NAMED_LANES:
        _draw_bars(axes, bars, shade)
        axes.grid(axis="x", color="#dddddd", lw=0.6)
    else:
        _draw_shares(axes, bars, shade, window)
    return figure, axes


def _explain(axes: Axes, named: Sequence[tuple[str, str]]) -> None:
    handles = [Patch(color=color, label=words) for words, color in named]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9
    )


def _draw_bars(axes: Axes, bars: Bars, shade: Mapping[str, str]) -> None:
    across = np.stack([bars.start_s, bars.end_s], 1)[:, [0, 0, 1, 1]]
    up = np.stack([bars.lane - 0.4, bars.lane + 0.4], 1)[:, [0, 1, 1, 0]]
    corners = np.stack([across, up], axis=2)
    face = [shade[bars.categories[k]] for k in bars.category.tolist()]
    edge = "white" if len(bars.op) <= MOST_BARS // 4 else "none"
    axes.add_collection(PolyCollection(list(corners), facecolors=face, edgecolors=edge, lw=0.4))


def _draw_shares(
    axes: Axes, bars: Bars, shade: Mapping[str, str], window_s: tuple[float, float]
) -> None:
    """Draw an image in which the height of each colour is its category's share of the time."""
    lanes = min(len(bars.lanes), MOST_LANES)
    row = bars.lane * lanes // len(bars.lanes)
    members = np.bincount(np.arange(len(bars.lanes)) * lanes // len(bars.lanes), minlength=lanes)
    share = np.stack(
        [
            busy_share(row[on], bars.start_s[on], bars.end_s[on], lanes, window_s)
            for on in (bars.category == k for k in range(len(bars.categories)))
        ]
    )
    share = smoothed(share / members[None, :, None], bars, window_s)
    # Categories fill a lane from above, one below the other, so that no colour is a blend of two.
    rows = min(1 + 2 * MOST_LANES // lanes, MOST_HEIGHTS)
    filled = np.cumsum(share / np.maximum(share.sum(0), 1), axis=0)
    level = (np.arange(rows) + 0.5) / rows
    which = (filled[:, :, None] <= level[None, None, :, None]).sum(0)
    # matplotlib scales images as opaque colours in single precision, and converts any other.
    tint = np.array([*(to_rgba(shade[name]) for name in bars.categories), WHITE], np.float32)
    image = tint[which.reshape(lanes * rows, PIXELS)]
    extent = (*window_s, len(bars.lanes) - 0.5, -0.5)
    axes.imshow(image, aspect="auto", extent=extent)
    axes.set_xlabel("height of a colour in a lane: its share of the time · white: idle")


def _label_axes(axes: Axes, bars: Bars, by: str, window_s: tuple[float, float]) -> None:
    every = max(1, -(-len(bars.lanes) // MOST_NAMED_LANES))
    shown = np.arange(0, len(bars.lanes), every)
    axes.set_yticks(shown, [bars.lanes[k] for k in shown.tolist()], fontsize=8)
    axes.set_ylim(len(bars.lanes) - 0.4, -0.6)
    unit, scale = _time_unit(window_s[1])
    axes.set_xlim(*window_s)
    axes.xaxis.set_major_formatter(lambda instant, _: f"{instant * scale:,.6g}")
    axes.set_xlabel("   ".join(text for text in (f"time [{unit}]", axes.get_xlabel()) if text))
    if every > 1:
        axes.set_ylabel(f"{len(bars.lanes):,} lanes by {by}, one in {every} named")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_axisbelow(True)


def _time_unit(latest_s: float) -> tuple[str, float]:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9)):
        if latest_s * scale >= 1:
            return unit, scale
    return "ps", 1e12


def _title(trace: Trace) -> str:
    facts: Mapping[str, Any] = trace.schedule.facts
    words = [
        str(facts[key]) for key in ("collective", "algorithm", "cluster", "model") if key in facts
    ]
    return " · ".join([*words, f"{len(trace):,} ops"])
