"""Rows of the table of results in ``docs/background/validation.md``, rewritten from a validation.

``python -m tools.record`` does it. The first column, which describes a table, and empty cells are
kept, as are tables of memory, whose columns are others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from topologies.support.errors import InputError

ROW = re.compile(r"^\| `(?P<table>\w+)`[^|]*\| [\d,]+ of [\d,]+ \|")
"""Beginning of a row: the name of a table, what it holds, and the number of rows predicted."""


def rewrite(text: str, tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a page with the results of these tables; rows of other tables stay as they are."""
    lines = text.split("\n")
    places = {
        match["table"]: number for number, line in enumerate(lines) if (match := ROW.match(line))
    }
    for name, table in tables.items():
        if name in places:
            lines[places[name]] = _row(lines[places[name]], table)
        elif f"| `{name}`" not in text:
            raise InputError(f"the page has no row for the table {name}; add one with its name.")
    return "\n".join(lines)


def _row(line: str, table: Mapping[str, Any]) -> str:
    label, *before = (cell.strip() for cell in line.strip().strip("|").split("|"))
    summary, constant = table["summary"], table.get("constant_predictor") or {}
    values = (
        f"{summary['ok']:,} of {summary['rows']:,}",
        percent(summary["median_abs_error"]),
        percent(summary["p90_abs_error"]),
        percent(summary["bias"], sign="+"),
        percent(constant.get("median_abs_error")),
        percent(constant.get("p90_abs_error")),
    )
    cells = [new if old else "" for new, old in zip(values, before, strict=True)]
    return "".join(f"| {cell} " if cell else "| " for cell in (label, *cells)) + "|"


def percent(value: float | None, sign: str = "") -> str:
    """Return a share in per cent, with a decimal below 100, and a minus that is not a hyphen.

    >>> percent(0.0361), percent(-0.085, sign="+"), percent(1.444), percent(None)
    ('3.6', '−8.5', '144', '')
    """
    if value is None:
        return ""
    decimals = 1 if abs(100 * value) < 99.95 else 0
    text = f"{100 * value:{sign}.{decimals}f}"
    zero = text.strip("+-") == "0.0"
    return "0.0" if zero else text.replace("-", "−")
