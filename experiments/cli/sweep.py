"""``cluster-sim sweep``: every run of a study, on all processors or a Dask cluster."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.common import Json, Out, Quiet, print_json, print_table
from experiments.cli.progress import telling

if TYPE_CHECKING:
    import pandas as pd

MOST_COLUMNS = 10


def sweep(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="What to run.")],
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; by default one a processor.")
    ] = None,
    dask: Annotated[
        str | None, typer.Option("--dask", metavar="ADDRESS", help="A Dask scheduler instead.")
    ] = None,
    as_json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> int | None:
    """Run a table of parameters; with --out finished runs are kept and never run twice."""
    from experiments.sweeps.study import read_study
    from experiments.sweeps.sweep import sweep as run_sweep

    asked = read_study(study)
    with telling(quiet=quiet) as tell:
        told = partial(tell, "runs")
        frame = run_sweep(asked, out=out, workers=workers, dask=dask, progress=told)
    failed = frame[frame["status"] != "ok"]
    if as_json:
        print_json({"rows": _records(frame), "summary": _summary(frame)})
    else:
        _print(frame, asked.show)
    if len(failed) and not quiet:
        sys.stderr.write(f"{len(failed)} of {len(frame)} rows failed; their message says why\n")
    return None


def _print(frame: pd.DataFrame, show: list[str]) -> None:
    from experiments.reports.formatting import table_text
    from topologies.errors import suggestion

    names = [str(name) for name in frame.columns if name != "message"]
    for name in show:
        if name not in names:  # known only now, and no reason to throw the results away
            sys.stderr.write(f"show: no column is called {name}.{suggestion(name, names)}\n")
    asked = names[: names.index("status") + 1]
    wanted = [name for name in show if name in names] or names
    columns = [*asked, *[name for name in wanted if name not in asked]]
    shown = columns if show else columns[:MOST_COLUMNS]
    failures = [] if frame["message"].eq("").all() else ["message"]
    print_table("", *table_text(frame[shown + failures]), left=len(asked))
    if not show and len(columns) > MOST_COLUMNS:
        sys.stdout.write(f"and {len(columns) - MOST_COLUMNS} more columns; see --json or --out\n")


def _records(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Rows without the columns that they have nothing for."""
    import pandas as pd

    return [
        {str(name): value for name, value in row.items() if not pd.isna(value)}
        for row in frame.astype(object).to_dict("records")
    ]


def _summary(frame: pd.DataFrame) -> dict[str, int]:
    counts = frame["status"].value_counts()
    return {"rows": len(frame), **{str(name): int(count) for name, count in counts.items()}}
