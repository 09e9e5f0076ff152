"""The rows of the shipped catalogue, which are parsed once and cached as JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from fractions import Fraction
from operator import attrgetter
from pathlib import Path

from topologies.catalogue.reader import Entry, read_entries
from topologies.files import kept_files

DATA = Path(__file__).parents[1] / "data"
_SOURCES = "sources.csv"
_FIELDS = tuple(item.name for item in fields(Entry))[:-1]
"""Columns of the cached rows, which the exact value follows as numerator and denominator."""
_PARSERS = ("catalogue/reader.py", "catalogue/shipped.py", "units.py")
"""Modules on which the cached rows depend."""


def shipped_rows() -> list[Entry]:
    """Return all rows in the order of the files, whose CSV is parsed only after it has changed."""
    files = sorted(path for path in DATA.glob("*.csv") if path.name != _SOURCES)
    parsers = [DATA.parent / name for name in _PARSERS]
    inputs = [part for path in files + parsers for part in (path.name, path.read_bytes())]
    name = f"catalogue-{kept_files.digest(*inputs)}.json"
    kept = kept_files.read(name)
    if kept is not None:
        return [Entry(*(*row, Fraction(*exact))) for *row, exact in json.loads(kept)]
    rows = [row for path in files for _, row in read_entries(path, path.name)]
    values = attrgetter(*_FIELDS)
    plain = [(*values(row), row.exact.as_integer_ratio()) for row in rows]
    kept_files.keep(name, json.dumps(plain).encode(), replaces="catalogue-*.json")
    return rows
