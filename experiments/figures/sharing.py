"""Slowdown of jobs that share a cluster, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from cluster_sim.plot.palette import colors
from experiments.figures.layout import canvas, dress

if TYPE_CHECKING:
    from workloads.sharing.sharing import Sharing


def slowdowns(shared: Sharing) -> Figure:
    """Draw by how much the step of each job is longer than in its best placement alone.

    Bars are means in every placement, and whiskers the spread over single steps.
    """
    tried = {name: each for name, each in shared.placements.items() if not isinstance(each, str)}
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
