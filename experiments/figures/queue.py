"""Servers in use and jobs that wait, over the time of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cluster_sim.plot.palette import KNOWN
from experiments.figures.layout import canvas, dress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from workloads.sharing.queueing import Queue


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
