"""Grounds of an answer, for ``-v``: what was not stated, and what the catalogue gave."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from typing import Any

import click
from click.core import ParameterSource

from experiments.cli.output.printing import print_text
from experiments.reports.formatting import option_name
from topologies.catalogue.reader import Entry

NAME = "name"  # unit of a row that is a word


def print_why(document: Mapping[str, Any], read: Iterable[Entry]) -> None:
    """Print the grounds of an answer to stderr, so that its document stays alone on stdout."""
    answers = [document, *(document.get("rows") or ())]
    beside = [row for row in answers[1:] if "plan" in row]
    # An answer that was simulated names its engine or its plan.
    simulated = any(each.keys() & {"engine", "plan"} for each in answers)
    grounds, unused = list[tuple[str, list[str]]](), set() if simulated else {"engine"}
    for answer in beside or [document]:
        on = f"on {answer['cluster']} " if beside else ""
        unused |= {*(answer.get("plan") or ())}
        grounds += [(on + words, values) for words, values in _planned(answer)]
    with redirect_stdout(sys.stderr):
        for words, values in (*grounds, ("by default", _usual(unused))):
            if values:
                print_text(f"Not stated, and {words}: {', '.join(values)}.")
        rows = [row for row in sorted(read, key=lambda row: row[:3]) if row.unit != NAME]
        if rows:
            print_text(f"Read from the catalogue, with keys of sources.csv, {len(rows)} numbers:")
        for row in rows:
            number = f"{row.part}.{row.quantity}" + f"={row.variant}" * bool(row.variant)
            print_text(f"{number} {row.written} ({row.grade}: {row.source})")


def _planned(answer: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield where fields of a plan come from that nobody stated, and these fields."""
    plan, name = answer.get("plan") or {}, answer.get("framework") or ""
    assumed = set(plan.get("assumed", ()))
    if name:
        from workloads.training.frameworks.framework import framework

        chosen = assumed & framework(name).plan.keys()
        yield f"as {name} has it", _values(plan, chosen)
        assumed -= chosen
    yield "as usual", _values(plan, assumed - {"framework"})
    if not click.get_current_context().params.get("plan"):
        yield "searched", _values(plan, _unstated() - {*plan.get("assumed", ())})


def _unstated() -> set[str]:
    context = click.get_current_context()
    names = (str(each.name) for each in context.command.params)
    return {name for name in names if context.get_parameter_source(name) == ParameterSource.DEFAULT}


def _usual(unused: Collection[str]) -> list[str]:
    """Options that were not stated, but for the unused ones, with their defaults."""
    usual, names = [], _unstated() - {*unused}
    for each in click.get_current_context().command.params:
        described, default = (getattr(each, name, None) for name in ("described", "usual"))
        text = described and (described.default or _shown(default or ""))
        if text and each.name in names and each.opts[0].startswith("-"):
            usual.append(f"{each.opts[0]} ({text})" if " " in text else f"{each.opts[0]} {text}")
    return usual


def _values(plan: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Fields of a plan as options, without those that are switched off."""
    return [
        f"{option_name(name)} {_shown(plan[name])}"
        for name in plan
        if name in names and plan[name] not in (0, 0.0, "", [], ())
    ]


def _shown(value: Any) -> str:
    return "on" if value is True else str(value)
