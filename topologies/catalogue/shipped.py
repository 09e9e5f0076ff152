"""The rows of the shipped catalogue, parsed once and kept in a form that is quick to read."""

from __future__ import annotations

import json
from dataclasses import fields
from fractions import Fraction
from operator import attrgetter
from pathlib import Path

from topologies import kept_files
from topologies.catalogue.reader import Entry, read_entries

DATA = Path(__file__).parents[1] / "data"
_SOURCES = "sources.csv"
_FIELDS = tuple(item.name for item in fields(Entry))[:-1]
"""Columns of the kept form; behind them stands the exact value as a fraction."""
_PARSERS = ("catalogue/reader.py", "catalogue/shipped.py", "units.py")


def shipped_rows() -> list[Entry]:
    """All rows in the order of the files; their CSV is parsed only after it has changed."""
    files = sorted(path for path in DATA.glob("*.csv") if path.name != _SOURCES)
    parsers = [DATA.parent / name for name in _PARSERS]
    made_of = [part for path in files + parsers for part in (path.name, path.read_bytes())]
    name = f"catalogue-{kept_files.digest(*made_of)}.json"
    kept = kept_files.read(name)
    if kept is not None:
        return [Entry(*(*row, Fraction(*exact))) for *row, exact in json.loads(kept)]
    rows = [row for path in files for _, row in read_entries(path, path.name)]
    values = attrgetter(*_FIELDS)
    plain = [(*values(row), row.exact.as_integer_ratio()) for row in rows]
    kept_files.keep(name, json.dumps(plain).encode(), replaces="catalogue-*.json")
    return rows
