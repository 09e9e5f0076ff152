"""Output of a search for plans: a JSON document, tables for people, and a run directory."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from experiments.reports.formatting import format_interval, ranges
from topologies.units import format_bytes, format_seconds
from workloads.confidence import Interval, Prediction, margin, training_features
from workloads.confidence.answers import training_interval
from workloads.search import Finalist, Search
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.plan_file import plan_yaml
from workloads.training.program.breakdown import PARTS

if TYPE_CHECKING:
    import pandas as pd

    from experiments.reports.run_directory import Run

FIELDS = (
    "tp", "pp", "dp", "cp", "ep", "etp", "vpp", "stage_layers", "microbatch", "zero",
    "sequence_parallel", "schedule", "recompute", "order", "precision", "overlap", "bucket_bytes",
    "fp8_recipe", "attention", "cp_exchange", "routing_skew", "capacity_factor", "routed_nodes",
    "fp8_exchange", "reshard", "lora_rank", "lora_on", "train_only", "runtime", "ranks_per_chip",
    "global_batch", "seq",
)  # fmt: skip
"""Fields of a plan that a row contains."""

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
"""Parts of the breakdown that a table shows if any is above zero, with their headings."""


def document(search: Search, top: int, model: str = "") -> dict[str, Any]:
    """Return all results under the keys of the command line; ``model`` is the user's text."""
    best = search.finalists[0].plan
    return {
        "model": search.model.name,
        "cluster": search.cluster.name,
        "chips": search.cluster.chips,
        "ranks": best.ranks,
        "parameters": search.model.parameters,
        "global_batch": best.global_batch,
        "seq": best.seq,
        "candidates": search.candidates,
        "pruned": dict(search.pruned),
        "oversized": search.oversized,
        "fitting": len(search.plans),
        "estimated": len(search.plans),
        "simulated": len(search.finalists),
        "rows": ranked(search, top),
        "agreement": {
            "plans": search.agreement.plans,
            "kendall_tau": search.agreement.kendall_tau,
            "median_abs_error": search.agreement.median_abs_error,
            "worst_abs_error": search.agreement.worst_abs_error,
        },
        "interval": _first_interval(search),
        "objective": search.objective,
        "cost_usd": search.finalists[0].cost.cost_usd,
        "energy_joules": search.finalists[0].cost.energy_joules,
        "usd_per_million_tokens": search.finalists[0].cost.usd_per_million_tokens,
        "price_basis": search.finalists[0].cost.price_basis,
        "power_basis": search.finalists[0].cost.power_basis,
        "next_estimate_s": search.next_estimate_s,
        "overlapped_s": search.overlapped_s,
        "train": train_command(search, model),
        "build_s": search.estimated_in_s,
        "simulate_s": search.simulated_in_s,
    }


def _first_interval(search: Search) -> dict[str, Any]:
    """Interval of the time of the best plan, and of the numbers proportional to it."""
    first = search.finalists[0]
    cost = first.cost
    return plan_interval(search, first).document(
        mfu=first.mfu,
        cost_usd=cost.cost_usd,
        usd_per_million_tokens=cost.usd_per_million_tokens,
        energy_joules=cost.energy_joules,
    )


def plan_interval(search: Search, finalist: Finalist) -> Interval:
    """Interval of the time of one plan."""
    return training_interval(search.model, finalist.plan, search.cluster.chip, finalist.iteration_s)


def ranked(search: Search, top: int) -> list[dict[str, Any]]:
    """Return the best plans as rows, each with its interval and whether it ties with the first.

    Plans of one search share the errors of machine, model and kernels, so their ratio is more
    certain than either time. A plan is ``tied`` if its ratio to the first plan is within the error
    of a ratio.
    """
    best = search.finalists[0]

    def features(finalist: Finalist) -> Prediction:
        return training_features(search.model, finalist.plan, search.cluster.chip)

    rows = []
    for place, finalist in enumerate(search.finalists[:top], start=1):
        ends = plan_interval(search, finalist)
        apart = math.log(finalist.iteration_s / best.iteration_s)
        tied = apart <= margin(features(best), features(finalist))
        rows.append({**row(finalist, place), "low": ends.low, "high": ends.high, "tied": tied})
    return rows


