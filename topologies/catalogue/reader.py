"""Reading of catalogue files: CSV whose rows are checked one by one, with file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from topologies.errors import InputError, shown, suggestion
from topologies.files.reading import csv_rows, read_text
from topologies.units import si

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

GRADES = ("stated", "measured", "derived", "assumed")
COLUMNS = ("part", "quantity", "variant", "value", "unit", "grade", "source", "note", "low", "high")
LARGEST_FILE_BYTES = 5_000_000
NAME = "name"
"""Unit of a row whose value is a word."""
WORD = re.compile(r"[\w.+-]{1,60}")
_REQUIRED = ("part", "quantity", "value", "unit", "grade", "source")


class Entry(NamedTuple):
    """A row of the catalogue: a quantity of a part in SI units, or a word about the part.

    ``variant``: name of an alternative to a contested value; empty for the default.
    ``value``: value in SI [``unit``].
    ``unit``: the SI unit: B, B/s, s, FLOP/s, 1/s, W, J/B, s/m, USD/s, count or ratio; ``name`` for
        a word, which is then in ``written``.
    ``source``: keys of ``sources.csv``, each with a path after a colon if it has one, separated by
        ``; ``.
    ``low, high``: range within which the value may lie [``unit``]; None if it is not stated.
    ``written``: number and unit as in the file, such as ``2.9 TB/s``.
    ``exact``: value without rounding [``unit``].
    """

    part: str
    quantity: str
    variant: str
    value: float
    unit: str
    grade: str
    source: str
    note: str
    low: float | None
    high: float | None
    written: str
    exact: Fraction


def read_entries(file: Path | Traversable, name: str) -> list[tuple[int, Entry]]:
    """Read the rows of a catalogue file, each with its line number."""
    text = read_text(file, limit_bytes=LARGEST_FILE_BYTES, name=name)
    header, rows = csv_rows(text, name)
    _check_header(header, name)
    entries: dict[tuple[str, str, str], tuple[int, Entry]] = {}
    for line, cells in rows:
        row = _entry(cells, f"{name} line {line}")
        key = (row.part, row.quantity, row.variant)
        if key in entries:
            row_name = " ".join(filter(None, key))
            raise InputError(
                f"{name} line {line}: {row_name} is also in line {entries[key][0]}; keep one."
            )
        entries[key] = (line, row)
    return list(entries.values())


def _check_header(header: Iterable[str], name: str) -> None:
    columns = list(header)
    missing = [column for column in _REQUIRED if column not in columns]
    if missing:
        raise InputError(
            f"{name} line 1: no column {', '.join(missing)}; a catalogue has {','.join(COLUMNS)}."
        )
    for column in columns:
        if column not in COLUMNS:
            hint = suggestion(column, COLUMNS)
            raise InputError(f"{name} line 1: unknown column {column[:60]!r}.{hint}")


def _entry(cells: Mapping[str, str], where: str) -> Entry:
    for column in _REQUIRED:
        if not cells[column]:
            raise InputError(f"{where}: {column} is empty. State it.")
    if cells["grade"] not in GRADES:
        raise InputError(
            f"{where}: unknown grade {cells['grade'][:60]!r}; the grades are {', '.join(GRADES)}."
        )
    if cells["unit"] == NAME:
        return _word(cells, where)
    exact, base = _number(cells, "value", where)
    low, high = (
        _number(cells, column, where)[0] if cells.get(column) else None
        for column in ("low", "high")
    )
    if exact < 0:
        raise InputError(
            f"{where}: value {cells['value']} is negative; the least is 0. Correct it."
        )
    if (low is not None and low > exact) or (high is not None and high < exact):
        raise InputError(
            f"{where}: value {cells['value']} is outside its range, "
            f"{cells.get('low') or '0'} to {cells.get('high') or 'infinity'}. Correct one."
        )
    return Entry(
        part=cells["part"],
        quantity=cells["quantity"],
        variant=cells.get("variant", ""),
        value=float(exact),
        unit=base,
        grade=cells["grade"],
        source=cells["source"],
        note=cells.get("note", ""),
        low=None if low is None else float(low),
        high=None if high is None else float(high),
        written=f"{cells['value']} {cells['unit']}",
        exact=exact,
    )


def _word(cells: Mapping[str, str], where: str) -> Entry:
    """Return the entry of a row whose value is a word, such as the family of a chip."""
    word = cells["value"]
    if not WORD.fullmatch(word):
        raise InputError(
            f"{where}: value {shown(word)!r} is no {NAME}; write letters, digits and . _ + -."
        )
    if cells.get("low") or cells.get("high"):
        raise InputError(f"{where}: a {NAME} has no low and no high; leave them empty.")
    return Entry(
        part=cells["part"],
        quantity=cells["quantity"],
        variant=cells.get("variant", ""),
        value=0.0,
        unit=NAME,
        grade=cells["grade"],
        source=cells["source"],
        note=cells.get("note", ""),
        low=None,
        high=None,
        written=word,
        exact=Fraction(0),
    )


def _number(cells: Mapping[str, str], column: str, where: str) -> tuple[Fraction, str]:
    try:
        return si(cells[column], cells["unit"])
    except InputError as mistake:
        raise InputError(f"{where}: {column}: {mistake}") from None
