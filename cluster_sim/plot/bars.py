"""Bars of a timeline: the times in which ops ran, each with its lane and category."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.analysis.stretches import drawn_on, end_of_run_ps, groups_of, stretches
from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.schedule.table import Codes
from cluster_sim.trace.trace import Trace
from topologies.arrays import FloatArray, IntArray, present
from topologies.errors import InputError

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
        drawn &= drawn_on(trace)[ran.op] >= 0
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
        numbers, lane = present(drawn_on(trace)[op])
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
        code, names = label.code[op], list(label.names)
    elif what is not None:
        raise InputError(f"no label {what} of names to colour by; give one of the trace.")
    else:
        return _resource_kinds(trace, op)
    return _present(code, names)


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
    """Average shares over neighbouring pixels where ops alternate within few pixels.

    Otherwise the beat between their period and the width of a pixel would show as a pattern.
    """
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
    """Return the share of each pixel's time that intervals in rows cover, float (rows, pixels).

    Up to an edge e between pixels, an interval covers max(0, e - start) - max(0, e - end). Summed
    over intervals, both terms need only the number and the sum of the instants before the edge.
    """
    low, width = window_s[0], (window_s[1] - window_s[0]) / pixels
    covered = np.zeros((rows, pixels + 1))
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
