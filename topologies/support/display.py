"""Display of objects: one line at a prompt, a small table in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type)

LONGEST_VALUE = 120


def line(noun: str, facts: Mapping[str, object]) -> str:
    """Write facts about an object on one line.

    >>> line("Group", {"ranks": 64, "cluster": "trn2-ultraserver"})
    'Group(ranks=64, cluster=trn2-ultraserver)'
    """
    return f"{noun}({', '.join(f'{name}={_cut(value)}' for name, value in facts.items())})"


def table(noun: str, facts: Mapping[str, object]) -> str:
    """Write facts about an object as an HTML table, for notebooks.

    >>> table("Group", {"ranks": 64})
    '<table><caption>Group</caption><tr><th>ranks</th><td>64</td></tr></table>'
    """
    from html import escape  # as late as this, since commands never show a notebook's table

    rows = (
        f"<tr><th>{escape(name)}</th><td>{escape(_cut(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table><caption>{escape(noun)}</caption>{''.join(rows)}</table>"


def by_facts(title: str) -> Callable[[Kind], Kind]:
    """Return a decorator for a class whose ``_facts`` are its line, and its table under a title."""

    def decorate(kind: Any) -> Any:
        kind.__repr__ = lambda self: line(kind.__name__, self._facts)
        kind._repr_html_ = lambda self: table(title, self._facts)
        return kind

    return decorate


def stated_fields(instance: Any) -> dict[str, object]:
    """Return the fields of a dataclass instance that differ from their defaults, by name.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Plan:
    ...     tp: int = 1
    ...     pp: int = 1
    >>> stated_fields(Plan(tp=8))
    {'tp': 8}
    """
    values = {
        field.name: (getattr(instance, field.name), field.default)
        for field in fields(instance)
        if field.compare
    }
    return {
        name: value
        for name, (value, default) in values.items()
        if default is MISSING or value != default
    }


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
