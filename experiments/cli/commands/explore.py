"""``cluster-sim explore``, ``compare`` and ``report``: recorded runs, side by side and as pages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.commands.serve_api import HOST, HOSTS, check_free, only_for
from experiments.cli.options.inputs import Invocation
from experiments.cli.output.printing import print_table, print_text
from experiments.reports.certainty import ratio_sentences
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.support.options import required, setting

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run

TITLE = "cluster-sim explore"


@dataclass(frozen=True)
class ExploreInputs:
    """Run directories, and the page that shows them."""

    runs: tuple[Path, ...] = required(
        "Run directories of train, collective or sweep", metavar="RUN…", argument=True
    )
    port: int = setting(5006, "Port of the page on this machine", least=1, most=65535)
    knobs: int = setting(
        6,
        "Number of sliders, for the catalogue's numbers with the largest effect",
        least=0,
        most=30,
    )


def explore(inputs: ExploreInputs, call: Invocation) -> None:
    """Serve a local page with sliders over runs side by side.

    The sliders change the catalogue's numbers that have the largest effect on the answers.

    The page is served on 127.0.0.1 until Ctrl-C. With --json these numbers and the answers are
    printed instead, and nothing is served.
    """
    from experiments.explore.page import framed, knobs, page, panel, read_runs

    pn = None if call.json else panel()
    if pn is not None:
        check_free(inputs.port)
    runs, sweeps = read_runs(inputs.runs)
    catalogue = shipped_catalogue()
    wanted = inputs.knobs if runs else 0
    if pn is None:
        names = knobs(runs, wanted, catalogue) if wanted else []
        answers = [{"run": run.name, "time_s": run.seconds(catalogue)} for run in runs]
        call.answer({"knobs": names, "rows": answers}, lambda _: None, lambda run, _: None)
        return
    weighed = _weighed(inputs.runs, wanted)
    if not call.quiet:
        sys.stderr.write(f"http://{HOST}:{inputs.port} (Ctrl-C ends it)\n")
    server = pn.serve(
        lambda: framed(page(runs, sweeps, weighed, catalogue), TITLE),
        address=HOST, port=inputs.port, show=False, start=False,
        websocket_origin=[f"{host}:{inputs.port}" for host in HOSTS],
        title=TITLE,
    )  # fmt: skip
    only_for(server._tornado, HOSTS)
    server.start()
    server.io_loop.start()


def _weighed(folders: Sequence[Path], most: int) -> Callable[[], list[str] | None]:
    """Weigh the numbers in another process; the function returned gives their names, or None."""
    # Weighing asks the runs some hundred times, in which the page is already of use.
    if not most:
        return list
    words = [sys.executable, "-m", "cluster_sim", "explore", *map(str, folders)]
    weighing = subprocess.Popen(
        [*words, "--knobs", str(most), "--json", "--quiet"], stdout=subprocess.PIPE
    )

    @cache
    def names() -> list[str]:
        """Read what the process printed; without an answer, its line is on stderr."""
        printed, _ = weighing.communicate()
        return list(json.loads(printed)["knobs"]) if weighing.returncode == 0 else []

    return lambda: None if weighing.poll() is None else names()


@dataclass(frozen=True)
class ComparedRuns:
    """The two run directories."""

    first: Path = required("Run directory that --out wrote", metavar="RUN", argument=True)
    second: Path = required("Another run of the same command", metavar="RUN", argument=True)


def compare(inputs: ComparedRuns, call: Invocation) -> None:
    """Say what differs between two recorded runs, and why.

    The answer lists the options and the results that differ. It says whether the difference is
    beyond the error of two predictions and, for steps, which parts of them it consists of.
    """
    from experiments.reports import differences
    from experiments.reports.differences import change_sentence, question_rows, result_rows

    answer = differences.compare(inputs.first, inputs.second)
    heads = answer["runs"]
    sentences = [*ratio_sentences(answer["ratios"]), change_sentence(answer)]
    for run, only in zip(heads, ("only_first", "only_second"), strict=True):
        sentences += [f"Only {run} has {', '.join(answer[only])}."] if answer[only] else []
    options, numbers = question_rows(answer), result_rows(answer)

    def show(_: Any) -> None:
        """Print both tables, and the sentences on them."""
        if options:
            print_table("", ["asked differently", *heads], options, left=3)
        if numbers:
            print_table("", ["came out differently", *heads, "ratio"], numbers)
        else:
            click.echo("Nothing came out differently.")
        for sentence in filter(None, sentences):
            print_text(sentence)

    def write(run: Run, _: Any) -> None:
        """Write both tables and the whole answer."""
        columns, note = ("name", "first", "second", "ratio"), "\n".join(filter(None, sentences))
        questions, results = (
            [dict(zip(columns, row, strict=False)) for row in rows] for rows in (options, numbers)
        )
        run.table("question", questions, title="Asked differently")
        run.table("metrics", results, title="Came out differently", note=note)
        run.json("results", answer, title="Results")

    call.answer(answer, show, write)


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