def ties(search: Search) -> str:
    """Sentence about the interval of the first plan, and the plans that tie with it."""
    rows = ranked(search, len(search.finalists))
    tied = [entry["rank"] for entry in rows[1:] if entry["tied"]]
    ends = format_interval(plan_interval(search, search.finalists[0]))
    first = f"The first takes {format_seconds(rows[0]['iteration_s'])} {ends}"
    if not tied:
        return (
            f"{first}; every other plan that was simulated is slower beyond the error of a ratio."
        )
    return f"{first}; within the error of a ratio of two plans it ties with {ranges(tied)}."


def row(finalist: Finalist, place: int) -> dict[str, Any]:
    """Return one plan as a row: its place, its fields, both times, memory and breakdown."""
    plan = finalist.plan
    return {
        "rank": place,
        **fields_of(plan),
        "microbatches": plan.microbatches,
        "estimate_rank": finalist.estimate_rank,
        "estimate_s": finalist.estimate_s,
        "iteration_s": finalist.iteration_s,
        "estimate_error": finalist.estimate_error,
        "tokens_per_s": finalist.tokens_per_s,
        "mfu": finalist.mfu,
        "hfu": finalist.hfu,
        "cost_usd": finalist.cost.cost_usd,
        "energy_joules": finalist.cost.energy_joules,
        "usd_per_million_tokens": finalist.cost.usd_per_million_tokens,
        "memory_bytes": {
            **finalist.memory.parts(),
            "total": finalist.memory.total,
            "capacity": finalist.memory.capacity,
        },
        "breakdown_s": dict(finalist.breakdown_s),
    }


def fields_of(plan: ParallelPlan) -> dict[str, Any]:
    """Return the fields of a plan that a row contains, each as a number or a word."""
    values = {name: getattr(plan, name) for name in FIELDS}
    joined = {name: "-".join(map(str, values[name])) for name in ("order", "stage_layers")}
    return values | joined | {"etp": plan.expert_tp}


def estimates(search: Search) -> pd.DataFrame:
    """Return a table of all estimated plans, the fastest first: fields, time and memory."""
    import pandas as pd

    rows = pd.DataFrame([fields_of(plan) for plan in search.plans])
    rows["estimate_s"], rows["memory_total_bytes"] = search.estimate_s, search.total_bytes
    return rows.sort_values(["estimate_s", "memory_total_bytes"], kind="stable")


def frame(search: Search, top: int) -> pd.DataFrame:
    """Return the ranked plans as a table, with breakdown and memory in columns of their own."""
    import pandas as pd

    rows = []
    for row in ranked(search, top):
        memory, parts = row.pop("memory_bytes"), row.pop("breakdown_s")
        row |= {f"memory_{name}_bytes": size for name, size in memory.items()}
        rows.append(row | {f"{part}_s": seconds for part, seconds in parts.items()})
    return pd.DataFrame(rows)


BRIEF = (
    "tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "zero", "sequence_parallel", "schedule",
    "recompute", "order", "overlap", "global_batch", "seq", "estimate_s", "iteration_s",
    "low_s", "high_s", "mfu", "memory_total_bytes", *(f"{part}_s" for part in PARTS),
)  # fmt: skip
"""Most important columns of :func:`frame`."""


def brief(search: Search, top: int) -> pd.DataFrame:
    """Return the most important columns of :func:`frame`, after ``model`` and ``cluster``."""
    rows = frame(search, top).rename(columns={"low": "low_s", "high": "high_s"})[[*BRIEF]]
    rows.insert(0, "cluster", search.cluster.name)
    rows.insert(0, "model", search.model.name)
    return rows


