"""The best plan of every tensor × pipeline division of one model, simulated in full.

Each bar is the plan that is estimated fastest for a combination of tensor and pipeline parallel
degrees. The mark shows its estimate.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.plan import bars
from experiments.reports.plan_rows import brief
from topologies.clusters.names import cluster as machine
from workloads.models.huggingface import model as read_model
from workloads.search import search


def run(
    model: str = "llama-3.1-405b",
    cluster: str = "trn2-ultraserver:16",
    global_batch: int = 256,
    seq: int = 8192,
    overlap: str = "all",
    precision: str = "bf16",
    most: int = 12,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Search all plans and simulate the best estimate of each tp × pp.

    ``precision``: precision of matrix products, such as ``bf16``. ``most``: largest number of
    combinations to simulate, the best estimates first.

    Returns one row a plan, the fastest first: its fields, ``estimate_s``, ``iteration_s``, ``mfu``,
    ``memory_total_bytes``, and ``<part>_s`` for each part [s].
    """
    searched = search(
        read_model(model),
        machine(cluster),
        global_batch,
        stated={"seq": seq, "overlap": overlap, "precision": precision},
        finalists=most,
        each=("tp", "pp"),
        watch=watch,
    )
    return brief(searched, most)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw one stacked bar a plan, with a mark at its estimate."""
    first, last = frame.iloc[0], frame.iloc[-1]
    title = (
        f"{first.model} on {first.cluster}, global batch {first.global_batch:,} × {first.seq:,} "
        f"tokens, overlap {first.overlap}: the best plan of each division.\n"
        f"The first of {len(frame)} takes {1 - first.iteration_s / last.iteration_s:.0%} less time "
        "than the last"
    )
    return bars(frame, title)
