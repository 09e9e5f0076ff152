"""Experiments on one training step: overlap, degrees, schedules, experts, models."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.processes import on_all_cores
from cluster_sim.progress import Watch, unwatched
from experiments.figures.training import lines, stacked_rows
from experiments.reports.plan_rows import brief
from experiments.scripts.support import Steps
from topologies.catalogue.catalogue import chip_family, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster as named
from topologies.clusters.names import machine
from topologies.support.errors import InputError
from workloads.models.huggingface import model as read_model
from workloads.models.model import Model
from workloads.search.search import search
from workloads.training.plan.schedules.registry import SCHEDULES
from workloads.training.program.breakdown import PARTS

COLUMNS = (
    "model", "cluster", "tp", "pp", "dp", "overlap", "iteration_s", "low_s", "high_s",
    "tokens_per_s", "mfu",
)  # fmt: skip


def step_time_breakdown(
    models: tuple[str, ...] = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"),
    cluster: str = "trn2-ultraserver:16",
    tp: tuple[int, ...] = (4, 16, 32),
    pp: tuple[int, ...] = (1, 1, 2),
    overlap: tuple[str, ...] = ("none", "dp", "all"),
    global_batch: int = 1024,
    seq: int = 8192,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate one step of every model with every overlap; dp fills the cluster.

    Communication that runs beside computation is hidden. For every model, the three bars overlap
    nothing, data parallelism only (dp), and everything that frameworks can overlap (all).

    ``tp``: tensor-parallel degree of each model; the last one also of all further models [ranks].
    ``pp``: pipeline stages, likewise. ``overlap``: some of ``none``, ``dp`` and ``all``.
    """
    steps, rows = [Steps(model, cluster) for model in models], []
    points = [(number, kind) for number in range(len(steps)) for kind in overlap]
    for number, kind in watch(points, "steps"):
        degrees = {"tp": tp[min(number, len(tp) - 1)], "pp": pp[min(number, len(pp) - 1)]}
        plan = {**degrees, "overlap": kind, "global_batch": global_batch, "seq": seq}
        rows.append(steps[number].row(plan, allow_oversized=False))
    return pd.DataFrame(rows)[[*COLUMNS, *(f"{part}_s" for part in PARTS)]]


def draw_step_time_breakdown(frame: pd.DataFrame) -> Figure:
    """Draw one stacked bar a row, as a share of the longest step of its model."""
    longest = frame.groupby("model", sort=False)["iteration_s"].transform("max")
    labels = [
        f"{row.model}: overlap {row.overlap}\ntp {row.tp}, pp {row.pp}, dp {row.dp:,}"
        for row in frame.itertuples()
    ]
    saved = 1 - (frame["iteration_s"] / longest).groupby(frame["model"]).min()
    title = (
        f"{frame['cluster'].iloc[0]}: overlapping communication shortens the step by "
        f"{saved.min():.0%} to {saved.max():.0%}"
    )
    whole = "the longest step of the model"
    return stacked_rows(frame, labels, title, whole_s=longest.tolist(), whole=whole)


MODELS = (
    "llama-3.1-8b", "llama-2-13b", "gpt-neox-20b", "llama-3.1-70b", "qwen2-72b", "gpt3-175b",
    "llama-3.1-405b",
)  # fmt: skip


