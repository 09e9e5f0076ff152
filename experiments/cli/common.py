"""What every command shares: options, one JSON document, tables, progress."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, SI units.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Write a run directory there.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The only source of randomness.")]
ENGINES = ("fast", "reference")


def _known_engine(name: str) -> str:
    from topologies.errors import InputError, suggestion

    if name not in ENGINES:
        near = suggestion(name, ENGINES)
        raise InputError(f"unknown engine {name!r}.{near} Use {' or '.join(ENGINES)}.")
    return name


Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        callback=_known_engine,
        help="reference (SimPy) or fast (compiled): the same integers.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
Bandwidth = Annotated[
    str | None,
    typer.Option("--bandwidth", help="Of each directed link of a plain shape, as 100GB/s."),
]
Latency = Annotated[
    str | None, typer.Option("--latency", help="Of each link of a plain shape, as 1us.")
]
Variant = Annotated[
    list[str] | None,
    typer.Option(
        "--variant", metavar="PART.QUANTITY=NAME", help="Use a contested value's alternative."
    ),
]
Overlay = Annotated[
    Path | None,
    typer.Option(
        "--catalogue", metavar="FILE.csv", help="Catalogue rows that replace shipped ones."
    ),
]
WIDEST = 200
"""Columns of a table that is not printed to a terminal."""
NUMBER_STARTS = ("", *"0123456789+-−±<>~∞")
"""What the cells of a column of numbers begin with; a missing one is empty or a dash."""

ClusterText = Annotated[
    str, typer.Argument(metavar="CLUSTER", help="Named machine, shape or YAML.")
]


def plain(value: Any) -> Any:
    """Turn numpy scalars, arrays, paths and non-finite floats into what JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def print_json(document: Mapping[str, Any]) -> None:
    """Write exactly one JSON document to stdout."""
    sys.stdout.write(json.dumps(plain(document), indent=2, allow_nan=False) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1
) -> None:
    """Print a table for people: numbers align right, text and the first ``left`` columns left."""
    from rich.console import Console
    from rich.table import Table

    cells = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for position, name in enumerate(columns):
        numbers = all(row[position][:1] in NUMBER_STARTS for row in cells)
        right = position >= left and numbers
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    wide = Console().is_terminal
    Console(width=None if wide else WIDEST, highlight=False, soft_wrap=not wide).print(table)


def progress(items: Sequence[Any], what: str, *, quiet: bool) -> Iterator[Any]:
    """Yield the items; once two seconds have passed, say on stderr how many are done."""
    begun = last = time.monotonic()
    shown = False
    for done, item in enumerate(items):
        now = time.monotonic()
        if not quiet and now - begun > 2 and now - last > 0.5:
            sys.stderr.write(f"\r{what}: {done} of {len(items)} ({now - begun:.0f} s) ")
            sys.stderr.flush()
            last, shown = now, True
        yield item
    if shown:
        sys.stderr.write(f"\r{what}: {len(items)} of {len(items)}\n")


def teller() -> Callable[[str, int, int], None]:
    """Return a function of what is done, how much of it and of how much, for runs that report.

    It is silent for two seconds, then writes to stderr.
    """
    begun = last = time.monotonic()

    def tell(what: str, done: int, whole: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - begun > 2 and (now - last > 0.5 or done == whole):
            end = "\n" if done == whole else ""
            sys.stderr.write(f"\r{what}: {done} of {whole} ({now - begun:.0f} s) {end}")
            sys.stderr.flush()
            last = now

    return tell
