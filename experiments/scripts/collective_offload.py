"""The gain of a training step from collectives that need no compute cores.

Trainium's collectives are driven by cores of their own. On NVIDIA's chips a reduction runs on the
multiprocessors that the product beside it needs. Here Trainium is also timed as if its collectives
took a share of its compute engines, as they do there.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.training import lines
from experiments.scripts.support import Steps
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import machine
from workloads.kernels.chip_share import family


def run(
    model: str = "llama-3.1-70b",
    cluster: str = "trn2-ultraserver",
    tp: tuple[int, ...] = (8, 16, 32),
    shares: tuple[float, ...] = (0.0, 0.05, 0.15),
    global_batch: int = 64,
    seq: int = 8192,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate a step whose collectives take a share of the compute engines, for several shares.

    ``tp``: tensor-parallel degrees [ranks]. ``shares``: shares of the compute engines that a
    collective takes while it runs; 0 for cores of its own. ``global_batch``: sequences of one
    optimizer step; small, so that the step stays short to simulate.

    Returns one row for each degree and share: ``tp``, ``share``, ``iteration_s``, ``slower``
    (relative to the smallest share), and ``<part>_s`` [s].
    """
    steps = {share: Steps(model, _fabric(cluster, share)) for share in shares}

    def row(point: tuple[float, int]) -> dict[str, Any]:
        """Row of one share and degree."""
        share, degree = point
        plan = {"tp": degree, "global_batch": global_batch, "seq": seq, "overlap": "all",
                "recompute": "full"}  # fmt: skip
        return {**steps[share].row(plan), "share": share}

    points = [(share, degree) for share in shares for degree in tp]
    frame = pd.DataFrame(row(point) for point in watch(points, "steps"))
    least = frame[frame.share == frame.share.min()].set_index("tp").iteration_s
    return frame.assign(slower=frame.iteration_s / frame.tp.map(least) - 1)


def _fabric(cluster: str, share: float) -> Cluster:
    """Return a cluster whose collectives take a share of the compute engines."""
    catalogue, plain = shipped_catalogue(), machine(cluster)
    if not share:
        return plain
    part = f"kernels.{family(plain.chip).name}"
    template = catalogue.entry(plain.chip, "hbm_bandwidth")  # any row; what matters is replaced
    sizes = {"processors": Fraction(1000), "communication_processors": Fraction(share) * 1000}
    rows = [
        template._replace(part=part, quantity=name, value=float(value), exact=value,
                unit="count", grade="assumed", variant="")
        for name, value in sizes.items()
    ]  # fmt: skip
    return machine(cluster, catalogue=catalogue.with_rows(rows))


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the relative increase of the step time over the tensor-parallel degree."""
    taken = frame[frame.share > frame.share.min()]
    most = taken.loc[taken.slower.idxmax()]
    title = (
        f"Collectives that take {most.share:.0%} of the compute engines make a step "
        f"{most.slower:.1%} longer at tp {most.tp}\n"
        f"{most.model} on {most.cluster}, overlap all; cores of their own are the zero line"
    )
    shown = taken.assign(percent=100 * taken.slower, taken=[f"{s:.0%} taken" for s in taken.share])
    labels = ("tensor-parallel degree", "longer than with cores of their own [%]")
    return lines(shown, "tp", "percent", "taken", title, labels=labels)
