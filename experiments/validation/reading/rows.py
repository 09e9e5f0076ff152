"""Reader of files of measurements: every row is kept, and a bad cell is named, not fatal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.validation.reading.load_tests import NEEDED, load_test_rows
from experiments.validation.reading.schema import SERVING, Column, Kind, Value, kind_of
from topologies.clusters.names import FILES, GRAPHS
from topologies.errors import InputError, suggestion
from topologies.files.reading import csv_lines, read_bytes

LARGEST_FILE_BYTES = 50_000_000
LONGEST_HEADER = 500
NOTHING: Mapping[str, str] = {}
SEPARATORS = (",", ";", "\t")
"""Separators of cells; spreadsheets in some languages write the latter two in CSV files."""


@dataclass(frozen=True)
class Row:
    """One row of a file.

    ``line``: number of its last line in the file, from 1.
    ``cells``: as read, columns that are not ours included.
    ``values``: values of our columns; None where a cell is empty or the file has no such column.
    """

    line: int
    cells: Mapping[str, str]
    values: Mapping[str, Value]
    mistakes: tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """The rows of one file."""

    kind: Kind
    header: tuple[str, ...]
    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)


def read_file(path: Path | str, stated: Mapping[str, str] = NOTHING) -> Rows:
    """Read a CSV file of measurements, or the results of a load generator.

    ``stated``: cells by column that hold for every row, whatever the file says.
    """
    name = str(path)
    content = read_bytes(Path(path), limit_bytes=LARGEST_FILE_BYTES, remedy="Split it.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text. Save it as CSV in UTF-8.") from None
    runs = load_test_rows(text, name)
    rows = read_text(text, name, stated) if runs is None else read_runs(runs, stated)
    return replace(rows, rows=tuple(_beside(row, Path(path).parent) for row in rows.rows))


FILES_OF_ROWS = ("model", "cluster")
"""Columns whose cells may name a file, by one of ``ENDINGS`` or the folder of a model."""


ENDINGS = (*FILES, *GRAPHS, ".json")


def _beside(row: Row, folder: Path) -> Row:
    """Row whose files are looked for in the folder of its table, wherever the command runs."""
    places = {
        name: str(folder / value)
        for name in FILES_OF_ROWS
        if isinstance(value := row.values.get(name), str)
        and (value.endswith(ENDINGS) or ("/" in value and (folder / value).exists()))
    }
    return replace(row, values={**row.values, **places}) if places else row


def read_runs(runs: Sequence[Mapping[str, Any]], stated: Mapping[str, str]) -> Rows:
    """Return the rows of a load generator's runs, which need a model, a cluster and a degree."""
    check_stated(stated, SERVING)
    header = list(dict.fromkeys([*(name for run in runs for name in run), *stated]))
    header = [name for name in header if name != "mistake"]
    rows = []
    for line, run in enumerate(runs, 1):
        whole = {**run, **stated}
        row = _row(SERVING, header, line, [str(whole.get(name, "")) for name in header])
        lacking = [
            f"{name} is not in the file. State it, as --column {name}=…."
            for name in NEEDED
            if not whole.get(name)
        ]
        proposes = [run["mistake"]] if "mistake" in run and "speculate" not in stated else []
        wrong = [each for each in row.mistakes if not each.endswith(" is empty. State it.")]
        rows.append(replace(row, mistakes=(*wrong, *lacking, *proposes)))
    return Rows(SERVING, tuple(header), tuple(rows))


def read_text(text: str, name: str, stated: Mapping[str, str] = NOTHING) -> Rows:
    """Read the text of such a file; ``stated`` as of :func:`read_file`."""
    all_lines = csv_lines(text, name, delimiter=_separator(text))
    lines = [(line, cells) for line, cells in all_lines if any(map(str.strip, cells))]
    if not lines:
        raise InputError(f"{name} is empty. The first line names the columns.")
    header = [cell.strip() for cell in lines[0][1]]
    _check_header(header, name)
    kept = [place for place, column in enumerate(header) if column not in stated]
    width, header = len(header), [*(header[place] for place in kept), *stated]
    kind = kind_of(header, name)
    check_stated(stated, kind)
    rows = []
    for line, cells in lines[1:]:
        left = [*(cells[place] for place in kept if place < len(cells)), *cells[width:]]
        rows.append(_row(kind, header, line, [*left, *stated.values()]))
    return Rows(kind, tuple(header), tuple(rows))


def check_stated(stated: Mapping[str, str], kind: Kind) -> None:
    """Refuse cells of a column that the kind of a file does not have."""
    names = [column.name for column in kind.columns]
    for name in stated:
        if name not in names:
            near = suggestion(name, names)
            raise InputError(
                f"--column {name[:40]}: {kind.name} rows have no such column.{near} They have "
                f"{', '.join(names)}."
            )


