"""A mixture of experts on a torus and on a switch, on machines with equal numbers of ranks.

Each bar is one step with a degree of expert parallelism. The exposed part of the exchange of
experts shows how well a fabric carries the all-to-all.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.training import stacked_rows
from experiments.scripts.support import Steps, each
from topologies.errors import InputError


def run(
    model: str = "mixtral-8x22b",
    clusters: tuple[str, ...] = ("trn2-ultraserver:2", "trn3-gen1:2"),
    tp: int = 4,
    pp: int = 4,
    ep: tuple[int, ...] = (1, 2, 4, 8),
    global_batch: int = 128,
    seq: int = 4096,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate a step on every cluster and for every degree of expert parallelism.

    ``model``: model with experts, named or the path of a ``config.json``. ``clusters``: clusters
    with equal numbers of chips. ``ep``: numbers of ranks among which experts are divided; those
    that do not divide the replicas are left out.

    Returns one row for each cluster and degree: ``cluster``, ``ep``, ``iteration_s``,
    ``tokens_per_s_per_chip``, and ``<part>_s`` [s].
    """
    every = [Steps(model, name) for name in clusters]
    fabrics = [steps.cluster for steps in every]
    if len({fabric.chips for fabric in fabrics}) > 1:
        sizes = ", ".join(f"{fabric.name} {fabric.chips}" for fabric in fabrics)
        raise InputError(f"clusters of different sizes: {sizes} chips. Give equal ones.")

    def rows(steps: Steps) -> list[dict[str, Any]]:
        replicas = steps.cluster.chips // (tp * pp)
        plan = {"tp": tp, "pp": pp, "ep": 1, "global_batch": global_batch, "seq": seq}
        return [steps.row({**plan, "ep": degree}) for degree in ep if not replicas % degree]

    tables = each(rows, every, watch, task="clusters")
    return pd.DataFrame(row for table in tables for row in table)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the parts of each step's time."""
    exposed = frame.exposed_ep_s / frame.iteration_s
    largest = "; ".join(
        f"{cluster}: {exposed[group.index].max():.0%}"
        for cluster, group in frame.groupby("cluster", sort=False)
    )
    labels = [f"{row.cluster}, ep {row.ep}" for row in frame.itertuples()]
    first = frame.iloc[0]
    title = f"Exposed exchange of experts at most: {largest}\n{first.model}, tp {first.tp}"
    return stacked_rows(frame, labels, title)
