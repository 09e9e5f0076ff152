"""Timeline of a trace as a document, from which the report draws a zoomable one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cluster_sim.analysis.stretches import end_of_run_ps
from cluster_sim.plot.palette import colors
from cluster_sim.plot.timeline_figure import Bars, busy_share, trace_bars
from cluster_sim.schedule.table import PS_PER_S
from cluster_sim.trace.trace import Trace

MOST_SLICES = 4_000
"""Most ops that are shown one by one. With more, time is divided into moments, and each shows the
category that fills most of it."""
MOST_LANES = 32
MOST_MOMENTS = 24_000
"""Number of lanes times moments of a timeline in moments."""
LEAST_BUSY = 0.05
"""Share of a moment below which a lane counts as idle."""
DIGITS = 7


def slices(
    trace: Trace,
    *,
    by: str = "resource",
    what: str | None = None,
    ranks: list[int] | None = None,
    words: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the slices of a timeline: times in which a lane is busy with one category.

    Returns ``lanes``, ``categories``, ``colors``, ``end_s``, ``note``, and ``slices``: lists of
    lane, category, start and end [s].
    """
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
            [lane, category, float(f"{start:.{DIGITS}g}"), float(f"{end:.{DIGITS}g}")]
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
