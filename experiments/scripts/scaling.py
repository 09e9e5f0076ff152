"""Experiments on training at scale: a chip's speed among many, and what uneven chips cost."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.processes import on_all_cores
from cluster_sim.progress import Watch, unwatched
from experiments.figures.plan import scaling
from experiments.figures.training import lines
from experiments.scripts.support import Replica, Steps, chips_kept, relative
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.models.huggingface import as_model
from workloads.models.huggingface import model as read_model
from workloads.training.execution.jitter import CAUSES, TYPICAL
from workloads.training.program.breakdown import PARTS

LONG_REPLICA = Replica(tp=32, pp=2, microbatches=16)


def strong_scaling(
    model: str = "llama-3.1-405b",
    machine: str = "trn2-ultraserver",
    domains: tuple[int, ...] = (1024, 4096, 16_384),
    overlap: tuple[str, ...] = ("all", "dp"),
    jitter: tuple[str, ...] = ("0", "typical"),
    replica: Replica = LONG_REPLICA,
    seed: int = 0,
) -> pd.DataFrame:
    """Simulate a step of the same batch on several numbers of scale-up domains.

    The batch stays the same, so every chip has less work on a larger cluster. Each size is
    simulated with equal chips and with uneven ones.

    ``domains``: numbers of scale-up domains, ascending; sizes with more replicas than sequences are
    left out. ``overlap``: communication that overlaps compute: some of ``none``, ``dp`` and
    ``all``. ``jitter``: numbers or causes of uneven chips, as of ``train``; 0 for equal chips.
    ``replica``: plan of a replica, with its microbatches at the first size. ``seed``: seed of the
    draws.
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


def draw_strong_scaling(frame: pd.DataFrame) -> Figure:
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


RAINIER = "rainier"
REPLICA = Replica(tp=32, pp=2, microbatches=8)
CHIPS = (1024, 4096, 16_384, 65_536, 262_144, 999_936)
COLUMNS = (
    "model", "cluster", "tp", "pp", "microbatch", "seq", "overlap", "jitter", "chips", "dp",
    "global_batch", "iteration_s", "low_s", "high_s", "tokens_per_s", "tokens_per_s_per_chip",
    "mfu",
)  # fmt: skip


def weak_scaling(
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

    Each size is simulated with equal chips and with uneven ones, whose slowest holds up all.

    ``machine``: ``rainier``, or another machine of whole scale-up domains. ``chips``: numbers of
    chips, ascending; by default up to a million. ``overlap``: some of ``none``, ``dp`` and ``all``:
    with the last two, gradients are reduced in buckets during the backward pass, with ``all`` other
    communication beside compute as well; with ``none``, all at once after it. ``jitter``: numbers
    or causes of uneven chips, as of ``train``; 0 for equal chips. ``seed``: seed of their draws.
    """
    shape, in_domain = read_model(model), cluster(machine).chips_per_domain

    def rows(count: int) -> list[dict[str, Any]]:
        """Rows of one number of chips, one for each kind of overlap and each jitter."""
        steps = Steps(shape, cluster(f"{machine}:{_size(machine, count, in_domain)}"))
        name = steps.cluster.name.partition(":")[0]
        cases = [
            (steps.repeated(replica, overlap=kind), causes) for kind in overlap for causes in jitter
        ]
        return [
            steps.row(plan, jitter=causes, seed=seed, allow_oversized=False) | {"cluster": name}
            for plan, causes in cases
        ]

    sizes = on_all_cores(rows, chips, watch, task="sizes")
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


def draw_weak_scaling(frame: pd.DataFrame) -> Figure:
    """Draw the parts of the step over the size, with the throughput of a chip below."""
    first = frame.iloc[0]
    each = first.global_batch // first.dp
    most = int((frame.global_batch * frame.seq).max()) / 1e6
    title = (
        f"{chips_kept(frame)}\n"
        f"{first.model} on {first.cluster}, tp {first.tp}, pp {first.pp}: {each} sequences of "
        f"{first.seq:,} tokens for every replica,\n"
        f"up to {most:,.0f} M tokens a step; failures are not counted"
    )
    return scaling(frame, title)


STEPS = 100  # drawn steps


def stragglers_and_jitter(
    model: str = "llama-3.1-405b",
    machine: str = "trn2-ultraserver",
    domains: tuple[int, ...] = (16, 64, 256, 1024, 4096, 15_624),
    cases: tuple[str, ...] = ("typical", *CAUSES, "0:1.1"),
    overlap: str = "all",
    replica: Replica = REPLICA,
    seed: int = 0,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate a step on equal chips, steps on uneven ones, and one with a single slow rank.

    All ranks wait for the slowest. A step on equal chips is compared with steps on chips that
    causes make uneven, and with one in which a single rank is slow.

    ``domains``: numbers of scale-up domains. ``cases``: causes or numbers as of ``train --jitter``,
    of which a number simulates every rank, and slow ranks as of ``--straggler``. ``seed``: seed of
    the draws of a hundred steps, of which the median is simulated.
    """
    shape = as_model(model)

    def rows(count: int) -> list[dict[str, Any]]:
        """Rows of one number of machines: with equal chips, and in each case."""
        of_size = Steps(shape, f"{machine}:{count}" if count > 1 else machine)
        plan = of_size.repeated(replica, overlap=overlap)
        rows_of_size = [{**of_size.row(plan), "case": "equal"}]
        for case in cases:
            rank, _, factor = case.partition(":")
            if factor:
                row = of_size.row(plan, stragglers=(case,))
                rows_of_size.append({**row, "case": f"rank {rank} takes {factor} times as long"})
            else:
                row = of_size.row(plan, jitter=case, seed=seed, steps=STEPS)
                rows_of_size.append({**row, "case": case})
        return rows_of_size

    frame = pd.DataFrame(
        row for size in on_all_cores(rows, domains, watch, task="sizes") for row in size
    )
    even = frame[frame.case == "equal"].set_index("chips").iteration_s
    return frame.assign(slowdown=frame.iteration_s / frame.chips.map(even) - 1)


def draw_stragglers_and_jitter(frame: pd.DataFrame) -> Figure:
    """Draw the relative increase of the step time over the number of chips."""
    uneven = frame[frame.case != "equal"]
    ends = uneven[uneven.case == uneven.case.iloc[0]].sort_values("chips")
    first, last = ends.iloc[0], ends.iloc[-1]
    title = (
        f"Causes of uneven chips ({last.case}) make a step {first.slowdown:.1%} longer on "
        f"{first.chips:,} chips and {last.slowdown:.1%} on {last.chips:,}\n"
        f"{first.model} on {first.cluster.partition(':')[0]}, tp {first.tp}, pp {first.pp}, "
        f"overlap {first.overlap}"
    )
    cases = uneven.case.replace("typical", f"typical: {', '.join(TYPICAL)}")
    percent = uneven.assign(percent=100 * uneven.slowdown, case=cases)
    labels = ("chips", "longer than on equal chips [%]")
    return lines(percent, "chips", "percent", "case", title, labels=labels)
