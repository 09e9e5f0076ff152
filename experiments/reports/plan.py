"""Output of a search for plans: a JSON document, the command that repeats it, a run directory."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from experiments.reports.formatting import (
    format_interval,
    heading,
    idle_entry,
    idle_sentences,
    option_name,
    ranges,
    values_of,
)
from experiments.reports.plan_rows import (
    estimates,
    frame,
    own_row,
    plan_interval,
    ranked,
)
from experiments.reports.training import interval_document, packed, stated
from topologies.support.units import format_memory, format_seconds
from workloads.remarks import assumed_sentences, check_remarks
from workloads.search.search import Finalist, Search
from workloads.training.memory.memory import FREE
from workloads.training.plan.other_tools import plan_yaml
from workloads.training.plan.plan import PLAN_FIELDS
from workloads.training.plan.stages import DEFAULTS
from workloads.training.program.breakdown import PARTS
from workloads.training.usual_plan import fields_of, named

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run


def document(search: Search, top: int, inputs: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON document of a search; ``inputs`` as of :func:`train_command`."""
    first, mine = search.finalists[0], own_row(search)
    best = first.plan
    return {
        "model": search.model.name,
        "cluster": search.cluster.name,
        "chips": search.chips,
        "ranks": best.ranks,
        "parameters": search.model.parameters,
        **values_of(best, "global_batch", "seq"),
        **values_of(search, "candidates", "pruned", "oversized"),
        "fitting": len(search.plans),
        "estimated": search.estimated,
        "bounded": len(search.plans) - search.estimated,
        "simulated": len(search.finalists),
        **idle_entry(search.without_effect),
        "rows": ranked(search, top),
        **({"own": mine} if mine else {}),
        **({"remarks": sentences} if (sentences := check_remarks(first, search.cluster)) else {}),
        "agreement": asdict(search.agreement),
        "interval": interval_document(plan_interval(search, first), first.cost, mfu=first.mfu),
        "objective": search.objective,
        **first.cost.document(),
        **values_of(search, "next_estimate_s", "overlapped_s"),
        "train": train_command(search, inputs),
        "build_s": search.estimated_in_s,
        "simulate_s": search.simulated_in_s,
    }


def first_step(search: Search, inputs: Sequence[str]) -> dict[str, Any]:
    """Return the first plan of a search under the keys of a training step's document."""
    whole, first = document(search, 1, inputs), search.finalists[0]
    step = {**whole.pop("rows")[0], **whole}
    rates = {"tokens_per_s": first.tokens_per_s, "mfu": first.mfu}
    return {
        **step,
        "tokens_per_s_per_chip": first.tokens_per_s / search.chips,
        "interval": interval_document(plan_interval(search, first), first.cost, **rates),
        "plan": stated(first.plan),
    }


SPELT = (
    "tp", "pp", "dp", "microbatch", "zero", "schedule", "recompute", "order", "precision",
    "overlap", "attention", "sequence_parallel", "ranks_per_chip", "global_batch", "seq",
    "framework",
)  # fmt: skip
"""Fields that the command states even if they have the default."""


def train_command(search: Search, inputs: Sequence[str] = (), rank: int = 1) -> str:
    """Return the command that simulates a plan of the search, with the user's own ``inputs``."""
    plan = search.finalists[rank - 1].plan
    named = inputs or ("--model", search.model.name, "--cluster", search.cluster.name)
    words = ["cluster-sim", "train", *named]
    words += ["--chips", str(search.chips)] if search.chips < search.cluster.chips else []
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
    best, last = search.finalists[0], search.finalists[:top][-1]
    slower = last.iteration_s / best.iteration_s - 1
    heading = (
        f"tp {best.plan.tp}, pp {best.plan.pp}, dp {best.plan.dp:,} takes "
        f"{format_seconds(best.iteration_s)}; the last of {min(top, len(search.finalists))} plans "
        f"{slower:.0%} more\n{headline(search)}"
    )
    run.figure("plans", bars(rows, heading), title="The best plans")
    run.figure("pareto", pareto(search, top), title="Memory and time of all plans", note=PARETO)
    if search.objective != "time":
        title = f"Time and {search.objective} of the simulated plans"
        run.figure(search.objective, worth(search, top), title=title)
    run.table("metrics", rows, title="Ranked plans", note="\n".join(remarks(search)))
    heads, cells = sifted(search)
    run.table(
        "sifted", pd.DataFrame(cells, columns=heads), title="How the search narrowed the plans down"
    )
    listed = every.to_csv(index=False).encode()
    run.file("estimates.csv", listed, title="Every plan that fits, with its estimate", table=True)
    run.file("plan.yaml", plan_yaml(best.plan).encode(), note="The first plan, for train --plan.")
    run.json("results", results, title="Results")


