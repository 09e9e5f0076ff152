"""The parts of a training step's time with none, some and full overlap.

Communication that runs beside computation is hidden. For every model, the three bars overlap
nothing, data parallelism only (dp), and everything that frameworks can overlap (all).
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.training import stacked_rows
from experiments.scripts.support import Steps
from workloads.training.program.breakdown import PARTS

COLUMNS = (
    "model", "cluster", "tp", "pp", "dp", "overlap", "iteration_s", "low_s", "high_s",
    "tokens_per_s", "mfu",
)  # fmt: skip


def run(
    models: tuple[str, ...] = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"),
    cluster: str = "trn2-ultraserver:16",
    tp: tuple[int, ...] = (4, 16, 32),
    pp: tuple[int, ...] = (1, 1, 2),
    overlap: tuple[str, ...] = ("none", "dp", "all"),
    global_batch: int = 1024,
    seq: int = 8192,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate one step of every model with every overlap; dp fills the cluster.

    ``tp``: tensor-parallel degree of each model; the last one also of all further models [ranks].
    ``pp``: pipeline stages of each model; the last one also of all further models. ``overlap``:
    communication that overlaps compute: some of ``none``, ``dp`` and ``all``.

    Returns one row a step: ``model``, ``cluster``, ``tp``, ``pp``, ``dp``, ``overlap``,
    ``iteration_s``, ``low_s``, ``high_s``, ``tokens_per_s``, ``mfu``, and ``<part>_s`` [s].
    """
    steps = [Steps(model, cluster) for model in models]

    def row(point: tuple[int, str]) -> dict[str, Any]:
        """Row of one model and overlap."""
        number, kind = point
        degrees = {"tp": tp[min(number, len(tp) - 1)], "pp": pp[min(number, len(pp) - 1)]}
        plan = {**degrees, "overlap": kind, "global_batch": global_batch, "seq": seq}
        return steps[number].row(plan, allow_oversized=False)

    points = [(number, kind) for number in range(len(steps)) for kind in overlap]
    frame = pd.DataFrame(row(point) for point in watch(points, "steps"))
    return frame[[*COLUMNS, *(f"{part}_s" for part in PARTS)]]


def plot(frame: pd.DataFrame) -> Figure:
    """Draw one stacked bar a row, as a share of the longest step of its model."""
    longest = frame.groupby("model", sort=False)["iteration_s"].transform("max")
    labels = [
        f"{row.model}: overlap {row.overlap}\ntp {row.tp}, pp {row.pp}, dp {row.dp:,}"
        for row in frame.itertuples()
    ]
    saved = 1 - (frame["iteration_s"] / longest).groupby(frame["model"]).min()
    title = (
        f"{frame['cluster'].iloc[0]}: overlapping communication shortens the step by "
        f"{saved.min():.0%} to {saved.max():.0%}"
    )
    whole = "the longest step of the model"
    return stacked_rows(frame, labels, title, whole_s=longest.tolist(), whole=whole)
