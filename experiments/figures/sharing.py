"""Jobs that share a cluster, as bars of their slowdown, and those that queue for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from cluster_sim.plot.palette import KNOWN, colors
from experiments.figures.layout import canvas, dress

if TYPE_CHECKING:
    from workloads.sharing.queueing import Queue
    from workloads.sharing.sharing import Sharing


def slowdowns(shared: Sharing) -> Figure:
    """Draw by how much the step of each job is longer than in its best placement alone.

    Bars are means in every placement, and whiskers the spread over single steps.
    """
    tried = shared.simulated
    names = [job.job.name for job in shared.jobs]
    drawn, axes = canvas(9.5, 1.9 + 0.5 * len(names) * max(1, len(tried) / 2))
    height, shades = 0.8 / len(tried), colors(tried)
    for number, (name, each) in enumerate(tried.items()):
        best = [
            100 * job.alone_s / best_s
            for job, best_s in zip(each.jobs, shared.best_alone_s, strict=True)
        ]
        both = list(zip(best, each.jobs, strict=True))
        slower = [alone * job.slowdown - 100 for alone, job in both]
        low = [alone * (job.slowdown - job.slowdowns.min()) for alone, job in both]
        high = [alone * (job.slowdowns.max() - job.slowdown) for alone, job in both]
        rows = [row + height * number for row in range(len(names))]
        axes.barh(
            rows, slower, height, label=name, color=shades[name], xerr=[low, high], ecolor="0.3"
        )
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlim(right=max(1.0, axes.get_xlim()[1]))  # where nothing is lost, bars have no length
    across = "step beside the others, longer than alone in the best placement [%]"
    dress(axes, f"{across}; lines: single steps", "", grid="x")
    axes.legend(title="placement", frameon=False)
    worst = max(shared.jobs, key=lambda job: job.slowdown)
    answer = f"{worst.job.name} loses most to others, {worst.slowdown - 1:+.1%} a step"
    if shared.others:
        answer = f"placement {shared.best} loses least"
    title = f"{len(names)} jobs on {shared.cluster.name}: {answer}"
    drawn.suptitle(title, x=0.01, ha="left", fontsize=10.5)
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
    dress(lower, "hours since the first arrival", "jobs that wait", grid="y")
    mean_h = queue.waits_s.mean() / 3600
    drawn.suptitle(
        f"{len(queue.jobs):,} jobs on {queue.cluster.name}, {queue.discipline}: "
        f"{queue.used:.0%} of the servers in use, jobs wait {mean_h:.2g} h on average",
        x=0.01,
        ha="left",
        fontsize=10.5,
    )
    return drawn