def step_time_across_models(
    models: tuple[str, ...] = MODELS,
    cluster: str = "trn2-ultraserver:16",
    global_batch: int = 1024,
    seq: int = 4096,
    overlap: str = "all",
    finalists: int = 3,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Search plans for every model, all with the same batch on the same cluster.

    Each bar is a step with the best plan, divided into computation and what nothing hides.

    ``finalists``: best estimates that are simulated for each model; the fastest is kept.
    """
    fabric, stated = named(cluster), {"seq": seq, "overlap": overlap}

    def row(model: Model) -> pd.DataFrame:
        searched = search(
            model, fabric, global_batch, stated=stated, finalists=finalists, processes=1
        )
        return brief(searched, 1).assign(tokens_per_s=searched.finalists[0].tokens_per_s)

    rows = on_all_cores(row, [read_model(text) for text in models], watch, task="models")
    return pd.concat(rows, ignore_index=True)


def draw_step_time_across_models(frame: pd.DataFrame) -> Figure:
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


def pipeline_schedules(
    model: str = "llama-3.1-70b",
    cluster: str = "trn2-ultraserver",
    tp: int = 8,
    pp: int = 8,
    microbatches: tuple[int, ...] = (8, 16, 32, 64),
    seq: int = 4096,
    chunks: int = 2,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate one step under every pipeline schedule and number of microbatches.

    A pipeline of p stages and m microbatches idles for (p - 1) / m of its work under 1F1B and GPipe
    (arXiv 2104.04473, section 2.2); interleaving divides that by the chunks of a stage, and a
    schedule that splits off the gradients of weights fills it with them (arXiv 2401.10241).

    ``microbatches``: microbatches of a replica in one step; the pipeline fills with at least one a
    stage. ``chunks``: chunks of layers in a stage under interleaved schedules, at least 2.
    """
    steps = Steps(model, cluster)
    replicas = steps.cluster.chips // (tp * pp)

    points = [(schedule, count) for schedule in SCHEDULES for count in microbatches]
    rows = []
    for schedule, count in watch(points, "steps"):
        searched = schedule.chunks_searched
        vpp = chunks if len(searched) > 1 else searched[0]
        plan = {"tp": tp, "pp": pp, "vpp": vpp, "schedule": schedule.name, "seq": seq,
                "global_batch": replicas * count, "overlap": "dp"}  # fmt: skip
        rows.append({**steps.row(plan), "microbatches": count, "title": schedule.title})
    frame = pd.DataFrame(rows)
    return frame.assign(bubble_share=frame.bubble_s / frame.iteration_s)


def draw_pipeline_schedules(frame: pd.DataFrame) -> Figure:
    """Draw the share of the bubble in the step, over the number of microbatches."""
    few = frame[frame.microbatches == frame.microbatches.min()]
    best, worst = (few.loc[few.bubble_share.agg(which)] for which in ("idxmin", "idxmax"))
    title = (
        f"{best.title} idles {best.bubble_share:.0%} of a step with {best.microbatches} "
        f"microbatches on {best.pp} stages, {worst.title} {worst.bubble_share:.0%}\n"
        f"{best.model} on {best.cluster}, tp {best.tp}, pp {best.pp}"
    )
    percent = frame.assign(percent=100 * frame.bubble_share)
    labels = ("microbatches of a step", "pipeline bubble [% of the step]")
    return lines(percent, "microbatches", "percent", "title", title, labels=labels)


ORDERS = {"neighbours": ("tp", "cp", "dp", "pp"), "apart": ("dp", "tp", "cp", "pp")}
"""Orders of a plan's axes: neighbouring chips are ranks of tensor parallelism, or replicas."""


def tp_on_torus(
    model: str = "llama-3.1-70b",
    cluster: str = "trn2-ultraserver",
    tp: tuple[int, ...] = (4, 8, 16, 32, 64),
    pp: int = 1,
    global_batch: int = 64,
    seq: int = 4096,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate a step for every degree and placement.

    The ranks of a group are placed on neighbouring chips of the torus, or on chips that are far
    apart.

    ``cluster``: named machine or cluster file with a torus, where placement matters. ``tp``:
    tensor-parallel degrees, up to all chips of the machine [ranks].
    """
    steps = Steps(model, cluster)

    points = [
        (degree, name)
        for degree in tp
        if not (steps.cluster.chips % (degree * pp) or steps.model.heads % degree)
        for name in ORDERS
    ]
    same = {"pp": pp, "global_batch": global_batch, "seq": seq}
    return pd.DataFrame(
        {**steps.row({"tp": degree, **same, "order": ORDERS[name]}), "placement": name}
        for degree, name in watch(points, "steps")
    )


def draw_tp_on_torus(frame: pd.DataFrame) -> Figure:
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


def moe_on_torus_and_switch(
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

    Each bar is one step with a degree of expert parallelism. The exposed part of the exchange of
    experts shows how well a fabric carries the all-to-all.

    ``model``: model with experts, named or the path of a ``config.json``. ``clusters``: clusters
    with equal numbers of chips. ``ep``: numbers of ranks among which experts are divided; those
    that do not divide the replicas are left out.
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

    tables = on_all_cores(rows, every, watch, task="clusters")
    return pd.DataFrame(row for table in tables for row in table)


def draw_moe_on_torus_and_switch(frame: pd.DataFrame) -> Figure:
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


def collective_offload(
    model: str = "llama-3.1-70b",
    cluster: str = "trn2-ultraserver",
    tp: tuple[int, ...] = (8, 16, 32),
    shares: tuple[float, ...] = (0.0, 0.05, 0.15),
    global_batch: int = 64,
    seq: int = 8192,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate a step whose collectives take a share of the compute engines, for several shares.

    Trainium's collectives are driven by cores of their own. On NVIDIA's chips a reduction runs on
    the multiprocessors that the product beside it needs. Here Trainium is also timed as if its
    collectives took a share of its compute engines, as they do there.

    ``tp``: tensor-parallel degrees [ranks]. ``shares``: shares of the compute engines that a
    collective takes while it runs; 0 for cores of its own. ``global_batch``: sequences of one
    optimizer step; small, so that the step stays short to simulate.
    """
    steps = {share: Steps(model, _fabric(cluster, share)) for share in shares}
    points = [(share, degree) for share in shares for degree in tp]
    same = {"global_batch": global_batch, "seq": seq, "overlap": "all", "recompute": "full"}
    frame = pd.DataFrame(
        {**steps[share].row({"tp": degree, **same}), "share": share}
        for share, degree in watch(points, "steps")
    )
    least = frame[frame.share == frame.share.min()].set_index("tp").iteration_s
    return frame.assign(slower=frame.iteration_s / frame.tp.map(least) - 1)


def _fabric(cluster: str, share: float) -> Cluster:
    """Return a cluster whose collectives take a share of the compute engines."""
    catalogue, plain = shipped_catalogue(), machine(cluster)
    if not share:
        return plain
    part = chip_family(plain.chip).kernels
    template = catalogue.entry(plain.chip, "hbm_bandwidth")  # any row; what matters is replaced
    sizes = {"processors": Fraction(1000), "communication_processors": Fraction(share) * 1000}
    rows = [
        template._replace(part=part, quantity=name, exact=value,
                unit="count", grade="assumed", variant="")
        for name, value in sizes.items()
    ]  # fmt: skip
    return machine(cluster, catalogue=catalogue.with_rows(rows))


def draw_collective_offload(frame: pd.DataFrame) -> Figure:
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
