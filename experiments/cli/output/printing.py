"""Output of commands: one JSON document for programs, tables and amounts for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from experiments.reports.certainty import facts
from experiments.reports.formatting import Column, days_text, heading, number, unit_of
from experiments.reports.run_record import readable
from topologies.support.errors import printable

if TYPE_CHECKING:
    import pandas as pd


NUMBER_STARTS = ("", *"0123456789+-−–±<>~∞")
"""First characters of cells in a column of numbers; a missing number is empty or a dash."""
BOLD = "\033[1m{}\033[0m"
GAP = 2
MOST_REPEATED = 0.4  # largest share of the width for columns that are repeated in a further block


def print_json(document: Mapping[str, Any]) -> None:
    """Write one JSON document, and nothing else, to stdout."""
    sys.stdout.write(readable(document))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    right: bool = False,
) -> None:
    """Print a table for people as wide as the terminal, 80 columns where there is none."""
    # Numbers align right, text and the first ``left`` columns left, all others right with
    # ``right``; columns that do not fit follow in a second table, which repeats the first.
    title, columns = printable(title), [printable(name) for name in columns]
    cells = [[printable(cell) for cell in row] for row in rows]
    width = _terminal_width()
    bold = BOLD if _shows_styles() else "{}"
    lines = [bold.format(line) for line in _wrapped(title, width)] if title else []
    for block in blocks(columns, cells, width, left):
        head, *rest = _lines(columns, cells, block, left, right=right)
        lines += [bold.format(line) for line in head]
        lines += [line for row in rest for line in row]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def print_rows(
    title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], *, left: int = 1
) -> None:
    """Print rows by their columns, as :func:`print_table` does."""
    cells = [[column.text(row) for column in columns] for row in rows]
    print_table(title, [column.heading for column in columns], cells, left=left)


def print_text(text: str, *, bold: bool = False) -> None:
    """Print a text as wide as the terminal; an empty one prints nothing."""
    width = _terminal_width()
    styled = BOLD if bold and _shows_styles() else "{}"
    lines = _wrapped(printable(text), width) if text else []
    sys.stdout.write("".join(f"{styled.format(line)}\n" for line in lines))


def print_paragraphs(title: str, paragraphs: Iterable[tuple[str, str]]) -> None:
    """Print headings with an indented text below each, as wide as the terminal."""
    width = _terminal_width()
    bold = BOLD if _shows_styles() else "{}"
    lines = [bold.format(line) for line in _wrapped(printable(title), width)]
    for name, text in paragraphs:
        lines += _wrapped(printable(name), width)
        lines += [f"    {line}" for line in _wrapped(printable(text), max(1, width - 4))]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def blocks(
    columns: Sequence[str], cells: Sequence[Sequence[str]], width: int, left: int
) -> Iterator[dict[int, int]]:
    """Yield blocks of columns that fit side by side, each column with its width in characters.

    >>> list(blocks(["name", "first", "second"], [["a", "12345678", "1"]], 16, 1))
    [{0: 4, 1: 8}, {0: 4, 2: 6}]
    """
    least = [_least(name, cells, place) for place, name in enumerate(columns)]
    kept: dict[int, int] = {}
    for place in range(min(left, len(columns))):
        if _total({**kept, place: least[place]}) <= width * MOST_REPEATED:
            kept[place] = least[place]
    block = dict(kept)
    for place in [place for place in range(len(columns)) if place not in kept]:
        if len(block) > len(kept) and _total({**block, place: least[place]}) > width:
            yield _widened(block, columns, cells, width)
            block = dict(kept)
        block[place] = least[place]
    yield _widened(block, columns, cells, width)


def _least(name: str, cells: Sequence[Sequence[str]], place: int) -> int:
    """Least width of a column: its longest word; a number and its unit stay on one line."""
    texts = [row[place] for row in cells]
    if all(text[:1] in NUMBER_STARTS for text in texts):
        return max([len(word) for word in name.split()] + [len(text) for text in texts] + [1])
    return max([len(word) for text in (name, *texts) for word in text.split()] + [1])


def _widened(
    block: Mapping[int, int], columns: Sequence[str], cells: Sequence[Sequence[str]], width: int
) -> dict[int, int]:
    """Widen columns whose cells would wrap by the spare width, the smallest need first."""
    widths = dict(block)
    wanted = {
        place: max(
            len(line)
            for text in (columns[place], *(row[place] for row in cells))
            for line in (text.splitlines() or [""])
        )
        for place in block
    }
    for _ in range(width, _total(widths)):  # no column is wider than the terminal
        widest = max(widths, key=lambda place: widths[place])
        widths[widest] = max(1, widths[widest] - 1)
    spare = max(0, width - _total(widths))
    for place in sorted(block, key=lambda place: wanted[place] - widths[place]):
        more = min(spare, max(0, wanted[place] - widths[place]))
        widths[place] += more
        spare -= more
    return widths


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _lines(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    block: Mapping[int, int],
    left: int,
    *,
    right: bool,
) -> Iterator[list[str]]:
    """Lines of the header, aligned at the bottom, then those of each row, aligned at the top."""
    numbers = {
        place
        for place in block
        if place >= left and (right or all(row[place][:1] in NUMBER_STARTS for row in cells))
    }
    for place_of_row, row in enumerate((columns, *cells)):
        parts = {place: _wrapped(row[place], width) for place, width in block.items()}
        high = max(map(len, parts.values()))
        for place, lines in parts.items():
            empty = [""] * (high - len(lines))
            parts[place] = lines + empty if place_of_row else empty + lines
        yield [
            (" " * GAP)
            .join(
                parts[place][line].rjust(width)
                if place in numbers
                else parts[place][line].ljust(width)
                for place, width in block.items()
            )
            .rstrip()
            for line in range(high)
        ]


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines between words; a word wider than the column is broken."""
    from textwrap import wrap

    wrapped = (
        wrap(line, width, break_on_hyphens=False, expand_tabs=False, replace_whitespace=False)
        for line in text.split("\n")
    )
    return [part for lines in wrapped for part in lines or [""]]


