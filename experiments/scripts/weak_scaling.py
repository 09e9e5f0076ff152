"""The speed of a chip with constant work, from some servers to a million chips.

Every replica of the model has the same batch at all sizes. Gradients are reduced in buckets beside
the backward pass (overlap dp), with other communication beside compute (all), or all at once after
it (none). Each size is simulated with equal chips and with uneven ones, whose slowest holds up all.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.progress import Watch, unwatched
from experiments.figures.plan import scaling
from experiments.scripts.support import Replica, Steps, chips_kept, each, relative
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.huggingface import model as read_model
from workloads.training.program.breakdown import PARTS

RAINIER = "rainier"
REPLICA = Replica(tp=32, pp=2, microbatches=8)
CHIPS = (1024, 4096, 16_384, 65_536, 262_144, 999_936)
COLUMNS = (
    "model", "cluster", "tp", "pp", "microbatch", "seq", "overlap", "jitter", "chips", "dp",
    "global_batch", "iteration_s", "low_s", "high_s", "tokens_per_s", "tokens_per_s_per_chip",
    "mfu",
)  # fmt: skip


def run(
    model: str = "llama-3.1-405b",
    machine: str = RAINIER,
    chips: tuple[int, ...] = CHIPS,
    overlap: tuple[str, ...] = ("all", "dp", "none"),
    jitter: tuple[str, ...] = ("0", "typical"),
    replica: Replica = REPLICA,
    seed: int = 0,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate one step on ever more chips, with the same batch for every replica of the model.

    ``machine``: ``rainier``, or another machine of whole scale-up domains. ``chips``: numbers of
    chips, ascending; by default up to a million. ``overlap``: some of ``none``, ``dp`` and ``all``:
    with the last two, gradients are reduced in buckets during the backward pass; with ``none``, all
    at once after it. ``jitter``: numbers or causes of uneven chips, as of ``train``; 0 for equal
    chips. ``seed``: seed of their draws.

    Returns one row for each overlap, jitter and size: ``chips``, ``dp``, ``global_batch``,
    ``iteration_s``, ``tokens_per_s``, ``tokens_per_s_per_chip``, ``efficiency`` (throughput of a
    chip relative to the first size with the same jitter), ``mfu``, and ``<part>_s`` for each part
    [s].
    """
    shape, in_domain = read_model(model), cluster(machine).chips_per_domain

    def rows(count: int) -> list[dict[str, Any]]:
        """Simulate one size under every overlap and jitter."""
        steps = Steps(shape, cluster(f"{machine}:{_size(machine, count, in_domain)}"))
        name = steps.cluster.name.partition(":")[0]
        cases = [
            (steps.repeated(replica, overlap=kind), causes) for kind in overlap for causes in jitter
        ]
        return [
            steps.row(plan, jitter=causes, seed=seed, allow_oversized=False) | {"cluster": name}
            for plan, causes in cases
        ]

    sizes = each(rows, chips, watch, task="sizes")
    frame = pd.DataFrame(row for kinds in zip(*sizes, strict=True) for row in kinds)
    return relative(frame[[*COLUMNS, *(f"{part}_s" for part in PARTS)]])


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
        f"{chips_kept(frame)}\n"
        f"{first.model} on {first.cluster}, tp {first.tp}, pp {first.pp}: {each} sequences of "
        f"{first.seq:,} tokens for every replica"
    )
    return scaling(frame, title)
