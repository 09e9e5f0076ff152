"""Generations: the same job on every generation of chips, each with its own best plan.

Throughput is compared at equal chips, equal power (the limit of the chip) and equal dollars (the
catalogue's default price), and beside it stands what vendors claim, with a verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from topologies.catalogue.catalogue import Catalogue

MACHINES = (
    "trn1.32xlarge:4", "trn2-ultraserver", "trn3-gen1",
    "dgx-a100:8", "dgx-h100:8", "p5en.48xlarge:8", "dgx-b200:8",
)  # fmt: skip
"""Machines of 64 chips."""
CLAIMS = (
    ("trn2 over h200, tokens a dollar", "tokens_per_usd", "trn2", "h200", 1.30, 1.40,
     "memory: AWS, availability of Trn2 (December 2024): 30 to 40 % better price-performance"),
    ("trn3 over trn2, tokens a joule", "tokens_per_joule", "trn3", "trn2", 4.0, 4.0,
     "memory: AWS, availability of Trn3 (December 2025): four times the energy efficiency"),
    ("trn2 over trn1, tokens a second", "tokens_per_s_per_chip", "trn2", "trn1", 4.0, 4.0,
     "memory: AWS, announcement of Trainium2 (November 2023): up to four times faster training"),
    ("b200 over h100, tokens a second", "tokens_per_s_per_chip", "b200", "h100", 3.0, 3.0,
     "memory: NVIDIA, DGX B200 datasheet: three times the training of DGX H100"),
)  # fmt: skip
"""Vendors' claims; a source that begins with ``memory:`` was not read from the document."""
NEAR = 0.15
"""Distance within which a claim and our ratio agree."""


def run(
    model: str = "llama-3.1-8b",
    machines: tuple[str, ...] = MACHINES,
    global_batch: int = 256,
    seq: int = 4096,
    finalists: int = 2,
) -> pd.DataFrame:
    """Search each machine's best plan and simulate it.

    Returns
    -------
    DataFrame
        One row a machine: ``chip``, ``plan``, ``iteration_s``, ``mfu``, ``tokens_per_s_per_chip``,
        ``tokens_per_joule`` and ``tokens_per_usd`` (NaN where the catalogue states no power or
        price).
    """
    from topologies.catalogue.catalogue import catalogue
    from topologies.clusters.names import machine
    from workloads.models.huggingface import model as read_model
    from workloads.search.fit import describe
    from workloads.search.search import search
    from workloads.training.iteration import iteration

    shape, parts, rows = read_model(model), catalogue(), []
    for name in machines:
        fabric = machine(name)
        ranking = search(shape, fabric, global_batch, stated={"seq": seq}, finalists=finalists)
        plan = ranking.finalists[0].plan
        step = iteration(shape, fabric, plan)
        each = step.tokens_per_s / fabric.chips
        watts = parts.value(fabric.chip, "tdp") if parts.has(fabric.chip, "tdp") else float("nan")
        usd_per_s = _price(parts, name.partition(":")[0])
        rows.append(
            {
                "model": shape.name,
                "cluster": name,
                "chip": fabric.chip,
                "chips": fabric.chips,
                "plan": describe(plan),
                "iteration_s": step.iteration_s,
                "mfu": step.mfu,
                "tokens_per_s_per_chip": each,
                "tokens_per_joule": each / watts,
                "tokens_per_usd": each / usd_per_s,
            }
        )
    return pd.DataFrame(rows)


def _price(parts: Catalogue, instance: str) -> float:
    """Dollars a second of one chip, NaN where no price is stated."""
    if not parts.has(instance, "price") or not parts.has(instance, "chips"):
        return float("nan")
    return parts.value(instance, "price") / parts.value(instance, "chips")


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Put vendors' claims beside our ratios.

    Returns
    -------
    DataFrame
        One row a claim: ``claim``, ``claimed_low``, ``claimed_high``, ``ours``, ``verdict``
        (``agrees``, ``ours is lower``, ``ours is higher``, ``not known``), ``source``.
    """
    one_each = frame.drop_duplicates("chip")
    rows = []
    for claim, quantity, new, old, low, high, source in CLAIMS:
        value = dict(zip(one_each.chip, one_each[quantity].astype(float), strict=True))
        ours = value.get(new, float("nan")) / value.get(old, float("nan"))
        rows.append(
            {
                "claim": claim,
                "claimed_low": low,
                "claimed_high": high,
                "ours": ours,
                "verdict": _verdict(ours, low, high),
                "source": source,
            }
        )
    return pd.DataFrame(rows)


def _verdict(ours: float, low: float, high: float) -> str:
    if ours != ours:
        return "not known"
    if ours < low * (1 - NEAR):
        return "ours is lower"
    return "ours is higher" if ours > high * (1 + NEAR) else "agrees"


def plot(frame: pd.DataFrame) -> Figure:
    """Draw throughput at equal chips, power and dollars, over the first machine that has it."""
    from matplotlib.figure import Figure

    from cluster_sim.plot.palette import colors

    panels = {
        "tokens_per_s_per_chip": "equal chips",
        "tokens_per_joule": "equal power",
        "tokens_per_usd": "equal dollars",
    }
    shades = colors([str(name) for name in frame.cluster])
    figure = Figure(figsize=(12, 1.8 + 0.36 * len(frame)), layout="constrained")
    for axes, (column, title) in zip(
        figure.subplots(1, 3, sharey=True), panels.items(), strict=True
    ):
        known = frame[column].dropna()
        ratio = frame[column] / known.iloc[0] if len(known) else frame[column]
        for row, (name, value) in enumerate(zip(frame.cluster, ratio, strict=True)):
            if value == value:
                axes.barh(row, value, color=shades[str(name)])
            axes.annotate(
                f" {value:.2f}" if value == value else " not stated",
                (value if value == value else 0.0, row), va="center", fontsize=8,
            )  # fmt: skip
        base = frame[frame[column].notna()].cluster.iloc[0] if len(known) else "nothing"
        axes.set_title(f"{title}: tokens, {base} = 1", loc="left", fontsize=10)
        axes.set_yticks(range(len(frame)), frame.cluster, fontsize=9)
        axes.margins(x=0.18)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].invert_yaxis()
    best = frame.sort_values("tokens_per_s_per_chip").iloc[-1]
    first = frame.iloc[0]
    times = best.tokens_per_s_per_chip / first.tokens_per_s_per_chip
    told = "\n".join(f"{row.claim}: {row.ours:.2f} ({row.verdict})" for row in
                     claims(frame).itertuples() if row.verdict != "not known")  # fmt: skip
    figure.suptitle(
        f"A chip of {best.cluster} trains {first.model} {times:.1f} times as fast as one of "
        f"{first.cluster}\n{told}",
        fontsize=10,
    )
    return figure
