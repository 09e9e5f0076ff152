"""What every command shares: options, one JSON document, tables."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
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