def headline(search: Search) -> str:
    """Return the question of a search in one line: model, cluster and batch."""
    plan = search.finalists[0].plan
    overlaps = {finalist.plan.overlap for finalist in search.finalists}
    overlap = f", overlap {plan.overlap}" if len(overlaps) == 1 else ""
    return (
        f"{search.model.name} ({search.model.parameters / 1e9:,.1f} G parameters) on "
        f"{search.cluster.name}, {search.cluster.chips:,} chips, global batch "
        f"{plan.global_batch:,} × {plan.seq:,} tokens{overlap}"
    )


def table(search: Search, top: int) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of the ranked plans, without fields that are equal in all."""
    shown = search.finalists[:top]
    silent = () if search.model.experts else ("ep", "etp")
    varying = [
        name
        for name in FIELDS
        if name not in silent and len({_field(finalist, name) for finalist in shown}) > 1
    ]
    columns = [*ALWAYS, *(name for name in varying if name not in ALWAYS)]
    parts = [part for part in SHOWN_PARTS if any(finalist.breakdown_s[part] for finalist in shown)]
    heads = ["", *(HEADS.get(name, name) for name in columns), "estimate", "simulated", "error"]
    sought = WORTH.get(search.objective, {})
    heads += [*sought, "MFU", "memory", *(SHOWN_PARTS[part] for part in parts)]
    return heads, [
        [
            str(place),
            *(_field(finalist, name) for name in columns),
            format_seconds(finalist.estimate_s),
            format_seconds(finalist.iteration_s),
            f"{finalist.estimate_error:+.1%}",
            *(tell(finalist) for tell in sought.values()),
            f"{finalist.mfu:.1%}",
            format_bytes(finalist.memory.total),
            *(f"{finalist.breakdown_s[part] / finalist.iteration_s:.1%}" for part in parts),
        ]
        for place, finalist in enumerate(shown, start=1)
    ]


WORTH: Mapping[str, Mapping[str, Callable[[Finalist], str]]] = {
    "cost": {"USD a step": lambda finalist: _number(finalist.cost.cost_usd, 1.0)},
    "energy": {"kWh a step": lambda finalist: _number(finalist.cost.energy_joules, 3.6e6)},
}
"""Column of the quantity by which plans are ranked, where that is not the time."""


def _number(value: float | None, unit: float) -> str:
    return "unknown" if value is None else f"{value / unit:,.4g}"


ALWAYS = ("tp", "pp", "dp", "microbatch")
HEADS = {"microbatch": "mb", "sequence_parallel": "sp", "stage_layers": "layers"}
DEFAULTS = ParallelPlan()


def _field(finalist: Finalist, name: str) -> str:
    value = fields_of(finalist.plan)[name]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or ("even" if name == "stage_layers" else "all")


SAID = ("zero", "sequence_parallel", "schedule", "recompute", "precision", "attention")
"""Fields that are shown even if they have the default."""


def shared(search: Search, top: int) -> str:
    """Return the fields that are equal in all plans of the table, in one line."""
    shown = search.finalists[:top]
    same = [
        f"{name.replace('_', ' ')} {_field(shown[0], name)}"
        for name in FIELDS
        if name not in (*ALWAYS, "global_batch", "seq", "overlap")
        and len({_field(finalist, name) for finalist in shown}) == 1
        and (name in SAID or getattr(shown[0].plan, name) != getattr(DEFAULTS, name))
    ]
    return f"All of them: {', '.join(same)}. Shares are of the simulated step, mean over ranks."


def sifted(search: Search) -> tuple[list[str], list[list[str]]]:
    """Count the plans by the stage at which they were left out, as headings and cells."""
    rows = [("plans that divide model, batch and cluster", search.candidates)]
    rows += [(f"  left out: {reason}", -count) for reason, count in search.pruned.items()]
    rows += [("  too large for a rank's memory", -search.oversized)] * bool(search.oversized)
    rows += [("estimated", len(search.plans)), ("simulated in full", len(search.finalists))]
    return ["what became of all plans", "plans"], [[text, f"{count:,}"] for text, count in rows]


def remarks(search: Search) -> list[str]:
    """Return remarks on the time of the search and on the error of its estimates."""
    agree = search.agreement
    sentences = [
        f"Weighed and estimated in {search.estimated_in_s:.1f} s, the best {len(search.finalists)} "
        f"simulated in {search.simulated_in_s:.1f} s."
    ]
    errors = f"median error {agree.median_abs_error:.2%}, worst {agree.worst_abs_error:.2%}"
    if agree.kendall_tau is not None:
        errors = f"rank correlation (Kendall's tau) {agree.kendall_tau:.2f}, {errors}"
    sentences.append(f"Estimates beside simulations of {agree.plans} plans: {errors}.")
    sentences.append(ties(search))
    if search.next_estimate_s is not None:
        best = search.finalists[0]
        slower = search.next_estimate_s / best.iteration_s - 1
        sentences.append(
            f"The best plan that was not simulated is estimated at "
            f"{format_seconds(search.next_estimate_s)}, {slower:.1%} over the first."
        )
    if search.overlapped_s is not None:
        first, least = search.finalists[0], search.overlapped_s
        sentences.append(
            f"All overlap what frameworks overlap unasked (--overlap {first.plan.overlap}). With "
            f"--overlap all the first takes {format_seconds(least)}, "
            f"{1 - least / first.iteration_s:.1%} less; --each overlap finds the best of each."
        )
    return sentences


OPTIONS = {"bucket_bytes": "bucket"}
"""Options whose names differ from their fields."""
SPELT = (
    "tp", "pp", "dp", "microbatch", "zero", "schedule", "recompute", "order", "precision",
    "overlap", "attention", "sequence_parallel", "ranks_per_chip", "global_batch", "seq",
)  # fmt: skip
"""Fields that the command states even if they have the default."""


def train_command(search: Search, model: str = "") -> str:
    """Return the command that simulates the best plan; ``model`` is the user's text."""
    plan, named = search.finalists[0].plan, model or search.model.name
    words = ["cluster-sim", "train", "--model", named, "--cluster", search.cluster.name]
    for name, value in fields_of(plan).items():
        option = f"--{OPTIONS.get(name, name).replace('_', '-')}"
        if name not in SPELT and getattr(plan, name) == getattr(DEFAULTS, name):
            continue
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [option, str(value)]
    return shlex.join(words)


