"""What a search for plans is told as: a JSON document, tables for people, a run directory."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from topologies.quantities import format_bytes, format_seconds
from workloads.search import Finalist, Search
from workloads.training.breakdown import PARTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIELDS = (
    "tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "zero", "sequence_parallel", "schedule",
    "recompute", "order", "precision", "overlap", "attention", "ranks_per_chip", "global_batch",
    "seq",
)  # fmt: skip
"""Fields of a plan that a row tells."""

SHOWN_PARTS = {
    "compute": "compute",
    "exposed_tp": "exposed tp",
    "exposed_pp": "exposed pp",
    "exposed_dp": "exposed dp",
    "exposed_cp": "exposed cp",
    "exposed_ep": "exposed ep",
    "bubble": "bubble",
    "optimizer": "optimizer",
    "other": "other",
}
"""Parts of the breakdown that a table shows where they are not nothing, and their heads."""


def document(found: Search, top: int, model: str = "") -> dict[str, Any]:
    """All results under the keys of the command line; ``model`` as the user wrote it."""
    best = found.finalists[0].plan
    return {
        "model": found.model.name,
        "cluster": found.cluster.name,
        "chips": found.cluster.chips,
        "ranks": best.ranks,
        "parameters": found.model.parameters,
        "global_batch": best.global_batch,
        "seq": best.seq,
        "candidates": found.candidates,
        "fitting": found.fitting,
        "estimated": found.fitting,
        "simulated": len(found.finalists),
        "rows": [row(one, place) for place, one in enumerate(found.finalists[:top], start=1)],
        "agreement": {
            "plans": found.agreement.plans,
            "kendall_tau": found.agreement.kendall_tau,
            "median_abs_error": found.agreement.median_abs_error,
            "worst_abs_error": found.agreement.worst_abs_error,
        },
        "next_estimate_s": found.next_estimate_s,
        "train": train_command(found, model),
        "build_s": found.estimated_in_s,
        "simulate_s": found.simulated_in_s,
    }


def row(one: Finalist, place: int) -> dict[str, Any]:
    """One plan: its place, its fields, both times, memory and breakdown."""
    plan = one.plan
    told = {name: getattr(plan, name) for name in FIELDS}
    return {
        "rank": place,
        **told,
        "order": "-".join(plan.order),
        "microbatches": plan.microbatches,
        "estimate_rank": one.estimate_rank,
        "estimate_s": one.estimate_s,
        "iteration_s": one.iteration_s,
        "estimate_error": one.estimate_error,
        "tokens_per_s": one.tokens_per_s,
        "mfu": one.mfu,
        "hfu": one.hfu,
        "memory_bytes": {
            **one.memory.parts(),
            "total": one.memory.total,
            "capacity": one.memory.capacity,
        },
        "breakdown_s": dict(one.breakdown_s),
    }


def frame(found: Search, top: int) -> pd.DataFrame:
    """The ranked plans as a table, breakdown and memory in columns of their own."""
    rows = []
    for place, one in enumerate(found.finalists[:top], start=1):
        told = row(one, place)
        memory, parts = told.pop("memory_bytes"), told.pop("breakdown_s")
        told |= {f"memory_{name}_bytes": size for name, size in memory.items()}
        rows.append(told | {f"{part}_s": seconds for part, seconds in parts.items()})
    return pd.DataFrame(rows)


BRIEF = (
    "tp", "pp", "dp", "microbatch", "zero", "sequence_parallel", "schedule", "recompute", "order",
    "overlap", "global_batch", "seq", "estimate_s", "iteration_s", "mfu", "memory_total_bytes",
    *(f"{part}_s" for part in PARTS),
)  # fmt: skip
"""Columns that say most about a plan."""


def brief(found: Search, top: int) -> pd.DataFrame:
    """The columns of :func:`frame` that say most, after ``model`` and ``cluster``."""
    rows = frame(found, top)[[*BRIEF]]
    rows.insert(0, "cluster", found.cluster.name)
    rows.insert(0, "model", found.model.name)
    return rows


def headline(found: Search) -> str:
    """What was asked, in one line."""
    plan = found.finalists[0].plan
    return (
        f"{found.model.name} ({found.model.parameters / 1e9:,.1f} G parameters) on "
        f"{found.cluster.name}, {found.cluster.chips:,} chips, global batch "
        f"{plan.global_batch:,} × {plan.seq:,} tokens, overlap {plan.overlap}"
    )


def table(found: Search, top: int) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the ranked plans; what is the same in all of them is left out."""
    shown = found.finalists[:top]
    varying = [name for name in FIELDS if len({getattr(one.plan, name) for one in shown}) > 1]
    columns = [*ALWAYS, *(name for name in varying if name not in ALWAYS)]
    parts = [part for part in SHOWN_PARTS if any(one.breakdown_s[part] for one in shown)]
    heads = ["", *(HEADS.get(name, name) for name in columns), "estimate", "simulated", "error"]
    heads += ["MFU", "memory", *(SHOWN_PARTS[part] for part in parts)]
    return heads, [
        [
            str(place),
            *(_field(one, name) for name in columns),
            format_seconds(one.estimate_s),
            format_seconds(one.iteration_s),
            f"{one.estimate_error:+.1%}",
            f"{one.mfu:.1%}",
            format_bytes(one.memory.total),
            *(f"{one.breakdown_s[part] / one.iteration_s:.1%}" for part in parts),
        ]
        for place, one in enumerate(shown, start=1)
    ]


