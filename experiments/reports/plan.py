"""Output of a search for plans: a JSON document, the command that repeats it, a run directory."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.reports.idle import idle_entry, option_name
from experiments.reports.plan_rows import (
    DEFAULTS,
    estimates,
    fields_of,
    frame,
    own_row,
    plan_interval,
    ranked,
)
from experiments.reports.plan_text import headline, remarks, sifted
from experiments.reports.remarks import check_remarks
from experiments.reports.training import stated
from topologies.units import format_seconds
from workloads.search import Search
from workloads.training.plan.plan_file import plan_yaml

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run


def document(search: Search, top: int, model: str = "") -> dict[str, Any]:
    """Return the JSON document of a search; ``model`` is the model as the user wrote it."""
    first, mine = search.finalists[0], own_row(search)
    best = first.plan
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
        "estimated": search.estimated,
        "bounded": len(search.plans) - search.estimated,
        "simulated": len(search.finalists),
        **idle_entry(search.without_effect),
        "rows": ranked(search, top),
        **({"own": mine} if mine else {}),
        **({"remarks": sentences} if (sentences := check_remarks(first, search.cluster)) else {}),
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


def first_step(search: Search, model: str) -> dict[str, Any]:
    """Return the first plan of a search under the keys of a training step's document."""
    whole, first = document(search, 1, model), search.finalists[0]
    step = {**whole.pop("rows")[0], **whole}
    rates = {"tokens_per_s": first.tokens_per_s}
    return {
        **step,
        "tokens_per_s_per_chip": first.tokens_per_s / search.cluster.chips,
        "interval": _first_interval(search, **rates),
        "plan": stated(first.plan),
    }


def _first_interval(search: Search, **rates: float) -> dict[str, Any]:
    """Interval of the time of the best plan, and of the numbers proportional to it."""
    first = search.finalists[0]
    cost = first.cost
    return plan_interval(search, first).document(
        rates={**rates, "mfu": first.mfu},
        cost_usd=cost.cost_usd,
        usd_per_million_tokens=cost.usd_per_million_tokens,
        energy_joules=cost.energy_joules,
    )


SPELT = (
    "tp", "pp", "dp", "microbatch", "zero", "schedule", "recompute", "order", "precision",
    "overlap", "attention", "sequence_parallel", "ranks_per_chip", "global_batch", "seq",
    "framework",
)  # fmt: skip
"""Fields that the command states even if they have the default."""


def train_command(search: Search, model: str = "") -> str:
    """Return the command that simulates the best plan; ``model`` is as the user wrote it."""
    plan, named = search.finalists[0].plan, model or search.model.name
    words = ["cluster-sim", "train", "--model", named, "--cluster", search.cluster.name]
    for name, value in fields_of(plan).items():
        option = option_name(name)
        if name not in SPELT and getattr(plan, name) == getattr(DEFAULTS, name):
            continue
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [option, str(value)]
    return shlex.join(words)


def write(run: Run, search: Search, top: int, results: Mapping[str, Any]) -> None:
    """Add figures, tables, the best plan and the results to a run directory."""
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
    run.file("estimates.csv", listed, title="Every plan that fits, with its estimate", table=True)
    first = search.finalists[0].plan
    run.file("plan.yaml", plan_yaml(first).encode(), note="The first plan, for train --plan.")
    run.json("results", results, title="Results")


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
