"""The time of a step for each tensor-parallel degree and placement of its groups.

The ranks of a group are placed on neighbouring chips of the torus, or on chips that are far apart.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.training import stacked_rows
from experiments.scripts.support import Steps

ORDERS = {"neighbours": ("tp", "cp", "dp", "pp"), "apart": ("dp", "tp", "cp", "pp")}
"""Orders of a plan's axes: neighbouring chips are ranks of tensor parallelism, or replicas."""


def run(
    model: str = "llama-3.1-70b",
    cluster: str = "trn2-ultraserver",
    tp: tuple[int, ...] = (4, 8, 16, 32, 64),
    pp: int = 1,
    global_batch: int = 64,
    seq: int = 4096,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate a step for every degree and placement.

    ``cluster``: named machine or cluster file with a torus, where placement matters. ``tp``:
    tensor-parallel degrees, up to all chips of the machine [ranks].

    Returns one row for each degree and placement: ``tp``, ``placement``, ``iteration_s``,
    ``tokens_per_s_per_chip``, ``fits``, and ``<part>_s`` [s].
    """
    steps = Steps(model, cluster)

    def row(point: tuple[int, str]) -> dict[str, Any]:
        degree, name = point
        plan = {"tp": degree, "pp": pp, "global_batch": global_batch, "seq": seq}
        return {**steps.row({**plan, "order": ORDERS[name]}), "placement": name}

    points = [
        (degree, name)
        for degree in tp
        if not (steps.cluster.chips % (degree * pp) or steps.model.heads % degree)
        for name in ORDERS
    ]
    return pd.DataFrame(row(point) for point in watch(points, "steps"))


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the parts of each step's time."""
    best = (frame[frame.fits] if frame.fits.any() else frame).sort_values("iteration_s").iloc[0]
    pairs = frame.pivot_table(index="tp", columns="placement", values="iteration_s")
    dear = (pairs["apart"] / pairs["neighbours"] - 1).max()
    labels = [
        f"tp {row.tp}, {row.placement}" + ("" if row.fits else " (does not fit)")
        for row in frame.itertuples()
    ]
    title = (
        f"tp {best.tp} among {best.placement} is the fastest that fits; a step with groups apart, "
        f"spread over the torus, is up to {dear:.0%} longer\n{best.model} on {best.cluster}"
    )
    return stacked_rows(frame, labels, title)