def _separator(text: str) -> str:
    """Return the most frequent separator of the first line."""
    first = text.lstrip().partition("\n")[0]
    return max(SEPARATORS, key=first.count)


def _check_header(header: list[str], name: str) -> None:
    if len(header) > LONGEST_HEADER:
        raise InputError(f"{name} line 1 has {len(header)} columns, the limit is {LONGEST_HEADER}.")
    twice = next((cell for cell in header if cell and header.count(cell) > 1), None)
    if twice:
        raise InputError(f"{name} line 1: the column {twice[:40]!r} stands twice. Remove one.")


def _row(kind: Kind, header: list[str], line: int, cells: list[str]) -> Row:
    mistakes = []
    if len(cells) != len(header):
        mistakes.append(f"it has {len(cells)} cells, the header names {len(header)}. Align it.")
        cells = [*cells, *[""] * len(header)][: len(header)]
    read = dict(zip(header, cells, strict=True))
    values: dict[str, Value] = {}
    for column in kind.columns:
        values[column.name] = None
        try:
            values[column.name] = read_cell(column, read.get(column.name, ""))
        except InputError as mistake:
            mistakes.append(str(mistake))
        else:
            if column.required and values[column.name] is None:
                mistakes.append(f"{column.name} is empty. State it.")
    return Row(line, read, values, tuple(mistakes))


LARGEST_COUNT = 2**62
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-12, 1e25
"""Range of any number in SI units, whatever its quantity."""
LONGEST_CELL = 1000
FLAGS = {"0": 0, "0.0": 0, "false": 0, "no": 0, "1": 1, "1.0": 1, "true": 1, "yes": 1}
"""Values of a flag as people and table programs write them."""


def read_cell(column: Column, text: str) -> Value:
    """Value of a cell; None when it is empty."""
    text = text.strip()
    if not text:
        return None
    shown = repr(text if len(text) <= 40 else text[:40] + "…")
    if column.holds == "text":
        return _text(column, text, shown)
    if column.holds == "flag":
        return _flag(column, text, shown)
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        raise InputError(f"{column.name} {shown} is not a number. Write digits only.") from None
    if number == 0 and text.lower().partition("e")[0].strip("+-0.,"):
        raise InputError(f"{column.name} {shown} is too small to be a number. Correct it.")
    if column.holds == "count":
        return _count(column, number, shown)
    if not 0 < number < float("inf"):
        raise InputError(f"{column.name} {shown} is not above 0 and finite. State it in SI units.")
    if not SMALLEST_NUMBER <= number <= LARGEST_NUMBER:
        raise InputError(
            f"{column.name} {shown} is not within {SMALLEST_NUMBER:g} to {LARGEST_NUMBER:g}. "
            "State it in SI units."
        )
    return number


def _flag(column: Column, text: str, shown: str) -> int:
    flag = FLAGS.get(text.lower())
    if flag is None:
        raise InputError(f"{column.name} {shown} is neither 0 nor 1. Write 0 or 1.")
    return flag


def _count(column: Column, number: float, shown: str) -> int | None:
    """Whole number; None for a 0 in an optional column whose values begin above it."""
    if not number.is_integer():
        raise InputError(f"{column.name} {shown} is not a whole number. Write it as digits.")
    if number == 0 < column.least and not column.required:
        return None
    if not column.least <= number <= LARGEST_COUNT:
        raise InputError(
            f"{column.name} {shown} is not between {column.least:g} and 2^62. Correct it."
        )
    return int(number)


def _choice(column: Column, text: str) -> str | None:
    """Choice that a spelling stands for: itself, another spelling, or its first word."""
    plain = text.lower().replace("_", "-").split("(")[0].strip()
    spelled = (plain, plain.replace(" ", "-"), plain.split(" ")[0])
    spellings = {**dict(zip(column.choices, column.choices, strict=True)), **column.also}
    return next((spellings[spelling] for spelling in spelled if spelling in spellings), None)


def _text(column: Column, text: str, shown: str) -> str:
    if len(text) > LONGEST_CELL:
        raise InputError(f"{column.name} {shown} is over {LONGEST_CELL} characters. Shorten it.")
    if not column.choices:
        return text
    choice = _choice(column, text)
    if choice is None:
        near = suggestion(text.lower(), column.choices)
        choices = ", ".join(column.choices)
        raise InputError(
            f"{column.name} {shown} is none of {choices}.{near or ' Use one of them.'}"
        )
    return choice
