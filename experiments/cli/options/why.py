"""Grounds of an answer, for ``-v``: what was not stated, and what the catalogue gave."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.output.printing import print_text
from experiments.reports.formatting import option_name

if TYPE_CHECKING:
    from topologies.catalogue.reader import Entry

NAME = "name"  # unit of a row that is a word


def print_why(document: Mapping[str, Any], read: Iterable[Entry]) -> None:
    """Print the grounds of an answer to stderr, so that its document stays alone on stdout."""
    with redirect_stdout(sys.stderr):
        for words, values in _unstated(document):
            if values:
                print_text(f"Not stated, and {words}: {', '.join(values)}.")
        rows = [row for row in sorted(read, key=lambda row: row[:3]) if row.unit != NAME]
        if rows:
            print_text(f"Read from the catalogue, with keys of sources.csv, {len(rows)} numbers:")
        for row in rows:
            number = f"{row.part}.{row.quantity}" + f"={row.variant}" * bool(row.variant)
            print_text(f"{number} {row.written} ({row.grade}: {row.source})")


def _unstated(document: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield where values of options come from that nobody stated, and these options."""
    from click.core import ParameterSource

    plan, name = document.get("plan") or {}, document.get("framework") or ""
    assumed = set(plan.get("assumed", ()))
    if name:
        from workloads.training.frameworks.framework import framework

        chosen = assumed & framework(name).plan.keys()
        yield f"as {name} has it", _values(plan, chosen)
        assumed -= chosen
    yield "as usual", _values(plan, assumed - {"framework"})
    context = click.get_current_context()
    unstated = {
        str(each.name)
        for each in context.command.params
        if context.get_parameter_source(str(each.name)) == ParameterSource.DEFAULT
    }
    if not context.params.get("plan"):
        yield "searched", _values(plan, unstated - {*plan.get("assumed", ())})
    usual = []
    for each in context.command.params:
        described, default = (getattr(each, name, None) for name in ("described", "usual"))
        text = described and (described.default or str(default or ""))
        if text and each.name in unstated - plan.keys() and each.opts[0].startswith("-"):
            usual.append(f"{each.opts[0]} {text}")
    yield "by default", usual


def _values(plan: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Fields of a plan as options, without those that are switched off."""
    return [
        f"{option_name(name)} {plan[name]}"
        for name in plan
        if name in names and plan[name] not in (0, 0.0, "", [], ())
    ]
