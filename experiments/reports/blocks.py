"""Blocks of a report page (facts, tables, bars) in the form that the template takes."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster_sim.plot.palette import colors, ink
from experiments.figures.training import NAMES
from experiments.reports.formatting import (
    STATISTICS,
    constants,
    heading,
    table_text,
    text_columns,
    unit_of,
    value_text,
)
from topologies.errors import InputError
from topologies.files.table import Table, as_number, read_csv

Block = dict[str, Any]
MOST_ROWS = 500
LARGEST_SHOWN_BYTES = 2**26
ADDITIVE = ("_s", "_ps", "_hours")
"""Units of objects whose parts are shares of a whole."""


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text: Collection[int] = (0,),
    shares: Sequence[float] = (),
    values: Sequence[Sequence[Any]] = (),
    more: str = "",
) -> Block:
    """Return a table.

    ``columns, rows``: headings and cells, as text. ``text``: columns that align left. ``shares``:
    share of each row, drawn as a bar behind it. ``values``: values of the cells, by which the page
    sorts. ``more``: name of the file with further rows.
    """
    raw = values or [[None] * len(row) for row in rows]
    behind: Sequence[float | None] = shares or [None] * len(rows)
    lines = [
        {
            "share": share,
            "cells": [
                {"text": cell, "value": _sortable(value)}
                for cell, value in zip(row, texts, strict=True)
            ],
        }
        for row, texts, share in zip(rows, raw, behind, strict=True)
    ]
    return {"kind": "table", "columns": columns, "rows": lines, "text": list(text), "more": more}


def _sortable(value: Any) -> Any:
    """Return a value if rows can be sorted by it: None for text and infinities."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def frame_blocks(path: Path, *, results: bool = False) -> Iterator[Block]:
    """Yield a CSV file as a table, after a line with the columns that are equal in all rows.

    A table of single results (metric and value) is left out if the run has ``results``, a document
    with the same numbers.
    """
    held = read_csv(path, MOST_ROWS + 1, LARGEST_SHOWN_BYTES)
    names = held.columns.keys()
    if list(names) == ["metric", "value"]:
        if results:
            return
        inner = [table(["metric", "value"], _metrics(held))]
        yield {"kind": "more", "text": "all of them", "blocks": inner}
        return
    if {"low", "high"} <= names and {"time_s", "iteration_s"} & names:
        held = held.renamed({"low": "low_s", "high": "high_s"})
    same, rest = constants(held.head(MOST_ROWS))
    if same:
        yield {"kind": "text", "text": f"The same in all rows: {same}."}
    yield table_block(rest, more=path.name if len(held) > MOST_ROWS else "")


def table_block(held: Table, more: str = "") -> Block:
    """Return a table of a file or a document as a block."""
    columns, rows = table_text(held)
    return table(columns, rows, text=text_columns(held), values=held.rows(), more=more)


def _metrics(held: Table) -> list[list[str]]:
    """Rows of names and values, each value with the unit at the end of its name."""
    rows = []
    for name, cell in zip(held["metric"], held["value"], strict=True):
        value = as_number(cell)
        whole = int(value) if math.isfinite(value) and value.is_integer() else value
        shown = str(cell) if math.isnan(value) else value_text(str(name), whole)
        rows.append([heading(str(name)), shown])
    return rows


def document_blocks(document: Mapping[str, Any]) -> Iterator[Block]:
    """Yield plain values as a grid, and objects and lists of objects as tables after it."""
    simple = {key: value for key, value in document.items() if not isinstance(value, dict | list)}
    if simple:
        pairs = [(heading(key), value_text(key, value)) for key, value in simple.items()]
        yield {"kind": "facts", "pairs": pairs}
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield {"kind": "head", "text": heading(key)}
            yield parts_table(key, value)
        elif isinstance(value, list) and value and all(isinstance(line, str) for line in value):
            yield {"kind": "head", "text": heading(key)}
            yield from ({"kind": "text", "text": line} for line in value)
        elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            yield {"kind": "head", "text": heading(key)}
            yield table_block(Table.of_rows(value[:MOST_ROWS]))


def parts_table(key: str, value: Mapping[str, Any]) -> Block:
    """Return an object as a table, with shares if its values are parts of a whole."""
    unit = unit_of(key) or ("_hours" if "_hours" in key else "")
    rows = [[heading(part), plain_text(f"{key}.{part}", inner)] for part, inner in value.items()]
    numbers = [x for x in value.values() if isinstance(x, int | float) and x >= 0]
    statistics = all(STATISTICS.fullmatch(part) for part in value)
    additive = unit in ADDITIVE and not statistics and len(numbers) == len(value)
    if not additive or not sum(numbers):
        return table(["part", "value"], rows)
    shares = [number / sum(numbers) for number in numbers]
    whole = [[*row, f"{share:.1%}"] for row, share in zip(rows, shares, strict=True)]
    return table(["part", "value", "share"], whole, shares=shares)


def plain_text(name: str, value: Any) -> str:
    """An input or a result in one line: a file by path and digest, words in a row, else JSON."""
    if isinstance(value, dict) and value.keys() == {"path", "sha256"}:
        return f"{value['path']} (sha256 {str(value['sha256'])[:12]}…)"
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value) if isinstance(value, dict | list) else value_text(name, value)


def stack(name: str, parts: Mapping[str, float], whole: float = 0.0, rest: str = "") -> Block:
    """Return a bar of several parts, each with its share of their sum or of a larger whole."""
    held = {part: value for part, value in parts.items() if value > 0}
    shade = colors(held)
    left = whole - sum(held.values())
    if left > 0:
        held[rest], shade[rest] = left, "#dfe3e8"
    total = sum(held.values())
    if not held or not math.isfinite(total):
        raise InputError(f"{name} has no parts")
    lines = [
        {
            "name": NAMES.get(part, heading(part)),
            "text": value_text(f"{name}.{part}", value),
            "share": value / total,
            "percent": f"{value / total:.1%}",
            "color": shade[part],
            "ink": ink(shade[part]),
        }
        for part, value in held.items()
    ]
    shares = ", ".join(f"{line['name']} {line['text']} ({line['percent']})" for line in lines)
    return {"kind": "stack", "parts": lines, "alt": f"A bar of {heading(name)}: {shares}."}
