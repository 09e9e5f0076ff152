"""Text of an experiment: its question, its answer, how it was obtained, and its rows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import click

from experiments.cli.output.printing import print_table, print_text
from topologies.files.table import Table

ENDS = {"low": "80 % from", "high": "80 % to"}
"""Headings of the ends of an interval."""
CAVEAT = "80 % of measurements would lie between the two columns of 80 %."


@dataclass(frozen=True)
class Explained:
    """Question of an experiment, its answer in a sentence, and a paragraph on how it was obtained.

    Attributes
    ----------
    question : str
        Line that ``cluster-sim list experiments`` shows.
    answer : str
        Title of the experiment's figure.
    method : str
        Paragraph of :func:`about`.
    """

    question: str
    answer: str
    method: str


def about(module: ModuleType) -> str:
    """Return the description of an experiment: the docstring of its module without the first line.

    ``module``: module of an experiment.
    """
    return " ".join((inspect.getdoc(module) or "").partition("\n\n")[2].replace("``", "").split())


def print_experiment(explained: Explained, rows: Table) -> None:
    """Print the answer first, then how it was obtained, and the rows behind it.

    Columns that tell rows apart come first, and again beside columns that do not fit.
    """
    from experiments.reports.formatting import constants, table_text

    same, rest = constants(rows)
    keys = row_keys(rest)
    ordered = Table({name: rest.columns[name] for name in _first(keys, list(rest.columns))})
    headings, cells = table_text(ordered)
    named = [ENDS.get(heading, heading) for heading in headings]
    print_text(explained.question, bold=True)
    print_text(f"{explained.answer.rstrip('.')}." if explained.answer else "")
    print_text(explained.method)
    print_table(f"\nIn all rows: {same}" if same else "", named, cells, left=max(1, len(keys)))
    if set(ENDS) <= set(headings):
        click.echo(CAVEAT)


def row_keys(table: Table) -> list[str]:
    """Return the columns that tell the rows of a table apart, the fewest from the left.

    A column of a key has each of its values in several rows, as a point of a grid does. Without
    such columns the key is the first column.

    >>> row_keys(Table({"op": ["a", "a", "b", "b"], "time": [1, 2, 3, 4], "z": [1, 2, 1, 2]}))
    ['op', 'z']
    """
    names = list(table.columns)
    repeated = [name for name in names if 2 * len(set(table.columns[name])) <= len(table)]
    keys: list[str] = []
    for name in repeated:
        if _distinct(table, [*keys, name]) > _distinct(table, keys):
            keys.append(name)
    if not keys or _distinct(table, keys) < len(table):
        return names[:1]
    for name in tuple(keys):
        others = [key for key in keys if key != name]
        if _distinct(table, others) == len(table):
            keys = others
    return keys


def _distinct(table: Table, names: list[str]) -> int:
    """Return how many different rows these columns have; one where there is no column."""
    return len(set(zip(*(table.columns[name] for name in names), strict=True))) if names else 1


def _first(keys: list[str], names: list[str]) -> Iterator[str]:
    yield from keys
    yield from (name for name in names if name not in keys)
