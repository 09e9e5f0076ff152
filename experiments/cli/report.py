"""``cluster-sim report``: the stand-alone page of a run directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.common import Json, print_json


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    as_json: Json = False,
) -> int | None:
    """Write report.html of a run directory again, from its run.json and files."""
    from experiments.reports.html import write_report

    page = write_report(folder)
    if as_json:
        print_json({"report": page, "report_bytes": page.stat().st_size})
    else:
        sys.stdout.write(f"{page}\n")
    return None
