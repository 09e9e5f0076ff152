"""Figures of plans: parts of their steps, time against memory or cost, and scaling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cluster_sim.plot.palette import colors
from experiments.figures.layout import canvas, dress, entitle, lay_out, logarithmic
from experiments.figures.training import NAMES, stacked
from topologies.support.arrays import BoolArray, FloatArray, IntArray
from topologies.support.units import format_bytes, format_seconds
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import SCHEDULES
from workloads.training.program.breakdown import PARTS

if TYPE_CHECKING:
    from workloads.search.search import Search


def bars(rows: pd.DataFrame, title: str = "") -> Figure:
    """Draw one bar for each plan with the parts of its step, and a mark at its estimate."""
    telling = [name for name in FINER if name in rows and len(rows[name].unique()) > 1]
    labels = [
        ("yours: " if row.get("own") is True else "") + plan_label(row, telling)
        for row in rows.to_dict("records")
    ]
    parts = [{part: row[f"{part}_s"] for part in PARTS} for row in rows.to_dict("records")]
    notes = [
        f"MFU {mfu:.0%}, {size / 1e9:.0f} GB a rank"
        for mfu, size in zip(rows["mfu"], rows["memory_total_bytes"], strict=True)
    ]
    estimates = rows["estimate_s"].tolist()
    return stacked(labels, parts, notes, marks=estimates, mark="estimate", title=title)


FINER = (
    "microbatch", "cp", "ep", "etp", "vpp", "schedule", "stage_layers", "zero", "recompute",
    "sequence_parallel", "order",
)  # fmt: skip
"""Fields that distinguish plans of the same degrees, the most important first."""
OF_PIPELINES = ("vpp", "schedule", "stage_layers", "order")
"""Fields without a meaning in a plan without a pipeline."""
SAID_AS = {"stage_layers": "layers", "sequence_parallel": "sequence parallel"}
SHORT = 8
"""Largest ratio of the ends of a logarithmic axis for which more of its ticks are labelled."""
RADIUS, DIGIT, HIGH = 2.0, 5.0, 6.0
"""Radius of the circle around a numbered plan; width and height of a digit beside it [points]."""


def plan_label(plan: Any, telling: Sequence[str] = ()) -> str:
    """Label of a plan in short lines: its degrees, and the fields that distinguish it."""
    words = [f"tp {plan['tp']}, pp {plan['pp']}, dp {plan['dp']:,}"]
    rest = []
    for name in telling:
        whole_as_all = name == "etp" and plan["etp"] == plan["tp"]
        if whole_as_all or (plan["pp"] == 1 and name in OF_PIPELINES):
            continue
        text, value = SAID_AS.get(name, name.replace("_", " ")), plan[name]
        if isinstance(value, bool):
            rest.append(text if value else f"no {text}")
        else:
            rest.append(f"{text} {value or ('even' if name == 'stage_layers' else value)}")
    words += [", ".join(rest[first : first + 3]) for first in range(0, len(rest), 3)]
    return "\n".join(words)


def pareto(search: Search, top: int) -> Figure:
    """Draw estimated time of all plans against memory, coloured by the division of the model."""
    figure, axes = canvas(9.5, 5.4)
    memory, seconds = search.total_bytes / 1e9, search.estimate_s
    for name, hue, which in _by_kind(search.plans):
        axes.scatter(memory[which], seconds[which], s=9, alpha=0.5, lw=0, color=hue,
                     label=f"{name} ({which.sum():,})")  # fmt: skip
    edge = frontier(search.total_bytes, seconds)
    style: dict[str, Any] = {"where": "post", "color": "black", "lw": 1.2}
    axes.step(memory[edge], seconds[edge], label="fastest so far", **style)
    marked = [(plan.memory.total / 1e9, plan.iteration_s) for plan in search.finalists[:top]]
    if search.own_plan is not None:
        mine = search.own_plan.finalist
        axes.plot(mine.memory.total / 1e9, mine.iteration_s, "X", color="black", label="your plan")
    capacity = search.finalists[0].memory.capacity / 1e9
    axes.axvline(capacity, color="grey", ls="--", lw=1)
    axes.text(capacity, 1.0, " memory\n of a rank", transform=axes.get_xaxis_transform(), va="top",
              fontsize=8, color="grey")  # fmt: skip
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    logarithmic(axes, "y", subs=(1, 2, 3, 4, 5, 7) if high < SHORT * low else (1, 2, 5))
    dress(axes, "memory of the rank that needs most [GB]", "time of one iteration [s]")
    best = search.finalists[0]
    axes.set_title(
        f"{search.model.name} on {search.cluster.name}: the fastest plan takes "
        f"{format_seconds(best.iteration_s)} and {format_bytes(best.memory.total)} a rank",
        loc="left",
        fontsize=10,
    )
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    _numerals(figure, axes, marked)
    return figure


def _numerals(figure: Figure, axes: Axes, places: Sequence[tuple[float, float]]) -> None:
    """Circle points and number them, with each numeral clear of circles and other numerals."""
    lay_out(figure)
    dots = axes.transData.transform(places) * 72 / figure.dpi
    taken = [(dot - RADIUS, dot + RADIUS) for dot in dots]
    for number, (at, dot) in enumerate(zip(places, dots, strict=True), start=1):
        axes.plot(*at, "o", ms=2 * RADIUS, mfc="none", mec="black")
        size = np.array([DIGIT * len(str(number)), HIGH])
        for offset in _offsets(*size):
            low, high = dot + offset, dot + offset + size
            if not any((low < top).all() and (high > foot).all() for foot, top in taken):
                taken.append((low, high))
                axes.annotate(str(number), at, offset, textcoords="offset points", fontsize=8)
                break


def _offsets(wide: float, high: float) -> tuple[tuple[float, float], ...]:
    """Offsets of a numeral from its point [points]: to the right, left, above, below."""
    away = RADIUS + 2
    left = -wide / 2
    return (away, -high / 2), (-away - wide, -high / 2), (left, away), (left, -away - high)


def worth(search: Search, top: int) -> Figure:
    """Draw time of the simulated plans against cost or energy, coloured as in :func:`pareto`."""
    unit, scale = {"energy": ("energy of one iteration [kWh]", 3.6e6)}.get(
        search.objective, ("price of one iteration [USD]", 1.0)
    )
    figure, axes = canvas(8.0, 5.0)
    seconds = np.array([finalist.iteration_s for finalist in search.finalists])
    values = np.array([finalist.worth(search.objective) / scale for finalist in search.finalists])
    for name, hue, which in _by_kind([finalist.plan for finalist in search.finalists]):
        axes.plot(seconds[which], values[which], "o", color=hue, label=name)
    order = np.lexsort((values, seconds))
    edge = order[np.minimum.accumulate(values[order]) == values[order]]
    axes.step(seconds[edge], values[edge], where="post", color="black", lw=1.2,
              label="no other is faster for as little")  # fmt: skip
    dress(axes, "time of one iteration [s]", unit)
    cheap, quick = values.argmin(), seconds.argmin()
    less, longer = 1 - values[cheap] / values[quick], seconds[cheap] / seconds[quick] - 1
    finding = f"the plan of least {search.objective} takes "
    finding += f"{less:.1%} less than the fastest, and {longer:.1%} longer"
    if values[cheap] == values[quick]:
        finding = f"the fastest plan is also the one of least {search.objective}"
    axes.set_title(
        f"{search.model.name} on {search.cluster.name}: {finding}", loc="left", fontsize=10
    )
    axes.legend(frameon=False, fontsize=8)
    _numerals(figure, axes, list(zip(seconds.tolist(), values.tolist(), strict=True))[:top])
    return figure


UNPIPED = ("no pipeline", "no pipeline, ZeRO 2 or 3")
HUES = ("#4477AA", "#66CCEE", "#AA3377", "#EE6677", "#CCBB44", "#228833", "#BBBBBB", "#882255")


def kinds() -> tuple[str, ...]:
    """Names of the divisions of a model in the legend: without a pipeline, and each schedule."""
    titles = [
        schedule.titled(chunks) for schedule in SCHEDULES for chunks in schedule.chunks_searched
    ]
    return (*UNPIPED, *dict.fromkeys(titles))


def kind(plan: ParallelPlan) -> str:
    """Return the division of a model by a plan, one of :func:`kinds`.

    >>> kind(ParallelPlan(pp=2, vpp=2))
    'interleaved'
    """
    if plan.pp == 1:
        return UNPIPED[plan.zero >= 2]
    return plan.pipeline.titled(plan.vpp)


def _by_kind(plans: Sequence[ParallelPlan]) -> Iterator[tuple[str, str, BoolArray]]:
    """Yield each division that plans have, its colour, and which plans are of it."""
    each = np.array([kind(plan) for plan in plans])
    for number, name in enumerate(kinds()):
        if (each == name).any():
            yield name, HUES[number % len(HUES)], each == name


def frontier(size: IntArray, seconds: FloatArray) -> IntArray:
    """Rows that are faster than every row of the same or smaller size, in order of size.

    >>> frontier(np.array([3, 1, 2]), np.array([1.0, 2.0, 2.5])).tolist()
    [1, 0]
    """
    order = np.lexsort((seconds, size))
    before = np.concatenate([[np.inf], np.minimum.accumulate(seconds[order])[:-1]])
    return np.asarray(order[seconds[order] < before])


EXCHANGED = {
    "none": "gradients all at once, after the backward pass",
    "dp": "gradients in buckets, beside the backward pass",
    "all": "gradients in buckets, beside the backward pass",
}
"""Meaning of each ``overlap`` for the exchange of gradients between replicas."""


def scaling(frame: pd.DataFrame, title: str) -> Figure:
    """Draw the parts of the step over chips by overlap, and a chip's throughput below."""
    kinds = list(frame.groupby("overlap", sort=False))
    sides = {"height_ratios": (1.8, 1), "sharex": "col", "sharey": "row", "squeeze": False}
    figure, grid = canvas(6.2 * len(kinds) + 0.8, 6.8, 2, len(kinds), **sides)
    for column, (kind, rows) in enumerate(kinds):
        cases = list(rows.groupby("jitter", sort=False))
        jitter, last = cases[-1]
        _parts_of_step(grid[0, column], last)
        for number, (name, case) in enumerate(cases):
            _throughput(grid[1, column], case, f"jitter {name}", above=number == 0)
        uneven = "" if jitter == "0" else f", jitter {jitter}"
        grid[0, column].set_title(f"overlap {kind}: {EXCHANGED[str(kind)]}{uneven}", fontsize=10)
        if len(cases) > 1:
            grid[1, column].legend(frameon=False, fontsize=9, loc="lower left")
    grid[0, 0].set_ylabel("time of one iteration [s],\nmean over ranks")
    grid[1, 0].set_ylabel("tokens/s per chip")
    highest = float(frame["tokens_per_s_per_chip"].max())
    grid[1, 0].set_ylim(0, 1.25 * highest)
    grid[0, 0].set_ylim(0, 1.1 * float(frame["iteration_s"].max()))
    entitle(figure, title)
    drawn = dict(zip(*grid[0, 0].get_legend_handles_labels()[::-1], strict=True))
    figure.legend(
        drawn.values(), drawn.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=9
    )
    return figure


