"""The parts of a step's time across models, each with the best plan that a search finds.

All models train the same batch on the same cluster.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.training import stacked_rows
from experiments.reports.plan_rows import brief
from experiments.scripts.support import each
from topologies.clusters.names import cluster as machine
from workloads.models.huggingface import model as read_model
from workloads.models.model import Model
from workloads.search.search import search

MODELS = (
    "llama-3.1-8b", "llama-2-13b", "gpt-neox-20b", "llama-3.1-70b", "qwen2-72b", "gpt3-175b",
    "llama-3.1-405b",
)  # fmt: skip


def run(
    models: tuple[str, ...] = MODELS,
    cluster: str = "trn2-ultraserver:16",
    global_batch: int = 1024,
    seq: int = 4096,
    overlap: str = "all",
    finalists: int = 3,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Search plans for every model, all with the same batch on the same cluster.

    ``finalists``: best estimates that are simulated for each model; the fastest is kept.

    Returns one row a model: ``model``, ``cluster``, the fields of its best plan, ``estimate_s``,
    ``iteration_s``, ``tokens_per_s``, ``mfu``, ``memory_total_bytes``, and ``<part>_s`` [s].
    """
    fabric, stated = machine(cluster), {"seq": seq, "overlap": overlap}

    def row(model: Model) -> pd.DataFrame:
        """Row of the best plan for a model."""
        searched = search(
            model, fabric, global_batch, stated=stated, finalists=finalists, processes=1
        )
        return brief(searched, 1).assign(tokens_per_s=searched.finalists[0].tokens_per_s)

    rows = each(row, [read_model(text) for text in models], watch, task="models")
    return pd.concat(rows, ignore_index=True)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the shares of every model's step as one bar, with its plan, time and MFU."""
    labels = [
        f"{row.model}\ntp {row.tp}, pp {row.pp}, dp {row.dp:,}, microbatch {row.microbatch}"
        for row in frame.itertuples()
    ]
    first, low, high = frame.iloc[0], frame["mfu"].min(), frame["mfu"].max()
    title = (
        f"One step of {first.global_batch:,} × {first.seq:,} tokens on {first.cluster}, overlap "
        f"{first.overlap}:\neach model with its best plan reaches {low:.0%} to {high:.0%} MFU"
    )
    return stacked_rows(frame, labels, title, whole_s=frame["iteration_s"].tolist())
