"""``cluster-sim sweep``: every run of a study, on all processors or a Dask cluster."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster_sim.progress import progress_bars
from experiments.cli.main import app, run
from experiments.cli.options.from_fields import parameters
from experiments.cli.options.inputs import Invocation
from experiments.cli.output.printing import print_json, print_table
from experiments.reports.formatting import table_text
from experiments.reports.result_checks import check_results
from topologies.support.errors import shown, suggestion
from topologies.support.options import required, setting

if TYPE_CHECKING:
    import pandas as pd

    from experiments.sweeps.study import Program


MOST_COLUMNS = 10


@dataclass(frozen=True)
class SweepInputs:
    """A study, and the processes that run it."""

    study: Path = required(
        "File with a command and a table of parameters", metavar="STUDY.yaml", argument=True
    )
    workers: int | None = setting(None, "Number of processes", least=1, default="one a processor")
    dask: str | None = setting(
        None,
        "Dask scheduler in place of local processes, such as tcp://host:8786",
        metavar="ADDRESS",
    )
    trust: bool = setting(
        False, "Allow the study to run Python files and to write files that it names"
    )


def sweep(inputs: SweepInputs, call: Invocation) -> int | None:
    """Run a table of parameters on all processors.

    A study with the lines command: train, fixed: {model: llama-3.1-8b, cluster: p5.48xlarge:8} and
    grid: {precision: [bf16, fp8], global-batch: [256, 512]} has four runs.

    With --out, finished runs are kept, and the same sweep started again continues from them. The
    exit status is 1 if a run crashed.
    """
    from experiments.sweeps.study import read_study
    from experiments.sweeps.sweep import sweep as run_sweep

    study, program = read_study(inputs.study), program_of(app, NOT_IN_A_STUDY)
    if not inputs.trust:
        study.check_harmless(program)
    with progress_bars(quiet=call.quiet) as report:
        frame = run_sweep(
            study,
            program,
            out=call.out,
            workers=inputs.workers,
            dask=inputs.dask,
            progress=partial(report, "runs"),
        )
    failed = frame[frame["status"] != "ok"]
    if call.json:
        import pandas as pd

        counts = frame["status"].value_counts()
        by_status = {str(name): int(count) for name, count in counts.items()}
        # Each row is without the columns in which it has no value.
        rows = [
            {str(name): value for name, value in row.items() if not pd.isna(value)}
            for row in frame.astype(object).to_dict("records")
        ]
        document = {"rows": rows, "summary": {"rows": len(frame), **by_status}}
        check_results(document)
        print_json(document)
    else:
        _print(frame, study.show)
    if len(failed) and not call.quiet:
        sys.stderr.write(f"{len(failed)} of {len(frame)} rows failed; their message says why\n")
    return 1 if (frame["status"] == "crashed").any() else None


def _print(frame: pd.DataFrame, show: list[str]) -> None:
    names = [str(name) for name in frame.columns if name != "message"]
    for name in show:
        if name not in names:  # columns are known only now; the results are shown all the same
            sys.stderr.write(f"show: no column is called {shown(name)}.{suggestion(name, names)}\n")
    varied = names[: names.index("status") + 1]
    wanted = [name for name in show if name in names] or names
    columns = [*varied, *[name for name in wanted if name not in varied]]
    visible = columns if show else columns[:MOST_COLUMNS]
    failures = [] if frame["message"].eq("").all() else ["message"]
    print_table("", *table_text(frame[visible + failures]), left=len(varied))
    if not show and len(columns) > MOST_COLUMNS:
        sys.stdout.write(f"and {len(columns) - MOST_COLUMNS} more columns; see --json or --out\n")


NOT_IN_A_STUDY = ("sweep", "report", "explore", "serve-api", "experiment", "list", "doctor")


def program_of(group: click.Group, excluded: tuple[str, ...]) -> Program:
    """Describe a group of commands to sweeps; a command is loaded when a study names it."""
    from experiments.sweeps.study import Program

    commands: Any = group
    names = tuple(commands.list_commands(None))
    return Program(run, names, excluded, lambda name: parameters(commands.get_command(None, name)))
