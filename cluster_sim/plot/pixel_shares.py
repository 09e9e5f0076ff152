"""Shares of each pixel's time that many intervals cover, and their average over neighbours."""

from __future__ import annotations

import numpy as np

from cluster_sim.plot.bars import Bars
from topologies.arrays import FloatArray, IntArray

RESIDUE = 1e-7
"""Share of a pixel's time below which it is only the rounding error of sums over a lane."""
RESOLVED = 8
"""Pixels between the starts of two ops of a lane from which on each can be seen by itself."""
TURNS = 3
"""Ops over which shares are averaged where single ops cannot be seen."""
PIXELS = 1_400
"""Pixels across the window, about as many as a printed figure has."""


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
    """Return the share of each pixel's time that is covered, float (rows, pixels).

    Up to an edge e between pixels, an interval covers max(0, e - start) - max(0, e - end). Summed
    over intervals, both terms need only the number and the sum of the instants before the edge.

    Parameters
    ----------
    row : int array (intervals,)
        Row of each interval.
    start_s, end_s : float array (intervals,)
        Start and end of each interval [s].
    rows : int
        Number of rows.
    window_s : (float, float)
        Beginning and end of the window [s].
    pixels : int
        Pixels across the window.
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
