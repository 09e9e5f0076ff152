"""Users' CSV files as DataFrames, and cells that table programs show as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topologies.support.errors import InputError, system_reason
from topologies.support.files.reading import check_regular

if TYPE_CHECKING:
    import pandas as pd


TRUTHS = {
    "True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False
}  # fmt: skip
FORMULA = re.compile(r"[=@\t\r]|[+-](?![0-9.]+(e[+-]?[0-9]+)? ?%?$|inf$|$)")
"""Beginning of text that table programs take for a formula; a number is none."""
WHOLE = re.compile(r"\s*[+-]?\d{1,18}\s*")
METRICS = re.compile(r"# (HELP|TYPE) |[A-Za-z_:][\w:]*(\{.*\})? [-+\d.eE]+( \d+)?\s*$")
"""First line of a scrape of Prometheus: what a metric is, or its value."""


def as_text(cell: Any) -> Any:
    """Return a cell such that table programs show text that looks like a formula as text.

    Names come from users' files, and a spreadsheet would compute what begins with one of ``=+-@``.

    >>> as_text("=1+1"), as_text("-3.5 %"), as_text("-O2"), as_text(-3)
    ("'=1+1", '-3.5 %', "'-O2", -3)
    """
    return f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell


def as_named(cell: Any) -> Any:
    """Return a cell without the mark of :func:`as_text`."""
    is_marked = isinstance(cell, str) and cell.startswith("'") and FORMULA.match(cell[1:])
    return cell[1:] if is_marked else cell


def check_no_metrics(first: str, named: str, remedy: str) -> None:
    """Refuse a file by its first line if it is a scrape of Prometheus, which has no rows."""
    if METRICS.match(first):
        raise InputError(
            f"{named} has metrics of one moment, a scrape of Prometheus, and no rows; {remedy}."
        )


def read_table(
    path: str | Path, what: str, *, remedy: str, limit_bytes: int, **how: Any
) -> pd.DataFrame:
    """Read a CSV file with a header, in UTF-8, with or without a byte order mark."""
    import pandas as pd

    file = Path(path)
    named = f"{what} file {file}"
    try:
        if file.is_dir():
            raise InputError(f"{named} is a directory; {remedy}.")
        check_regular(file, name=named, limit_bytes=limit_bytes)
        with file.open(encoding="utf-8-sig") as lines:
            check_no_metrics(lines.readline(1000), named, remedy)
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
    if len(table.columns) == 1 and (marks := re.search("[;\t|]", str(table.columns[0]))):
        raise InputError(
            f"{named} separates its columns by {marks[0]!r}; save it with commas between columns "
            "and points in numbers."
        )
    if table.empty:
        raise InputError(f"{named} has no rows below its header; add some.")
    return table
