"""Shipped tables of published measurements, each with its licence, credit and tolerance.

``tables/index.csv`` lists them; the rows of a table have the columns of a file of its kind and a
``source`` each. A source that begins with ``memory:`` was not read from a document.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from experiments.validation.reading.rows import Rows, read_text
from topologies.errors import InputError, suggestion
from topologies.files.reading import csv_rows


@dataclass(frozen=True)
class Table:
    """One table of published measurements.

    ``file``: in ``tables``; compressed where the name ends in ``.gz``.
    ``median_tolerance, p90_tolerance``: largest median and 90th percentile of the absolute error at
        which validation succeeds.
    ``licence, credit, note``: licence and credit of the origin, and remarks on the measurements.
    """

    name: str
    file: str
    median_tolerance: float
    p90_tolerance: float
    licence: str
    credit: str
    note: str

    def rows(self) -> Rows:
        """Read its rows."""
        path = files("experiments.validation") / "tables" / self.file
        content = path.read_bytes()
        if self.file.endswith(".gz"):
            content = gzip.decompress(content)
        return read_text(content.decode("utf-8"), self.file)


@cache
def tables() -> dict[str, Table]:
    """Return all shipped tables by name."""
    path = files("experiments.validation") / "tables" / "index.csv"
    _, rows = csv_rows(path.read_text(encoding="utf-8"), "tables/index.csv")
    return {
        row["name"]: Table(
            name=row["name"],
            file=row["file"],
            median_tolerance=float(row["median_tolerance"]),
            p90_tolerance=float(row["p90_tolerance"]),
            licence=row["licence"],
            credit=row["credit"],
            note=row["note"],
        )
        for _, row in rows
    }


def table(name: str) -> Table:
    """Return the table of a name."""
    known_table = tables().get(name)
    if known_table is None:
        names = ", ".join(tables())
        near = suggestion(name, tables())
        raise InputError(f"no table {name[:40]!r}.{near} There are {names}.")
    return known_table


def misses(table: Table, summary: dict[str, float | None]) -> str:
    """Describe by how much a summary exceeds the tolerance of a table; empty when it does not."""
    for key, limit in (
        ("median_abs_error", table.median_tolerance),
        ("p90_abs_error", table.p90_tolerance),
    ):
        value = summary[key]
        if value is None and summary.get("fits"):
            continue  # its rows state no quantity, only whether a plan ran
        if value is None:
            return f"table {table.name}: no row could be predicted."
        if value > limit:
            return f"table {table.name}: {key} {value:.1%} is over the tolerance of {limit:.1%}."
    return ""
