"""The rows of the shipped catalogue, which are parsed once and cached as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from topologies.catalogue.reader import NAME, Entry, read_entries
from topologies.files import kept_files

DATA = Path(__file__).parents[1] / "data"
_SOURCES = "sources.csv"
_PARSERS = ("catalogue/reader.py", "catalogue/shipped.py", "units.py")
"""Modules on which the cached rows depend."""


def shipped_rows() -> tuple[str, list[Entry]]:
    """Return the digest and all rows in the order of the files, parsed only after they changed."""
    files = sorted(path for path in DATA.glob("*.csv") if path.name != _SOURCES)
    parsers = [DATA.parent / name for name in _PARSERS]
    inputs = [part for path in files + parsers for part in (path.name, path.read_bytes())]
    name = f"catalogue-{kept_files.digest(*inputs)}.json"
    kept = kept_files.read_json(name, _entries)
    if kept is not None:
        return kept
    rows = [row for path in files for _, row in read_entries(path, path.name)]
    digest = digest_of(rows)
    content = json.dumps([digest, list(map(_plain, rows))]).encode()
    kept_files.keep(name, content, replaces="catalogue-*.json")
    return digest, rows


def _entries(document: Any) -> tuple[str, list[Entry]]:
    """Digest and rows of a kept catalogue; a ValueError if they do not belong together."""
    digest, plain = document
    rows = [Entry._make((*row, Fraction(*exact))) for *row, exact in plain]
    if digest_of(rows) != digest:
        raise ValueError(digest)
    return digest, rows


def _plain(row: Entry) -> list[Any]:
    """Return a row for JSON; its exact value has a denominator unless that is 1."""
    numerator, denominator = row.exact.as_integer_ratio()
    return [*row[:-1], [numerator] if denominator == 1 else [numerator, denominator]]


def digest_of(rows: Iterable[Entry], switched: tuple[tuple[str, str, str], ...] = ()) -> str:
    """Return a digest that depends neither on the order of rows nor on their notes.

    ``switched``: alternatives in force instead of their defaults.
    """
    whole = hashlib.sha256(repr(switched).encode())
    for row in sorted(rows, key=lambda row: (row.part, row.quantity, row.variant)):
        value = row.written if row.unit == NAME else row.exact
        whole.update(repr((row.part, row.quantity, row.variant, value, row.unit)).encode())
    return whole.hexdigest()