PARETO = (
    "A dot is a plan that fits, by its estimate. On the line no other plan is faster with as "
    "little memory. Numbers are the simulated plans of the table."
)


def ties(search: Search) -> str:
    """Return a sentence on the interval of the first plan and the plans that tie with it."""
    rows = ranked(search, len(search.finalists))
    tied = [entry["rank"] for entry in rows[1:] if entry["tied"]]
    ends = format_interval(plan_interval(search, search.finalists[0]))
    first = f"The first takes {format_seconds(rows[0]['iteration_s'])} {ends}"
    if not tied:
        return f"{first}. Every other plan that was simulated is clearly slower."
    plans = f"Plan {ranges(tied)} is" if len(tied) == 1 else f"Plans {ranges(tied)} are"
    return f"{first}. {plans} too close to it for two predictions to tell which is faster."


def memory_sentences(search: Search) -> list[str]:
    """Return what a search says of plans that fill a rank's memory, or need more than it has."""
    first, *others = search.finalists
    if first.memory.tight:
        room = format_memory(first.memory.capacity)
        return [
            f"No plan is likely to fit in the {room} of a rank: these fit only in a training stack "
            "that needs little memory. Use more chips or a shorter --seq."
        ]
    faster = [one for one in others if one.worth(search.objective) < first.worth(search.objective)]
    if not faster:
        return []
    best = faster[0]
    share = best.memory.total / best.memory.capacity
    saved = 1 - best.worth(search.objective) / first.worth(search.objective)
    return [
        f"The first leaves {FREE:.0%} of a rank's memory free. Plan 2 has {saved:.1%} less "
        f"{search.objective}, and memory {share:.1%} full."
    ]


def headline(search: Search) -> str:
    """Return the question of a search in one line: model, cluster and batch."""
    plan = search.finalists[0].plan
    overlaps = {finalist.plan.overlap for finalist in search.finalists}
    overlap = f", overlap {plan.overlap}" if len(overlaps) == 1 else ""
    return (
        f"{search.model.name} ({search.model.parameters / 1e9:,.1f} G parameters) on "
        f"{search.cluster.name}, {search.chips:,} chip{'s' * (search.chips > 1)}, global batch "
        f"{plan.global_batch:,} × {plan.seq:,} tokens{packed(plan)}{overlap}"
    )


def table(search: Search, top: int) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of the ranked plans, without fields that are equal in all."""
    shown = [one for _, one in _shown(search, top)]
    silent = () if search.model.experts else ("ep", "etp")
    varying = [
        name
        for name in PLAN_FIELDS
        if name not in silent and len({_field(finalist, name) for finalist in shown}) > 1
    ]
    columns = [*ALWAYS, *(name for name in varying if name not in ALWAYS)]
    parts = [part for part in PARTS if any(finalist.breakdown_s[part] for finalist in shown)]
    heads = ["", *(HEADS.get(name, name) for name in columns), "estimate", "simulated", "error"]
    sought = WORTH.get(search.objective, {})
    heads += [*sought, "MFU", "memory", *(heading(part) for part in parts)]
    return heads, [
        [
            label,
            *(_field(finalist, name) for name in columns),
            format_seconds(finalist.estimate_s),
            format_seconds(finalist.iteration_s),
            f"{finalist.estimate_error:+.1%}",
            *(tell(finalist) for tell in sought.values()),
            f"{finalist.mfu:.1%}",
            format_memory(finalist.memory.total),
            *(f"{finalist.breakdown_s[part] / finalist.iteration_s:.1%}" for part in parts),
        ]
        for label, finalist in _shown(search, top)
    ]


def _shown(search: Search, top: int) -> list[tuple[str, Finalist]]:
    """Return the plans of the table with their places; the user's own last, or among them."""
    users = search.own_plan
    listed = [(str(place), each) for place, each in enumerate(search.finalists[:top], start=1)]
    if users is None:
        return listed
    mine = users.finalist.plan
    places = [place for place, each in listed if each.plan == mine]
    if places:
        return [(f"{at}, yours" if at in places else at, each) for at, each in listed]
    return [*listed, (f"{users.rank:,}, yours", users.finalist)]


WORTH: Mapping[str, Mapping[str, Callable[[Finalist], str]]] = {
    "cost": {"USD a step": lambda finalist: _number(finalist.cost.cost_usd, 1.0)},
    "energy": {"kWh a step": lambda finalist: _number(finalist.cost.energy_joules, 3.6e6)},
}
"""Heading and text of the quantity by which plans are ranked, where that is not the time."""


