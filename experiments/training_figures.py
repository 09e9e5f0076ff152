"""Figures of training iterations: the stacked step-time breakdown and the timeline of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cluster_sim.palette import colors
from workloads.training.breakdown import PARTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    "other": "other",
}
"""What each part of the breakdown is called in a legend."""

SMALLEST_LABEL = 0.06
"""Share of the longest bar from which a part is wide enough for its number."""


def stacked(
    labels: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    notes: Sequence[str] = (),
    *,
    shares: bool = False,
) -> Figure:
    """One horizontal bar an iteration, made of its parts.

    Parameters
    ----------
    labels : list of str
    parts : list of mapping of part to seconds
    notes : list of str, optional
        Written behind each bar, such as its MFU.
    shares : bool
        Draw shares of each iteration, so that long and short ones can be compared.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 1.7 + 0.55 * len(labels)), layout="constrained")
    axes = figure.subplots()
    shade, at = colors(PARTS), np.arange(len(labels))
    totals = np.array([sum(one.values()) for one in parts])
    scale = 1 / totals if shares else np.ones(len(labels))
    longest = float((totals * scale).max())
    left = np.zeros(len(labels))
    for part in PARTS:
        seconds = np.array([one.get(part, 0.0) for one in parts])
        width = seconds * scale
        if not width.any():
            continue
        axes.barh(at, width, left=left, color=shade[part], label=NAMES[part], height=0.62)
        for row in np.flatnonzero(width > SMALLEST_LABEL * longest).tolist():
            middle = left[row] + width[row] / 2
            ink = "black" if part in ("bubble", "exposed_dp", "other") else "white"
            text = f"{seconds[row]:.3g} s\n{seconds[row] / totals[row]:.0%}"
            axes.text(middle, row, text, ha="center", va="center", fontsize=8, color=ink)
        left += width
    for row, note in enumerate(notes):
        axes.text(left[row] + 0.01 * longest, row, note, va="center", fontsize=8)
    axes.set_yticks(at, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * (1.18 if notes else 1.02))
    unit = "share of one iteration" if shares else "time of one iteration [s]"
    axes.set_xlabel(f"{unit}, mean over ranks")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure
