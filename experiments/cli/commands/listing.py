"""``cluster-sim list``: names that other commands understand."""

from __future__ import annotations

import inspect
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.cli.options.inputs import CatalogueInputs, Invocation
from experiments.cli.output.printing import print_paragraphs, print_table
from experiments.reports.formatting import values_of
from experiments.scripts.registry import EXPERIMENTS
from topologies.catalogue.catalogue import Catalogue, chip_family
from topologies.clusters.machines import machines
from topologies.clusters.names import PLAIN, RAINIER, cluster
from topologies.support.errors import InputError, check_choice, shown, suggestion
from topologies.support.options import required, setting

Rows = list[dict[str, Any]]


def models(catalogue: Catalogue) -> Rows:
    """Named models with their sizes."""
    from workloads.models.huggingface import models, named

    return [
        {
            "name": name,
            **values_of(model, "parameters", "layers", "hidden", "heads"),
            "experts": None if model.experts is None else model.experts.count,
            "vocabulary": model.vocab,
        }
        for name, model in ((name, named(name)) for name in models())
    ]


def clusters(catalogue: Catalogue) -> Rows:
    """Named machines, one scale-up domain each, and the forms of plain shapes."""
    named = (*machines(catalogue), RAINIER)
    rows = [
        {"name": name, **values_of(machine, "chip", "chips", "domains")}
        for name, machine in ((name, cluster(name, catalogue=catalogue)) for name in named)
    ]
    shapes = [
        {"name": example, "chip": "(plain shape)", "chips": None, "domains": None}
        for example in PLAIN.values()
    ]
    return rows + shapes


def algorithms(catalogue: Catalogue) -> Rows:
    """Algorithms of collectives, the operations that each of them runs, and how."""
    from cluster_sim.collectives.algorithms.registry import ALGORITHMS

    return [
        {"name": name, "collectives": ", ".join(algorithm.kinds), "about": algorithm.summary}
        for name, algorithm in ALGORITHMS.items()
    ]


def schedules(catalogue: Catalogue) -> Rows:
    """Pipeline schedules, and whether they compute weight gradients apart."""
    from workloads.training.plan.schedules.registry import SCHEDULES

    return [
        {
            "name": schedule.name,
            "title": schedule.title,
            "weight gradients": "in a pass of their own"
            if schedule.splits_weights
            else "in the backward pass",
        }
        for schedule in SCHEDULES
    ]


def demands(catalogue: Catalogue) -> Rows:
    """Demand traces that ship with the package."""
    from workloads.demand.bundled import BUNDLED

    # A function whose argument is bound has the docstring of the function itself.
    texts = {name: inspect.getdoc(getattr(read, "func", read)) for name, read in BUNDLED.items()}
    return [
        {"name": name, "about": str(text).partition("\n")[0].replace("``", "")}
        for name, text in texts.items()
    ]


def policies(catalogue: Catalogue) -> Rows:
    """Policies of a fleet, and how each of them decides which units serve."""
    from workloads.fleet.policies.registry import KINDS as POLICIES

    return [{"name": name, "about": policy.summary} for name, policy in POLICIES.items()]


def frameworks(catalogue: Catalogue) -> Rows:
    """Training frameworks: their chips, what they leave in a plan, and errors on measured rows."""
    from workloads.confidence.residuals import shipped_residuals
    from workloads.training.frameworks.framework import LATER, framework, names

    parts = dict.fromkeys(catalogue.name(name, "chip") for name in machines(catalogue))
    errors: dict[str, list[float]] = {}
    for row in shipped_residuals().at_level("").rows:
        errors.setdefault(row.framework, []).append(abs(math.expm1(row.log_residual)))
    return [
        {
            "name": name,
            "title": stack.title,
            "chips": ", ".join(
                chip for chip in parts if chip_family(chip, catalogue).runtime in stack.runtimes
            ),
            "plan": ", ".join(f"{key} {value}" for key, value in stack.plan.items()),
            "settings": ", ".join(stack.settings),
            "releases": ", ".join(
                end if end == LATER else f"before {end}" for end, _, _ in stack.releases
            ),
            "assumes": stack.assumes,
            "source": stack.source,
            "measured_rows": len(errors.get(name, ())),
            "median_error": statistics.median(errors[name]) if name in errors else None,
        }
        for name, stack in ((name, framework(name)) for name in names())
    ]


def variants(catalogue: Catalogue) -> Rows:
    """Contested values of the catalogue: the default and each named alternative."""
    return [
        {
            "name": f"{row.part}.{row.quantity}={row.variant}",
            "value": row.written,
            "default": catalogue.entry(row.part, row.quantity).written,
            "grade": row.grade,
            "note": row.note,
        }
        for row in catalogue.rows
        if row.variant
    ]


def prices(catalogue: Catalogue) -> Rows:
    """Prices in the catalogue."""
    return [
        {"name": f"{row.part}.{row.quantity}", "value": row.written}
        | values_of(row, "grade", "source")
        for row in catalogue.rows
        if "USD" in row.unit and not row.variant
    ]


def jitter(catalogue: Catalogue) -> Rows:
    """Causes of uneven chips that --jitter takes; typical is all but servers."""
    from workloads.training.execution.jitter import CAUSES

    entries = [
        (cause, catalogue.entry(f"jitter.{cause.name}", "spread")) for cause in CAUSES.values()
    ]
    return [
        {
            **values_of(cause, "name", "about", "each"),
            "drawn": "once a job" if cause.steady else "each step",
            "law": cause.law,
            "spread": entry.written,
            **values_of(entry, "low", "high", "grade", "source", "note"),
        }
        for cause, entry in entries
    ]


def experiments(catalogue: Catalogue) -> Rows:
    """Experiments and the question that each of them answers."""
    return [values_of(experiment, "name", "question") for experiment in EXPERIMENTS]


KINDS: Mapping[str, Callable[[Catalogue], Rows]] = {
    function.__name__: function
    for function in (
        *(models, clusters, algorithms, schedules, demands, policies, frameworks, variants),
        *(prices, jitter, experiments),
    )
}
"""Kinds of names that can be listed, with the function that returns their rows."""
CATALOGUED = ("clusters", "variants", "prices", "jitter")  # kinds whose rows the catalogue has


@dataclass(frozen=True)
class ListInputs:
    """The kind of names to list, and a text that they contain."""

    kind: str = required("Names to list", choices=tuple(KINDS), metavar="KIND", argument=True)
    text: str = setting(
        "", "Only names that contain this text, such as trn2", metavar="[TEXT]", argument=True
    )

    def __post_init__(self) -> None:
        check_choice("KIND", self.kind, KINDS)


def listing(inputs: ListInputs, catalogue_inputs: CatalogueInputs, call: Invocation) -> None:
    """List models, clusters, algorithms and other names."""
    stated = {"--variant": catalogue_inputs.variant, "--catalogue": catalogue_inputs.catalogue}
    for option_name, value in stated.items():
        if value and inputs.kind not in CATALOGUED:
            raise InputError(
                f"{option_name} changes the catalogue, and the list of {inputs.kind} is not from "
                f"it. Leave it out, or list {', '.join(CATALOGUED)}."
            )
    every = KINDS[inputs.kind](catalogue_inputs.read())
    rows = [row for row in every if inputs.text.lower() in row["name"].lower()]
    if not rows:
        near = suggestion(inputs.text, [row["name"] for row in every])
        raise InputError(
            f"none of the {len(every)} {inputs.kind} contains {shown(inputs.text)!r}.{near} "
            f"`cluster-sim list {inputs.kind}` shows all."
        )
    title = (inspect.getdoc(KINDS[inputs.kind]) or "").rstrip(".")
    call.answer(
        {"kind": inputs.kind, "rows": rows},
        lambda _: _print(inputs, title, rows),
        lambda run, _: run.table(inputs.kind, rows, title=title),
    )


def _print(inputs: ListInputs, title: str, rows: Rows) -> None:
    """Print rows as a table: brief ones of a kind with much to say, and all about a named one."""
    if inputs.text and inputs.kind in WHOLE:
        for row in rows:
            facts = {**row, **({"median_error": _error(row)} if "median_error" in row else {})}
            name = facts.pop("name")
            print_paragraphs(
                name, [(key.replace("_", " "), str(v)) for key, v in facts.items() if v != ""]
            )
        return
    left = 1
    if inputs.kind in BRIEF and not inputs.text:
        remark, brief, left = BRIEF[inputs.kind]
        title, rows = remark or f"{title}; a NAME shows its source", brief(rows)
    print_table(title, list(rows[0]), [list(map(_text, row.values())) for row in rows], left=left)


def _by_part(rows: Rows) -> Rows:
    by_part: dict[str, dict[str, None]] = {}
    for row in rows:
        part, _, quantity = row["name"].partition("=")[0].rpartition(".")
        by_part.setdefault(part, {})[quantity] = None
    return [{"part": part, "quantities": ", ".join(names)} for part, names in by_part.items()]


def _judged(rows: Rows) -> Rows:
    return [
        {"name": row["name"], "title": row["title"]}
        | {"measured rows": row["measured_rows"], "median error": _error(row)}
        for row in rows
    ]


def _without_sources(rows: Rows) -> Rows:
    hidden = ("low", "high", "source", "note")
    return [{name: cell for name, cell in row.items() if name not in hidden} for row in rows]


BRIEF: Mapping[str, tuple[str, Callable[[Rows], Rows], int]] = {
    "variants": (
        "Parts with contested values; `cluster-sim list variants PART` shows their alternatives",
        _by_part,
        1,
    ),
    "frameworks": (
        "Training frameworks; `cluster-sim list frameworks NAME` shows all about one",
        _judged,
        2,
    ),
    "jitter": ("", _without_sources, 7),
}
"""Kinds that are printed in brief: title, function of their rows, and columns that align left."""
WHOLE = ("frameworks", "jitter")  # kinds of which all is printed where a text is stated


def _error(row: Mapping[str, Any]) -> str:
    return "no measured row" if row["median_error"] is None else f"{row['median_error']:.1%}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