def _terminal_width() -> int:
    return get_terminal_size((80, 24)).columns


def _shows_styles() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


SPENT = (
    Column("cost_usd", "price"),
    Column("usd_per_million_tokens", "  USD a million tokens", write="{:,.3g}".format),
    Column("energy_joules", "energy"),
)
"""Price and energy of a run."""
WHOLE_JOB = (
    Column("tokens", "tokens"),
    Column("days", "length", write=days_text),
    *SPENT,
    Column("goodput", "goodput"),
    Column("failures", "failures", write="{:,.1f}".format),
    Column("spare_chips", "spare chips, in price and energy"),
)


def print_whole_job(document: Mapping[str, Any]) -> None:
    """Print length, price and energy of the job that a step belongs to; nothing without one."""
    if job := document.get("job"):
        usd = job.get("budget_usd")
        size = f"{number(job['tokens'])} tokens" if usd is None else f"at most {usd:,} USD"
        print_table("", [f"job of {size}", "value"], facts(WHOLE_JOB[usd is None :], job), left=2)
        for note in job.get("notes", ()):
            print_text(f"As run-job says: {note}")


SI_UNITS = {"_joules": " [J]", "_usd": " [USD]", "_s": " [s]"}
"""Units of numbers that stand in one column with others, by the end of their name."""


def interval_frame(document: Mapping[str, Any], *columns: Column) -> pd.DataFrame:
    """Return every result that has an interval, one row a result, by the names of its columns."""
    import pandas as pd

    ends, names = document["interval"], {column.name: column.heading.strip() for column in columns}
    rows = [
        (
            f"{names.get(name) or heading(name)}{SI_UNITS.get(unit_of(f'_{name}'), '')}",
            name,
            *(ends[name]["low"], document[name], ends[name]["high"]),
        )
        for name in ends
        if isinstance(ends[name], Mapping) and name in document
    ]
    return pd.DataFrame(rows, columns=["result", "name", "low", "value", "high"])
