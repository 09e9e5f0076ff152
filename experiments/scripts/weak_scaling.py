"""The speed of a chip with constant work, from one UltraServer to Project Rainier.

Every replica of the model has the same batch at all sizes. Gradients are reduced in buckets beside
the backward pass (overlap dp) or all at once after it (overlap none).
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.plan import scaling
from experiments.scripts.support import Replica, Steps, each
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.huggingface import model as read_model
from workloads.training.program.breakdown import PARTS

RAINIER = "rainier"
REPLICA = Replica()
CHIPS = (64, 256, 1024, 4096, 16_384, 65_536, 499_968)
COLUMNS = (
    "model", "cluster", "tp", "pp", "microbatch", "seq", "overlap", "chips", "dp", "global_batch",
    "iteration_s", "low_s", "high_s", "tokens_per_s", "tokens_per_s_per_chip", "mfu",
)  # fmt: skip


def run(
    model: str = "llama-3.1-70b",
    machine: str = RAINIER,
    chips: tuple[int, ...] = CHIPS,
    overlap: tuple[str, ...] = ("dp", "none"),
    replica: Replica = REPLICA,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate one step on ever more chips, with the same batch for every replica of the model.

    ``machine``: ``rainier``, or another machine of whole scale-up domains. ``chips``: numbers of
    chips, ascending; by default up to all of Project Rainier. ``overlap``: some of ``none``, ``dp``
    and ``all``: with the last two, gradients are reduced in buckets during the backward pass; with
    ``none``, all at once after it.

    Returns one row for each overlap and size: ``chips``, ``dp``, ``global_batch``, ``iteration_s``,
    ``tokens_per_s``, ``tokens_per_s_per_chip``, ``efficiency`` (throughput of a chip relative to
    the first size), ``mfu``, and ``<part>_s`` for each part [s].
    """
    shape, in_domain = read_model(model), cluster(machine).chips_per_domain

    def rows(count: int) -> list[dict[str, Any]]:
        steps = Steps(shape, cluster(f"{machine}:{_size(machine, count, in_domain)}"))
        name = steps.cluster.name.partition(":")[0]
        plans = [steps.repeated(replica, overlap=kind) for kind in overlap]
        return [steps.row(plan, allow_oversized=False) | {"cluster": name} for plan in plans]

    sizes = each(rows, chips, watch, task="sizes")
    frame = pd.DataFrame(row for kinds in zip(*sizes, strict=True) for row in kinds)
    frame = frame[[*COLUMNS, *(f"{part}_s" for part in PARTS)]]
    first = frame.groupby("overlap", sort=False)["tokens_per_s_per_chip"].transform("first")
    return frame.assign(efficiency=frame["tokens_per_s_per_chip"] / first)


def _size(machine: str, chips: int, each: int) -> int:
    """Number after the colon of a cluster's name: chips of Rainier, domains of other machines."""
    if machine == RAINIER:
        return chips
    if chips < each or chips % each:
        near = max(1, chips // each) * each
        raise InputError(f"{chips} chips are not whole domains of {machine}. Use {near}.")
    return chips // each


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the parts of the step over the size, with the throughput of a chip below."""
    first = frame.iloc[0]
    each = first.global_batch // first.dp
    title = (
        f"{first.model} on {first.cluster}, tp {first.tp}, pp {first.pp}: {each} sequences of "
        f"{first.seq:,} tokens for every replica\n"
        f"{_finding(frame)}"
    )
    return scaling(frame, title)


def _finding(frame: pd.DataFrame) -> str:
    """Sentence with the share of a chip's throughput that remains at the largest size."""
    last = frame.groupby("overlap", sort=False).last()
    kept = " and ".join(
        f"{row.efficiency:.1%} with overlap {kind}" for kind, row in last.iterrows()
    )
    among, fewest = last.chips.iloc[0], frame.chips.iloc[0]
    return f"Of the speed among {fewest:,} chips, a chip among {among:,} keeps {kept}"
