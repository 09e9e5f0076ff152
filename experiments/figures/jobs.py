"""Figures of jobs: one of weeks, several that share a cluster, and a queue of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from cluster_sim.plot.palette import KNOWN, colors
from experiments.figures.layout import canvas, dress, entitle, legend_beside, logarithmic
from topologies.support.units import format_seconds
from workloads.job import JobResult
from workloads.job.goodput import daly_interval_s

if TYPE_CHECKING:
    from workloads.sharing.queueing import Queue
    from workloads.sharing.sharing import Sharing

COLORS = {
    "useful": "#4477aa",
    "stragglers": "#66ccee",
    "checkpoint": "#228833",
    "lost_work": "#ee6677",
    "restart": "#ccbb44",
    "detection": "#aa3377",
    "waiting_for_spares": "#bbbbbb",
    "fewer_replicas": "#332288",
    "maintenance": "#882255",
}
"""Colours of the parts, after Paul Tol's schemes as in :mod:`cluster_sim.plot`."""
SHOWN = 0.005  # least length of a bar [%] that is seen
ROOM = 1.15  # height of the axis as a multiple of the largest loss


def timeline_figure(result: JobResult, title: str) -> Figure:
    """Draw the lost time of the first run over its days, stacked by its cause."""
    frame = result.timeline()
    figure, axes = canvas(10, 5.5)
    lost = [part for part in COLORS if part in frame and part != "useful" and frame[part].max() > 0]
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
        legend_beside(axes, "mean over all runs", upwards=True)
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


def slowdowns(shared: Sharing) -> Figure:
    """Draw how much longer each job's step is than alone: means of placements, spread of steps."""
    tried = shared.simulated
    names = [job.job.name for job in shared.jobs]
    drawn, axes = canvas(9.5, 1.9 + 0.5 * len(names) * max(1, len(tried) / 2))
    height, shades = 0.8 / len(tried), colors(tried)
    for number, (name, each) in enumerate(tried.items()):
        pairs = zip(each.jobs, shared.best_alone_s, strict=True)
        both = [(100 * job.alone_s / best_s, job) for job, best_s in pairs]
        slower = [alone * job.slowdown - 100 for alone, job in both]
        low = [alone * (job.slowdown - job.slowdowns.min()) for alone, job in both]
        high = [alone * (job.slowdowns.max() - job.slowdown) for alone, job in both]
        rows = [row + height * number for row in range(len(names))]
        bars = axes.barh(
            rows, slower, height, label=name, color=shades[name], xerr=[low, high], ecolor="0.3"
        )
        axes.bar_label(bars, ["" if cost >= SHOWN else " 0" for cost in slower], fontsize=8)
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlim(right=max(1.0, axes.get_xlim()[1]))  # where nothing is lost, bars have no length
    across = "longer step than alone in the best placement [%]; lines: single steps"
    dress(axes, across, "", grid="x")
    axes.legend(title="placement", frameon=False)
    worst = max(shared.jobs, key=lambda job: job.slowdown)
    longer = f"{worst.slowdown - 1:+.1%}"
    answer = f"{worst.job.name} loses most to others, {longer} a step"
    if longer == "+0.0%":
        answer = "none loses to the others"
    if shared.others:
        answer = shared.verdict
    title = f"{len(names)} jobs on {shared.cluster.name}: {answer}"
    entitle(drawn, title)
    return drawn


def occupancy(queue: Queue) -> Figure:
    """Draw the servers in use, those that are free while jobs wait, and the jobs that wait."""
    hours = np.append(queue.times_s, queue.end_s) / 3600
    servers = queue.cluster.servers
    drawn, (upper, lower) = canvas(9.5, 5.2, 2, sharex=True, height_ratios=(3, 2))
    busy = np.append(queue.busy, queue.busy[-1])
    held = np.append(np.where(queue.waiting > 0, servers, queue.busy), queue.busy[-1])
    step = {"step": "post", "linewidth": 0}
    upper.fill_between(hours, busy, color=KNOWN["training"], label="in use", **step)
    upper.fill_between(hours, busy, held, color="#ee9966", label="free while jobs wait", **step)
    upper.set_ylim(0, servers * 1.02)
    dress(upper, "", f"servers (of {servers:,})", grid="y")
    upper.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0)
    waiting = np.append(queue.waiting, queue.waiting[-1])
    lower.step(hours, waiting, where="post", color="#4477aa")
    lower.set_ylim(bottom=0)
    for panel in (upper, lower):
        panel.yaxis.get_major_locator().set_params(integer=True)
    dress(lower, "hours since the first arrival", "jobs that wait", grid="y")
    mean_h = queue.waits_s.mean() / 3600
    entitle(
        drawn,
        f"{len(queue.jobs):,} jobs on {queue.cluster.name}, {queue.discipline}: "
        f"{queue.used:.0%} of the servers in use, jobs wait {mean_h:.2g} h on average",
    )
    return drawn