def _number(value: float | None, unit: float) -> str:
    return "unknown" if value is None else f"{value / unit:,.4g}"


ALWAYS = ("tp", "pp", "dp", "microbatch")
HEADS = {"microbatch": "mb", "sequence_parallel": "sp", "stage_layers": "layers"}


def _field(finalist: Finalist, name: str) -> str:
    value = fields_of(finalist.plan)[name]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or ("even" if name == "stage_layers" else "all")


SAID = ("zero", "sequence_parallel", "schedule", "recompute", "precision", "attention")
"""Fields that are shown even if they have the default."""


def shared(search: Search, top: int) -> str:
    """Return the fields that are equal in all plans of the table, in one line."""
    shown = [one for _, one in _shown(search, top)]
    same = [
        f"{name.replace('_', ' ')} {_field(shown[0], name)}"
        for name in PLAN_FIELDS
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
    bounded = len(search.plans) - search.estimated
    rows += [("  slower by a lower bound of their estimate", -bounded)] * bool(bounded)
    rows += [("estimated", search.estimated), ("simulated in full", len(search.finalists))]
    return ["how the search narrowed them down", "plans"], [
        [text, f"{count:,}"] for text, count in rows
    ]


def own_sentences(search: Search) -> list[str]:
    """Return what a search says of the user's own plan; nothing without one."""
    row = own_row(search)
    if row is None:
        return []
    slower = "faster" if row["loss"] < 0 else "slower"
    much = f"{abs(row['loss']):.1%} {slower} than the first" if row["loss"] else "the fastest"
    tie = ", too little for two predictions to tell" if row["tied"] and row["loss"] else ""
    sentences = [f"Your plan is number {row['rank']:,} of {row['among']:,} that fit: {much}{tie}."]
    if row["differs"]:
        mine, first = ({name: e[of] for name, e in row["differs"].items()} for of in OWN_FIRST)
        sentences.append(f"It has {named(mine)}; the first has {named(first)}.")
    if row["change"]:
        saved = 1 - row["changed_s"] / row["iteration_s"]
        sentences.append(
            f"The single change that gains most is {named(row['change'])}: {saved:.1%} less."
        )
    elif row["loss"] > 0:
        sentences.append("No single change of it is faster.")
    return sentences


OWN_FIRST = ("own", "first")  # values of a field that differs: in the user's plan, and in the first


def _of_one_value(search: Search) -> Iterator[str]:
    """Name fields whose values were to be compared, and that have the same one in all plans."""
    for name in search.aim.each:
        values = {getattr(plan, name) for plan in search.plans}
        if len(values) == 1 and name not in search.stated:
            (value,) = values
            yield (
                f"All plans that fit have {name.replace('_', ' ')} {value}, so --each {name} "
                f"compares nothing: ask again with another {option_name(name)}."
            )


def remarks(search: Search) -> list[str]:
    """Return remarks on idle options, the time of the search, and the error of its estimates."""
    agree = search.agreement
    remarks = [
        *_of_one_value(search),
        *idle_sentences(search.without_effect),
        *own_sentences(search),
        f"Weighed and estimated in {search.estimated_in_s:.1f} s, the best {len(search.finalists)} "
        f"simulated in {search.simulated_in_s:.1f} s.",
    ]
    errors = f"median error {agree.median_abs_error:.2%}, worst {agree.worst_abs_error:.2%}"
    if agree.kendall_tau is not None:
        errors = f"rank correlation (Kendall's tau) {agree.kendall_tau:.2f}, {errors}"
    remarks.append(f"Estimates beside simulations of {agree.plans} plans: {errors}.")
    remarks += [*memory_sentences(search), ties(search)]
    if not search.first.plan.names_framework:
        remarks.append(assumed_sentences(search.first)[0])
    if search.next_estimate_s is not None:
        best = search.finalists[0]
        slower = search.next_estimate_s / best.iteration_s - 1
        remarks.append(
            f"The best plan that was not simulated is estimated at "
            f"{format_seconds(search.next_estimate_s)}, {slower:.1%} over the first."
        )
    first, least = search.finalists[0], search.overlapped_s
    if least is not None and least < 0.995 * first.iteration_s:
        remarks.append(
            f"All plans overlap what frameworks do by default (--overlap {first.plan.overlap}). "
            f"With --overlap all the first takes {format_seconds(least)}, "
            f"{1 - least / first.iteration_s:.1%} less; --each overlap finds the best of each."
        )
    return remarks
