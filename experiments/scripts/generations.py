"""Generations of chips beside each other, and the claims of their vendors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cluster_sim.processes import on_all_cores
from cluster_sim.progress import Watch, unwatched
from experiments.figures.layout import canvas, entitle
from experiments.reports.plan_rows import plan_interval
from topologies.catalogue.catalogue import Catalogue, chip_family, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import machine
from topologies.shapes.basic import Torus
from topologies.support.files.reading import csv_rows
from workloads.economics import kind_in_words, kind_of_price
from workloads.kernels.times import gemm
from workloads.models.huggingface import model as read_model
from workloads.models.model import Model
from workloads.search.search import search
from workloads.serving import profile
from workloads.training.usual_plan import describe

MACHINES = (
    "trn1.32xlarge:4", "trn2-ultraserver", "trn3-gen1", "trn4-ultraserver",
    "p4de.24xlarge:8", "p5.48xlarge:8", "p5en.48xlarge:8", "p6-b200.48xlarge:8", "gb200-nvl72",
    "mi300x-platform:8", "tpu-v5p-pod", "tpu-v6e-pod", "tpu7x-pod",
)  # fmt: skip
"""Machines of 64 chips, or larger ones that are cut to a slice."""
SLICES: dict[str, tuple[int, ...]] = {
    "trn4-ultraserver": (64,),
    "gb200-nvl72": (64,),
    "tpu-v5p-pod": (4, 4, 4),
    "tpu-v6e-pod": (8, 8),
    "tpu7x-pod": (4, 4, 4),
}
"""Chips along each axis of the slice of a larger machine. A cut axis does not wrap around, except
in cubes of 4, the units of pods with three axes."""
CUBE = 4


PRECISIONS = ("bf16", "fp8")
PAID = "capacity-block"  # kind of price that most machines have, so that they compare
ASSUMED = (
    "* a chip that is not built, or kernels at the shares of peak of another family: left out of "
    "the title"
)
PAID_OTHERWISE = (
    "Dollars by Capacity Block (prices of July to October 2026), or as named beside a bar and then "
    "left out of the title"
)
DIFFERENT = "Claims of vendors from which ours differ; the table has all, and their causes:"


def generations(
    model: str = "llama-3.1-8b",
    machines: tuple[str, ...] = MACHINES,
    global_batch: int = 256,
    seq: int = 4096,
    finalists: int = 2,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate the best plan of each machine in bf16, and in fp8 where the chip gains from it.

    Each machine trains in bf16 and, where its chip has a faster fp8, also in fp8; the better of the
    two steps counts. Throughput is compared at equal chips, equal power (the limit of the chip) and
    equal dollars (the price of a Capacity Block, or the catalogue's default where a machine has
    none). Vendors' claims are listed beside it with a verdict and, where the two differ, the cause
    of the difference. The first line leaves out machines with kernels ``assumed`` (a chip that is
    not built, or one at the shares of peak of another family), and of dollars all that are paid in
    another way, which ``price`` names.

    ``machines``: named machines with similar numbers of chips. ``global_batch``: sequences of one
    optimizer step on every machine. ``finalists``: best estimates that are simulated on each
    machine; the fastest is kept.

    Returns one row for each machine and precision: ``chip``, ``precision``, ``plan``, ``kernels``
    (grade of the kernels of its family; ``assumed`` where its peak is), ``iteration_s``, ``mfu``
    (of the peak in that precision), ``tokens_per_s_per_chip``, ``tokens_per_joule`` and
    ``tokens_per_usd`` (NaN where the catalogue states no power or price), ``price`` (its kind in
    words, or ``assumed``; empty without one), and ``best``, which marks the faster precision of a
    machine.
    """
    shape, catalogue = read_model(model), shipped_catalogue()
    points = []
    for name in machines:
        rates = [catalogue.value(_machine(name).chip, f"{each}_peak", 0) for each in PRECISIONS]
        points += [(name, each) for each in PRECISIONS[: 1 + (rates[1] > rates[0])]]

    def row(point: tuple[str, str]) -> dict[str, Any]:
        return _row(shape, *point, catalogue, (global_batch, seq, finalists))

    frame = pd.DataFrame(on_all_cores(row, points, watch, task="machines"))
    rank = frame.groupby("cluster").tokens_per_s_per_chip.rank(method="first", ascending=False)
    frame["best"] = rank == 1
    return frame


def _machine(name: str) -> Cluster:
    """Return a machine by name, cut to a slice if it is larger than the others."""
    whole, sizes = machine(name), SLICES.get(name)
    if sizes is None:
        return whole
    shape: Any = whole.shape
    if not isinstance(shape, Torus):
        return replace(whole, shape=replace(shape, size=sizes[0]))
    axes = (
        replace(axis, size=size, wrap=size in (axis.size, CUBE))
        for axis, size in zip(shape.axes, sizes, strict=True)
    )
    return replace(whole, shape=Torus(tuple(axes)))


