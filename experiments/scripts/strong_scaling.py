"""The speed of a chip when one batch is divided among ever more chips.

The batch stays the same, so every chip has less work on a larger cluster. Each size is simulated
with equal chips and with uneven ones.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.figures.training import lines
from experiments.scripts.support import Replica, Steps, chips_kept, relative

REPLICA = Replica(tp=32, pp=2, microbatches=16)


def run(
    model: str = "llama-3.1-405b",
    machine: str = "trn2-ultraserver",
    domains: tuple[int, ...] = (1024, 4096, 16_384),
    overlap: tuple[str, ...] = ("all", "dp"),
    jitter: tuple[str, ...] = ("0", "typical"),
    replica: Replica = REPLICA,
    seed: int = 0,
) -> pd.DataFrame:
    """Simulate a step of the same batch on several numbers of scale-up domains.

    ``domains``: numbers of scale-up domains, ascending; sizes with more replicas than sequences are
    left out. ``overlap``: communication that overlaps compute: some of ``none``, ``dp`` and
    ``all``. ``jitter``: numbers or causes of uneven chips, as of ``train``; 0 for equal chips.
    ``replica``: plan of a replica, with its microbatches at the first size. ``seed``: seed of the
    draws.

    Returns one row for each overlap, jitter and size: ``chips``, ``iteration_s``, ``tokens_per_s``,
    ``efficiency`` (throughput of a chip relative to the smallest size), and ``<part>_s`` [s].
    """
    sizes = [Steps(model, f"{machine}:{count}" if count > 1 else machine) for count in domains]
    plan = sizes[0].repeated(replica)
    return relative(
        pd.DataFrame(
            steps.row({**plan, "overlap": kind}, jitter=causes, seed=seed)
            for kind in overlap
            for causes in jitter
            for steps in sizes
            if steps.repeated(replica)["global_batch"]
            <= plan["global_batch"] * replica.microbatches
        )
    )


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the efficiency over the number of chips."""
    first = frame.iloc[0]
    title = (
        f"{chips_kept(frame)}\n"
        f"{first.model}, global batch {first.global_batch:,}, tp {first.tp}, pp {first.pp}"
    )
    case = "overlap " + frame.overlap + ", jitter " + frame.jitter
    percent = frame.assign(percent=100 * frame.efficiency, case=case)
    labels = ("chips", "speed of a chip [% of that among the fewest]")
    return lines(percent, "chips", "percent", "case", title, labels=labels)
