"""Slowdown of jobs that share a cluster, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from workloads.sharing.sharing import Sharing


def slowdowns(shared: Sharing) -> Figure:
    """Draw the slowdown of each job in every placement, with its spread over steps."""
    from matplotlib.figure import Figure

    tried = {name: each for name, each in shared.placements.items() if not isinstance(each, str)}
    names = [job.job.name for job in shared.jobs]
    drawn = Figure(figsize=(9.5, 1.9 + 0.5 * len(names) * max(1, len(tried) / 2)))
    axes = drawn.subplots()
    height = 0.8 / len(tried)
    for number, (name, each) in enumerate(tried.items()):
        slower = [100 * (job.slowdown - 1) for job in each.jobs]
        low = [100 * (job.slowdown - job.slowdowns.min()) for job in each.jobs]
        high = [100 * (job.slowdowns.max() - job.slowdown) for job in each.jobs]
        rows = [row + height * number for row in range(len(names))]
        axes.barh(rows, slower, height, label=name, xerr=[low, high], capsize=2)
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xlabel("step beside the others, longer than alone [%]")
    axes.legend(title="placement")
    worst = max(shared.jobs, key=lambda job: job.slowdown)
    axes.set_title(
        f"{len(names)} jobs on {shared.cluster.name}: {worst.job.name} loses most, "
        f"{worst.slowdown - 1:+.1%} a step"
    )
    return drawn
