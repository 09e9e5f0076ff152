"""Figures of a job of weeks: parts of its time, the checkpoint interval, failures by cause."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.layout import canvas, dress, logarithmic
from topologies.units import format_seconds
from workloads.job import JobResult
from workloads.job.goodput import daly_interval_s

COLORS = {
    "useful": "#4477aa",
    "stragglers": "#66ccee",
    "checkpoint": "#228833",
    "lost_work": "#ee6677",
    "restart": "#ccbb44",
    "detection": "#aa3377",
    "waiting_for_spares": "#bbbbbb",
    "fewer_replicas": "#332288",
}
"""Colours of the parts, after Paul Tol's schemes as in :mod:`cluster_sim.plot`."""
ROOM = 1.15  # height of the axis as a multiple of the largest loss


def timeline_figure(result: JobResult, title: str) -> Figure:
    """Draw the lost time of the first run over its days, stacked by its cause."""
    frame = result.timeline()
    figure, axes = canvas(10, 5.5)
    lost = [part for part in COLORS if part != "useful" and frame[part].max() > 0]
    days = np.concatenate([[0.0], frame["day"].to_numpy()])
    under = np.zeros(len(frame))
    for part in lost:
        over = under + 100 * frame[part].to_numpy()
        share = result.breakdown[part]
        label = f"{part.replace('_', ' ')} {share:.2%}"
        axes.stairs(over, days, baseline=under, fill=True, color=COLORS[part], label=label)
        under = over
    most = float(under.max(initial=0.0))
    axes.set_ylim(0, min(100.0, max(1.0, ROOM * most)))
    axes.set_xlim(0, days[-1])
    dress(axes, "day of the first run", "time that is not useful [% of the time]")
    axes.set_title(title, loc="left")
    if lost:
        handles, names = axes.get_legend_handles_labels()
        axes.legend(
            handles[::-1], names[::-1], title="mean over all runs",
            loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False,
        )  # fmt: skip
    return figure


def curve_figure(result: JobResult) -> Figure:
    """Draw goodput against the time between checkpoints, with marks at special intervals."""
    figure, axes = canvas(8, 5)
    curve = result.curve
    if curve is None:
        raise ValueError("a job without failures has no curve")
    minutes = np.array(curve.interval_s) / 60
    axes.plot(minutes, 100 * np.array(curve.goodput), "o-", color=COLORS["useful"], ms=5)
    chosen = result.job.interval_s
    daly = daly_interval_s(result.job.rates.mtbf_s, result.job.stall_s)
    marks = [(daly, ":", "Young and Daly"), (curve.best_s, "--", "best, expected")]
    if chosen != curve.best_s:
        marks.append((chosen, "-", "chosen"))
    for seconds, style, name in marks:
        label = f"{name}: {format_seconds(round(seconds, 1))}"
        axes.axvline(seconds / 60, color="black", ls=style, lw=1, label=label)
    logarithmic(axes, "x")
    dress(axes, "computing time between checkpoints [min]", "goodput [% of the time]")
    axes.set_title("Goodput against the time between checkpoints, simulated", loc="left")
    axes.legend(frameon=False)
    return figure


def causes_figure(result: JobResult) -> Figure:
    """Draw the failures by cause, as the mean over the runs, with the expected numbers."""
    figure, axes = canvas(8, 4.5)
    span = result.job.span_s
    expected = {cause.name: cause.per_s * span for cause in result.job.rates.causes}
    seen = result.failures_by_cause
    names = sorted(expected, key=lambda name: expected[name])
    places = np.arange(len(names))
    axes.barh(places, [seen[name] for name in names], color=COLORS["useful"], label="simulated")
    axes.plot(
        [expected[name] for name in names], places, "|", color="black", ms=16, mew=1.6,
        label="expected from the rates",
    )  # fmt: skip
    axes.set_yticks(places, [name.replace("_", " ") for name in names])
    over = f"failures in {span / 86400:g} days, mean over {len(result.outcomes)} runs"
    dress(axes, over, "")
    axes.set_title("Failures by cause", loc="left")
    axes.legend(frameon=False, loc="lower right")
    return figure
