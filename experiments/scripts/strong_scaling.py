"""The speed of a chip when one batch is divided among ever more chips.

The batch stays the same, so every chip has less work on a larger cluster.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.figures.training import lines
from experiments.scripts.support import Steps


def run(
    model: str = "llama-3.1-70b",
    machine: str = "trn2-ultraserver",
    domains: tuple[int, ...] = (1, 2, 4, 8, 16, 32),
    tp: int = 8,
    pp: int = 4,
    global_batch: int = 256,
    seq: int = 8192,
    overlap: tuple[str, ...] = ("dp",),
) -> pd.DataFrame:
    """Simulate a step of the same batch on several numbers of scale-up domains.

    ``domains``: numbers of scale-up domains; sizes with more replicas than sequences are left out.
    ``overlap``: communication that overlaps compute: some of ``none``, ``dp`` and ``all``.

    Returns one row for each overlap and size: ``chips``, ``iteration_s``, ``tokens_per_s``,
    ``efficiency`` (throughput of a chip relative to the smallest size), and ``<part>_s`` [s].
    """
    sizes = [Steps(model, f"{machine}:{count}" if count > 1 else machine) for count in domains]
    plan = {"tp": tp, "pp": pp, "global_batch": global_batch, "seq": seq}
    frame = pd.DataFrame(
        steps.row({**plan, "overlap": kind})
        for kind in overlap
        for steps in sizes
        if steps.cluster.chips // (tp * pp) <= global_batch
    )
    first = frame.groupby("overlap", sort=False)["tokens_per_s_per_chip"].transform("first")
    return frame.assign(efficiency=frame["tokens_per_s_per_chip"] / first)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the efficiency over the number of chips."""
    last = frame[frame.chips == frame.chips.max()]
    kept = " and ".join(
        f"{row.efficiency:.0%} with overlap {row.overlap}" for row in last.itertuples()
    )
    first = frame.iloc[0]
    title = (
        f"Of the speed among {frame.chips.min()} chips, a chip among {last.chips.iloc[0]:,} "
        f"keeps {kept}\n"
        f"{first.model}, global batch {first.global_batch}, tp {first.tp}, pp {first.pp}"
    )
    percent = frame.assign(percent=100 * frame.efficiency)
    labels = ("chips", "speed of a chip [% of that among the fewest]")
    return lines(percent, "chips", "percent", "overlap", title, labels=labels)
