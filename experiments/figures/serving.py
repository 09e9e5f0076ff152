"""Figure of a replica that serves: latencies of requests with their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cluster_sim.plot.palette import colors, marks
from experiments.figures.layout import canvas, dress, entitle, logarithmic
from topologies.support.arrays import FloatArray
from topologies.support.units import format_seconds
from workloads.serving import Served, Slo
from workloads.serving.served import latency

if TYPE_CHECKING:
    import pandas as pd

SHOWN = (50, 90, 99)


def latencies(served: Served, limits: Slo, title: str = "") -> Figure:
    """Draw the share of requests against time to first token and time per output token."""
    figure, (left, right) = canvas(10, 4.2, 1, 2, sharey=True)
    _distribution(left, served.ttft_s, limits.ttft_s, "time to first token (TTFT)")
    _distribution(right, served.tpot_s, limits.tpot_s, "mean time per later token (TPOT)")
    left.set_ylabel("requests that take no longer [%]")
    entitle(figure, title, 10)
    return figure


def _distribution(axes: Axes, seconds: FloatArray, limit_s: float, what: str) -> None:
    finished = np.sort(seconds[np.isfinite(seconds)])
    dress(axes, f"{what} [s]", "", grid="both")
    axes.set_ylim(0, 101)
    if np.isfinite(limit_s):
        axes.axvline(limit_s, color="0.4", ls="--", lw=1)
        limit = f"limit {format_seconds(limit_s)} "
        axes.text(limit_s, 4, limit, rotation=90, ha="right", fontsize=8, color="0.3")
    if not len(finished):
        return
    share = 100 * np.arange(1, len(finished) + 1) / len(finished)
    axes.step(finished, share, where="post", color="#4477aa")
    levels = latency(finished)  # as in the answer's table
    for percent in SHOWN:
        at_s = levels[f"p{percent}"]
        label = f"p{percent} {format_seconds(at_s)}"
        axes.plot(at_s, percent, "o", ms=4, color="black")
        axes.annotate(label, (at_s, percent), (6, -10), textcoords="offset points", fontsize=8)
    logarithmic(axes, "x")


def frontier(points: pd.DataFrame, title: str) -> Figure:
    """Draw tokens of a chip against those of a user by deployment, dashed with prompts apart."""
    groups = list(points.groupby("options", sort=False))
    names = [str(name) for name, _ in groups]
    shades, shapes = colors(names), marks(names)
    figure, axes = canvas(8.4, 4.8)
    for name, rows in groups:
        line = "--" if rows["apart"].any() else "-"
        axes.plot(
            rows["tokens_per_s_per_user"], rows["tokens_per_s_per_chip"],
            f"{shapes[str(name)]}{line}", ms=4, color=shades[str(name)],
            label=str(name).replace("--", ""),
        )  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    user = "speed for a user: 1 / median time per output token [tokens/s]"
    dress(axes, user, "output of each chip [tokens/s]", grid="both")
    axes.legend(frameon=False, fontsize=8, title="more requests: up and left", title_fontsize=8)
    entitle(figure, title)
    return figure