def write(run: Run, search: Search, top: int, model: str) -> None:
    """Add figures, tables and the best plan to a run directory."""
    import pandas as pd

    from experiments.figures.plan import bars, pareto, worth

    rows, every = frame(search, top), estimates(search)
    run.figure("plans", bars(rows, _titled(search, top)), title="The best plans")
    run.figure("pareto", pareto(search, top), title="Memory and time of all plans", note=PARETO)
    if search.objective != "time":
        title = f"Time and {search.objective} of the simulated plans"
        run.figure(search.objective, worth(search, top), title=title)
    run.table("metrics", rows, title="Ranked plans", note=" ".join(remarks(search)))
    heads, cells = sifted(search)
    run.table("sifted", pd.DataFrame(cells, columns=heads), title="What became of all plans")
    listed = every.to_csv(index=False).encode()
    run.file("estimates.csv", listed, title="Every plan that was estimated", table=True)
    first = search.finalists[0].plan
    run.file("plan.yaml", plan_yaml(first).encode(), note="The first plan, for train --plan.")
    run.json("results", document(search, top, model), title="Results")


def _titled(search: Search, top: int) -> str:
    """Title with the fastest plan, the slowest of the shown ones, and the question."""
    best, last = search.finalists[0], search.finalists[:top][-1]
    slower = last.iteration_s / best.iteration_s - 1
    return (
        f"tp {best.plan.tp}, pp {best.plan.pp}, dp {best.plan.dp:,} takes "
        f"{format_seconds(best.iteration_s)}; the last of {min(top, len(search.finalists))} plans "
        f"{slower:.0%} more\n{headline(search)}"
    )


PARETO = (
    "A dot is a plan that fits, by its estimate. On the line no other plan is faster with as "
    "little memory. Numbers are the simulated plans of the table."
)