def _row(
    shape: Model, name: str, precision: str, catalogue: Catalogue, work: tuple[int, int, int]
) -> dict[str, Any]:
    """Simulate the best plan of one machine in one precision."""
    fabric, (global_batch, seq, finalists) = _machine(name), work
    stated = {"seq": seq, "precision": precision}
    ranking = search(shape, fabric, global_batch, stated=stated, finalists=finalists)
    best = ranking.finalists[0]
    ends = plan_interval(ranking, best)
    tokens_per_s_per_chip = best.tokens_per_s / fabric.chips
    watts = catalogue.value(fabric.chip, "tdp", float("nan"))
    usd_per_s, paid = _price(catalogue, name.partition(":")[0])
    family = f"family.{chip_family(fabric.chip).name}"
    rows = ((family, "kernels"), (fabric.chip, "bf16_peak"))
    grades = [catalogue.entry(*row).grade for row in rows]
    return {
        "model": shape.name,
        "cluster": name,
        "chip": fabric.chip,
        "chips": fabric.chips,
        "precision": precision,
        "plan": describe(best.plan),
        "kernels": "assumed" if "assumed" in grades else grades[0],
        "iteration_s": best.iteration_s,
        "low_s": ends.low,
        "high_s": ends.high,
        "mfu": best.mfu,
        "tokens_per_s_per_chip": tokens_per_s_per_chip,
        "tokens_per_joule": tokens_per_s_per_chip / watts,
        "tokens_per_usd": tokens_per_s_per_chip / usd_per_s,
        "price": paid,
    }


def _price(catalogue: Catalogue, instance: str) -> tuple[float, str]:
    """Return the price of one chip [USD/s] and its kind in words; NaN and nothing without one."""
    if not catalogue.has(instance, "price") or not catalogue.has(instance, "chips"):
        return float("nan"), ""
    offered = {row.variant for row in catalogue.variants(instance, "price")}
    if PAID in offered:
        catalogue = catalogue.with_variants({f"{instance}.price": PAID})
    row = catalogue.entry(instance, "price")
    kind = (
        row.grade if row.grade == "assumed" else kind_in_words(kind_of_price(catalogue, instance))
    )
    return row.value / catalogue.value(instance, "chips"), kind


def draw_generations(frame: pd.DataFrame) -> Figure:
    """Draw throughput at equal chips, power and dollars, relative to the first machine."""
    shown = frame[frame.best].reset_index(drop=True)
    assumed = shown.kernels == "assumed"
    labels = [
        f"{name}, {kind}{' *' if guess else ''}"
        for name, kind, guess in zip(shown.cluster, shown.precision, assumed, strict=True)
    ]
    judged = shown if assumed.all() else shown[~assumed]
    otherwise = (shown.price != kind_in_words(PAID)) & shown.tokens_per_usd.notna()
    judged = judged.assign(tokens_per_usd=judged.tokens_per_usd.mask(otherwise))
    lines = [ASSUMED] * bool(assumed.any()) + [PAID_OTHERWISE, DIFFERENT] + verdicts(frame)
    panels = {
        "tokens_per_s_per_chip": "per second per chip",
        "tokens_per_joule": "per joule",
        "tokens_per_usd": "per dollar",
    }
    high = 2.4 + 0.36 * len(shown) + 0.2 * len(lines)
    figure, every = canvas(12, high, 1, 3, sharey=True)
    for axes, (column, title) in zip(every, panels.items(), strict=True):
        stated = shown[column].dropna()
        base = stated.index[0] if len(stated) else None
        title += "" if base is None else f" ({shown.cluster[base]} = 1)"
        remarks = shown.price.where(otherwise & (column == "tokens_per_usd"), "")
        _bars(axes, shown[column] / (stated.iloc[0] if len(stated) else 1.0), remarks)
        axes.set_title(f"Tokens {title}", loc="left", fontsize=9)
        axes.set_yticks(range(len(shown)), labels, fontsize=9)
    every[0].invert_yaxis()
    best = f"{shown.model.iloc[0]}, each machine with its own best plan"
    entitle(figure, f"{_finding(judged, panels)}\n{best}")
    figure.supxlabel("\n".join(lines), fontsize=8, ha="left", x=0.01)
    return figure


def _finding(shown: pd.DataFrame, panels: Mapping[str, str]) -> str:
    """Sentence with the best machine by each measure that is known for more than one machine."""
    measures = {column: what for column, what in panels.items() if shown[column].count() > 1}
    most = {
        what: shown.sort_values(column, na_position="first").cluster.iloc[-1]
        for column, what in measures.items()
    }
    return "Most tokens " + ", ".join(f"{what}: {cluster}" for what, cluster in most.items())


def _bars(axes: Axes, ratios: pd.Series[Any], remarks: pd.Series[Any]) -> None:
    """Draw one bar a machine with its number and remark, or that there is none."""
    for row, (value, remark) in enumerate(zip(ratios, remarks, strict=True)):
        stated = value == value
        if stated:
            axes.barh(row, value, color="#4477aa")
        text = f" {value:.2f} {remark}" if stated else " not stated"
        axes.annotate(text, (value if stated else 0.0, row), va="center", fontsize=8)
    axes.margins(x=0.18)
    axes.spines[["top", "right"]].set_visible(False)


