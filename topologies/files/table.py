"""A small table of named columns, which can be converted to a DataFrame and back, and users' CSV
files.

Importing pandas takes longer than most commands. Tables of a few hundred rows that are only
written to files and pages do not need it.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topologies.errors import InputError, system_reason
from topologies.files.reading import check_regular, csv_lines, no_such_file, read_text

if TYPE_CHECKING:
    import pandas as pd


MISSING = frozenset(
    ("", "NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "<NA>", "NaN", "nan", "-NaN", "-nan",
     "null", "NULL", "None", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")
)  # fmt: skip
"""Text of empty cells of a CSV file; pandas recognises the same."""
TRUTHS = {
    "True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False
}  # fmt: skip
FORMULA = re.compile(r"[=@\t\r]|[+-](?![0-9.]+(e[+-]?[0-9]+)? ?%?$|inf$|$)")
"""Beginning of text that table programs take for a formula; a number is none."""
WHOLE = re.compile(r"\s*[+-]?\d{1,18}\s*")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length by their name.

    ``columns``: values of Python; what is missing among numbers or words is NaN, as in a DataFrame.

    >>> table = Table.of_rows([{"ranks": 8, "time_s": 0.5}, {"ranks": 16}])
    >>> table["ranks"], table["time_s"], len(table)
    ([8, 16], [0.5, nan], 2)
    >>> print(table.csv(), end="")
    ranks,time_s
    8,0.5
    16,
    """

    columns: Mapping[str, list[Any]]

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Table:
        """Return a table of rows; where a row lacks a name, the value is missing."""
        names = dict.fromkeys(name for row in rows for name in row)
        return cls({name: _alike([row.get(name) for row in rows]) for name in names})

    @classmethod
    def of(cls, frame: Table | pd.DataFrame) -> Table:
        """Convert a DataFrame; a named index becomes columns. A Table is returned unchanged."""
        if isinstance(frame, Table):
            return frame
        if any(name is not None for name in frame.index.names):
            frame = frame.reset_index()
        names = [str(name) for name in frame.columns]
        return cls({name: _without_na(frame.iloc[:, k]) for k, name in enumerate(names)})

    def frame(self) -> pd.DataFrame:
        """Return the table as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(dict(self.columns))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the values row by row."""
        return list(zip(*self.columns.values(), strict=True))

    def documents(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows()]

    def head(self, count: int) -> Table:
        """Return the first rows."""
        return Table({name: values[:count] for name, values in self.columns.items()})

    def without(self, names: Iterable[str]) -> Table:
        """Return the table without the columns of these names; names that it lacks are ignored."""
        dropped = set(names)
        return Table({name: held for name, held in self.columns.items() if name not in dropped})

    def beside(self, **same: Any) -> Table:
        """Return the table with further columns, each with the same value in all rows."""
        return Table(
            {**self.columns, **{name: [value] * len(self) for name, value in same.items()}}
        )

    def renamed(self, names: Mapping[str, str]) -> Table:
        """Return the table with columns renamed from the keys to the values of a mapping."""
        return Table({names.get(name, name): held for name, held in self.columns.items()})

    def csv(self) -> str:
        """Return the text of a CSV file, as ``DataFrame.to_csv(index=False)`` writes it."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(as_text, self.columns))
        writer.writerows(tuple("" if is_missing(cell) else as_text(cell) for cell in row)
                         for row in self.rows())  # fmt: skip
        return text.getvalue()

    def is_number(self, name: str) -> bool:
        """Return whether a column holds numbers (or truth values) only; missing ones are NaN."""
        held = self.columns[name]
        return bool(held) and all(isinstance(value, int | float) for value in held)


def _without_na(column: pd.Series[Any]) -> list[Any]:
    """Values of a column, with NaN in place of ``pandas.NA``."""
    return [math.nan if type(value).__name__ == "NAType" else value for value in column.tolist()]


def as_number(value: Any) -> float:
    """Return the number in a cell, which may be text; NaN if it is no number."""
    if isinstance(value, str):
        (value,) = _typed([value])
    return math.nan if isinstance(value, str) else float(value)


def as_text(cell: Any) -> Any:
    """Return a cell such that table programs show text that looks like a formula as text.

    Names come from users' files, and a spreadsheet would compute what begins with one of ``=+-@``.

    >>> as_text("=1+1"), as_text("-3.5 %"), as_text("-O2"), as_text(-3)
    ("'=1+1", '-3.5 %', "'-O2", -3)
    """
    return f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell


def _as_named(text: str) -> str:
    """Text of a cell without the mark of :func:`as_text`."""
    return text[1:] if text.startswith("'") and FORMULA.match(text[1:]) else text


def is_missing(value: Any) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def read_csv(path: Path, most_rows: int, limit_bytes: int) -> Table:
    """Read the first rows of a CSV file; a column is read as int, float, bool or str."""
    lines = csv_lines(read_text(path, limit_bytes=limit_bytes, name=path.name), path.name)
    names = next((cells for _, cells in lines), None)
    if names is None:
        raise InputError(f"{path.name} has no columns; its first line must name them.")
    rows = list(islice(lines, most_rows))
    for line, cells in rows:
        if len(cells) != len(names):
            raise InputError(
                f"{path.name} line {line}: {len(cells)} cells under {len(names)} names of columns. "
                "Align it."
            )
    columns = list(zip(*(cells for _, cells in rows), strict=True)) or [()] * len(names)
    return Table({
        name: _typed(texts) for name, texts in zip(_distinct(names), columns, strict=True)
    })  # fmt: skip


def _distinct(names: Sequence[str]) -> list[str]:
    """Names of columns; a number is appended to repeated ones."""
    result: dict[str, None] = {}
    for name in names:
        number, free = 0, name
        while free in result:
            number += 1
            free = f"{name}.{number}"
        result[free] = None
    return list(result)


def _typed(texts: Sequence[str]) -> list[Any]:
    """Convert the cells of a column to int, bool or float if all of them allow it."""
    present = [text for text in texts if text not in MISSING]
    if len(present) == len(texts):
        if all(WHOLE.fullmatch(text) for text in texts):
            return [int(text) for text in texts]
        if all(text in TRUTHS for text in texts):
            return [TRUTHS[text] for text in texts]
    try:
        if any("_" in text for text in present):
            raise ValueError
        return [math.nan if text in MISSING else float(text) for text in texts]
    except ValueError:
        return [math.nan if text in MISSING else _as_named(text) for text in texts]


def _alike(values: list[Any]) -> list[Any]:
    """Replace missing values of a column of text or numbers by NaN; int becomes float then."""
    present = [value for value in values if not is_missing(value)]
    if len(present) == len(values):
        return values
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        return [math.nan if is_missing(value) else float(value) for value in values]
    if all(isinstance(value, str) for value in present):
        return [math.nan if is_missing(value) else value for value in values]
    return values


def read_table(
    path: str | Path, what: str, *, remedy: str, limit_bytes: int, **how: Any
) -> pd.DataFrame:
    """Read a CSV file with a header, in UTF-8, with or without a byte order mark."""
    import pandas as pd

    file = Path(path)
    named = f"{what} file {file}"
    try:
        _check(file, named, remedy, limit_bytes)
        table: pd.DataFrame = pd.read_csv(file, encoding="utf-8-sig", compression=None, **how)
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{named} is not UTF-8 text; save it as CSV in UTF-8.") from None
    except pd.errors.EmptyDataError:
        raise InputError(f"{named} is empty; its first line names the columns.") from None
    except OSError as fault:
        raise InputError(f"{named} cannot be read: {system_reason(fault)}") from None
    except ValueError as fault:
        reason = " ".join(str(fault).split())
        raise InputError(f"{named} is not a readable CSV: {reason}. Correct it.") from None
    if table.empty:
        raise InputError(f"{named} has no rows below its header; add some.")
    return table


def _check(file: Path, named: str, remedy: str, limit_bytes: int) -> None:
    """Refuse a file that is missing, a directory, not regular, or too large."""
    if not file.exists():
        raise InputError(f"{named} cannot be read: {no_such_file(file)} Or {remedy}.")
    if file.is_dir():
        raise InputError(f"{named} is a directory; {remedy}.")
    check_regular(file, name=named)
    size = file.stat().st_size
    if size > limit_bytes:
        raise InputError(
            f"{named} has {size:,} bytes, over the limit of {limit_bytes:,}; "
            "split or aggregate it first."
        )