ALWAYS = ("tp", "pp", "dp", "microbatch")
HEADS = {"microbatch": "mb", "sequence_parallel": "sp"}


def _field(one: Finalist, name: str) -> str:
    value = getattr(one.plan, name)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-".join(value) if isinstance(value, tuple) else str(value)


def shared(found: Search, top: int) -> str:
    """What the plans of the table have in common, in one line."""
    shown = found.finalists[:top]
    same = [
        f"{name.replace('_', ' ')} {_field(shown[0], name)}"
        for name in FIELDS
        if name not in (*ALWAYS, "global_batch", "seq", "overlap", "ep", "cp", "vpp")
        and len({getattr(one.plan, name) for one in shown}) == 1
    ]
    return f"All of them: {', '.join(same)}. Shares are of the simulated step, mean over ranks."


def remarks(found: Search) -> list[str]:
    """How many plans there were, and how far the estimates can be trusted."""
    told, agree = [], found.agreement
    told.append(
        f"{found.candidates:,} plans divide model, batch and cluster, {found.fitting:,} of them "
        f"fit in memory: all estimated in {found.estimated_in_s:.1f} s, the best "
        f"{len(found.finalists)} simulated in {found.simulated_in_s:.1f} s."
    )
    errors = f"median error {agree.median_abs_error:.2%}, worst {agree.worst_abs_error:.2%}"
    if agree.kendall_tau is not None:
        errors = f"rank correlation (Kendall's tau) {agree.kendall_tau:.2f}, {errors}"
    told.append(f"Estimates beside simulations of {agree.plans} plans: {errors}.")
    if found.next_estimate_s is not None:
        best = found.finalists[0]
        slower = found.next_estimate_s / best.iteration_s - 1
        told.append(
            f"The best plan that was not simulated is estimated at "
            f"{format_seconds(found.next_estimate_s)}, {slower:.1%} over the first."
        )
    return told


def train_command(found: Search, model: str = "") -> str:
    """The command that runs the first plan by itself; ``model`` as the user wrote it."""
    plan, named = found.finalists[0].plan, model or found.model.name
    words = ["cluster-sim", "train", "--model", named, "--cluster", found.cluster.name]
    for name in FIELDS:
        value = getattr(plan, name)
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        elif name not in ("cp", "ep", "vpp") or value > 1:
            words += [option, _field(found.finalists[0], name)]
    return shlex.join(words)


def figure(rows: pd.DataFrame, title: str = "") -> Figure:
    """One bar a plan, made of its parts, with a mark where the estimate stands.

    Parameters
    ----------
    rows : DataFrame
        From :func:`frame`.
    title : str
    """
    from experiments.training_figures import stacked

    finer = ("microbatch", "recompute", "zero", "sequence_parallel", "schedule", "order")
    telling = [name for name in finer if len(rows[name].unique()) > 1]
    labels = [plan_label(one, telling) for one in rows.to_dict("records")]
    parts = [{part: one[f"{part}_s"] for part in PARTS} for one in rows.to_dict("records")]
    notes = [
        f"MFU {mfu:.0%}, {size / 1e9:.0f} GB a rank"
        for mfu, size in zip(rows["mfu"], rows["memory_total_bytes"], strict=True)
    ]
    drawn = stacked(labels, parts, notes)
    axes = drawn.axes[0]
    marks = axes.plot(rows["estimate_s"], range(len(rows)), "|k", ms=22, mew=1.5, zorder=3)
    axes.legend(
        marks,
        ["estimate"],
        loc="upper right",
        bbox_to_anchor=(1.0, -0.04),
        frameon=False,
        markerscale=0.4,
    )
    if title:
        axes.set_title(title, loc="left", fontsize=10)
    return drawn


def plan_label(one: Any, telling: Sequence[str] = ()) -> str:
    """A plan in short lines: its degrees, and those of its fields that tell it from others.

    Examples
    --------
    >>> plan_label({"tp": 4, "pp": 2, "dp": 8, "microbatch": 1, "zero": 0}, ["microbatch", "zero"])
    'tp 4, pp 2, dp 8\\nmicrobatch 1, zero 0'
    """
    words = [f"tp {one['tp']}, pp {one['pp']}, dp {one['dp']:,}"]
    rest = []
    for name in telling:
        text, value = name.replace("_", " "), one[name]
        rest.append(
            ("" if value else "no ") + text if isinstance(value, bool) else f"{text} {value}"
        )
    for first in range(0, len(rest), 2):
        words.append(", ".join(rest[first : first + 2]))
    return "\n".join(words)