NEAR = 0.15  # relative distance within which a claim and our ratio agree


SERVED = "gpt-oss-120b"  # model of the claims about serving, as AWS measured Trn3 with it
SERVED_ON, CONTEXT = 4, 4096
"""Chips of a replica in those claims, and tokens that each of its requests has before it."""
PRODUCT = 16_384
"""Rows and columns of the product whose share of the tensor engines' rate is beside a claim."""


PER = {"tokens_per_joule": "power", "tokens_per_usd": "price"}
"""Words for what a chip takes more of, by the measure that a claim divides by."""


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare vendors' claims with our ratios, in a claim's precision or the faster of each chip.

    Returns one row a claim: ``claim``, ``claimed_low``, ``claimed_high``, ``ours``, ``verdict``
    (``agrees``, ``ours is lower``, ``ours is higher``, ``taken as claimed`` where the catalogue
    has its number from the claim, ``not known``), ``faster`` (ratio of tokens a second, or of what
    is claimed) and ``dearer`` (ratio of watts or dollars of a chip), whose quotient is ``ours``,
    ``per`` (``power``, ``price``, or empty where it is neither), ``apart`` (reason of the
    difference) and ``source``.
    """
    text = (files("experiments.scripts") / "claims.csv").read_text(encoding="utf-8")
    catalogue, rows = shipped_catalogue(), []
    for _, claim in csv_rows(text, "claims.csv")[1]:
        low, high = float(claim["low"]), float(claim["high"])
        kept = frame[frame.precision == claim["precision"] if claim["precision"] else frame.best]
        chips = kept.drop_duplicates("chip").set_index("chip", drop=False)
        names = [claim[name] for name in ("new", "old") if claim[name]]  # or one chip alone
        pair = chips.reindex(names).to_dict("records")
        faster = float(claim["chips"]) * _ratio(pair, claim["quantity"])
        dearer = 1.0
        if claim["per"]:
            dearer = _ratio(pair, "tokens_per_s_per_chip") / _ratio(pair, claim["per"])
        ours = faster / dearer
        judged = verdict(ours, low, high)
        stated = claim["new"], claim["quantity"]
        if judged != "not known" and catalogue.has(*stated):
            # A row of the catalogue that no source measures or states
            is_assumed = catalogue.entry(*stated).grade == "assumed"
            judged = "taken as claimed" if is_assumed else judged
        rows.append(
            {
                "claim": claim["text"],
                "claimed_low": low,
                "claimed_high": high,
                "ours": ours,
                "verdict": judged,
                "faster": faster,
                "dearer": dearer,
                "per": PER.get(claim["per"], ""),
                "apart": claim["apart"] if judged.startswith("ours") else "",
                "source": claim["source"],
            }
        )
    return pd.DataFrame(rows)


def _ratio(pair: Sequence[Mapping[Any, Any]], quantity: str) -> float:
    """Ratio of what two machines have of a quantity, or one's own; NaN where not simulated."""
    newer, *older = (_amount(row, quantity) for row in pair)
    return newer / older[0] if older else newer


def _amount(row: Mapping[Any, Any], quantity: str) -> float:
    """Amount in a machine's row, tokens decoded a second, a share, or the catalogue's row."""
    if quantity in row or not isinstance(row["chip"], str):
        return float(row.get(quantity, math.nan))
    if quantity == "tensor_engine_use":
        seconds = float(gemm(row["chip"], PRODUCT, PRODUCT, PRODUCT, precision="fp8").seconds)
        return 2 * PRODUCT**3 / seconds / shipped_catalogue().value(row["chip"], "fp8_matmul")
    if quantity.startswith("decoded_by_"):
        users = int(quantity.rpartition("_")[2])
        replica = profile(read_model(SERVED), _machine(row["cluster"]), tp=SERVED_ON)
        return users / replica.decode_s(users, CONTEXT)
    return float(shipped_catalogue().value(row["chip"], quantity))


def verdict(ours: float, low: float, high: float) -> str:
    """Verdict on a claimed ratio, of which both ends are given."""
    if ours != ours:
        return "not known"
    if ours < low * (1 - NEAR):
        return "ours is lower"
    return "ours is higher" if ours > high * (1 + NEAR) else "agrees"


def verdicts(frame: pd.DataFrame) -> list[str]:
    """Lines with the verdict on each claim from which our ratio differs; the table has them all."""
    return [
        f"{row['claim']}: claimed {row['claimed_low']:g}"
        + (f" to {row['claimed_high']:g}" if row["claimed_high"] > row["claimed_low"] else "")
        + f", here {row['ours']:.2f}{_shares(row)}: {row['verdict']}"
        for row in claims(frame).to_dict("records")
        if row["verdict"].startswith("ours")
    ]


def _shares(row: Mapping[Any, Any]) -> str:
    """Text that divides a ratio into the speed and the power or price of a chip."""
    if not row["per"]:
        return ""
    return f" ({row['faster']:.2f} x the speed at {row['dearer']:.2f} x the {row['per']})"
