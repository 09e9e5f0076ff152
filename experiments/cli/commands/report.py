"""``cluster-sim report``: the stand-alone page of a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from experiments.cli.options.inputs import Invocation
from topologies.options import required


@dataclass(frozen=True)
class ReportInputs:
    """The run directory."""

    folder: Path = required("A run directory", metavar="DIR", argument=True)


def report(inputs: ReportInputs, call: Invocation) -> None:
    """Write the stand-alone page of a run directory again.

    The page is built from run.json and the files beside it, and written to report.html.
    """
    from experiments.reports.html import write_report

    page = write_report(inputs.folder, call.program)
    call.answer(
        {"report": page, "report_bytes": page.stat().st_size},
        lambda _: click.echo(page),
        lambda run, _: run.file("page.html", page.read_bytes(), title=f"Page of {inputs.folder}"),
    )