def _parts_of_step(axes: Axes, rows: pd.DataFrame) -> None:
    shade, at, base = colors(PARTS), np.arange(len(rows)), np.zeros(len(rows))
    for part in PARTS:
        height = rows[f"{part}_s"].to_numpy()
        if height.any():
            axes.bar(at, height, bottom=base, color=shade[part], label=NAMES[part], width=0.72)
            base += height
    for place, seconds in enumerate(rows["iteration_s"]):
        axes.text(place, seconds, f"{seconds:.3g} s", ha="center", va="bottom", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _throughput(axes: Axes, rows: pd.DataFrame, name: str, *, above: bool) -> None:
    rates = rows["tokens_per_s_per_chip"].tolist()
    axes.plot(
        np.arange(len(rows)), rates, "o-", color="#222255" if above else "#aa3377", label=name
    )
    for place, (rate, share) in enumerate(zip(rates, rows["efficiency"], strict=True)):
        axes.annotate(
            f"{share:.1%}",
            (place, rate),
            (0, 7 if above else -16),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    sizes = zip(rows["chips"].tolist(), rows["dp"].tolist(), strict=True)
    axes.set_xticks(np.arange(len(rows)), [f"{chips:,}\n{dp:,}" for chips, dp in sizes])
    across = "chips (above), replicas of the model (below); percentages: relative to the smallest"
    dress(axes, across, axes.get_ylabel(), grid="y")
