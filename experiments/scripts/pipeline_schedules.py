"""The idle share of a step under each pipeline schedule, by the number of microbatches.

A pipeline of p stages and m microbatches idles for (p - 1) / m of its work under 1F1B and GPipe
(arXiv 2104.04473, section 2.2); interleaving divides that by the chunks of a stage, and a schedule
that splits off the gradients of weights fills it with them (arXiv 2401.10241).
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.training import lines
from experiments.scripts.support import Steps
from workloads.training.plan.schedules.registry import all_schedules
from workloads.training.plan.schedules.schedule import PipelineSchedule


def run(
    model: str = "llama-3.1-70b",
    cluster: str = "trn2-ultraserver",
    tp: int = 8,
    pp: int = 8,
    microbatches: tuple[int, ...] = (8, 16, 32, 64),
    seq: int = 4096,
    chunks: int = 2,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate one step under every pipeline schedule and number of microbatches.

    ``microbatches``: microbatches of a replica in one step; the pipeline fills with at least one a
    stage. ``chunks``: chunks of layers in a stage under interleaved schedules, at least 2.

    Returns one row for each schedule and number of microbatches: ``schedule``, ``vpp``,
    ``microbatches``, ``iteration_s``, ``bubble_share`` (of the step), and ``<part>_s`` [s].
    """
    steps = Steps(model, cluster)
    replicas = steps.cluster.chips // (tp * pp)

    def row(point: tuple[PipelineSchedule, int]) -> dict[str, Any]:
        """Row of one schedule and number of microbatches."""
        schedule, count = point
        searched = schedule.chunks_searched
        vpp = chunks if len(searched) > 1 else searched[0]
        plan = {"tp": tp, "pp": pp, "vpp": vpp, "schedule": schedule.name, "seq": seq,
                "global_batch": replicas * count, "overlap": "dp"}  # fmt: skip
        return {**steps.row(plan), "microbatches": count, "title": schedule.title}

    points = [(schedule, count) for schedule in all_schedules() for count in microbatches]
    frame = pd.DataFrame(row(point) for point in watch(points, "steps"))
    return frame.assign(bubble_share=frame.bubble_s / frame.iteration_s)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the share of the bubble in the step, over the number of microbatches."""
    few = frame[frame.microbatches == frame.microbatches.min()]
    best, worst = (few.loc[few.bubble_share.agg(which)] for which in ("idxmin", "idxmax"))
    title = (
        f"{best.title} idles {best.bubble_share:.0%} of a step with {best.microbatches} "
        f"microbatches on {best.pp} stages, {worst.title} {worst.bubble_share:.0%}\n"
        f"{best.model} on {best.cluster}, tp {best.tp}, pp {best.pp}"
    )
    percent = frame.assign(percent=100 * frame.bubble_share)
    labels = ("microbatches of a step", "pipeline bubble [% of the step]")
    return lines(percent, "microbatches", "percent", "title", title, labels=labels)
