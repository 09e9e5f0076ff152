"""Sweep: all runs of a study, each run once, in one table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pandas as pd

from cluster_sim.processes import available_workers
from experiments.reports.run_directory import Run
from experiments.reports.run_record import new_record
from experiments.sweeps.command_line import Program
from experiments.sweeps.runner import Outcome, run_in_processes
from experiments.sweeps.store import RowStore, open_store
from experiments.sweeps.study import Row, Study, results, rows
from topologies.files.writing import named_in_faults

Outcomes = dict[str, Outcome]
Progress = Callable[[int, int], None]


def sweep(
    study: Study,
    program: Program,
    *,
    out: str | Path | None = None,
    workers: int | None = None,
    dask: str | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Carry out all runs of a study that have not finished yet.

    Returns the table of :func:`experiments.sweeps.study.results`, in the order of the study.
    """
    table = rows(study, program)
    with open_store(Path(out)) if out is not None else nullcontext() as store:
        outcomes = _stored(table, store)
        missing = list({row.digest: row for row in table if row.digest not in outcomes}.values())
        with closing(_outcomes(missing, workers, dask, program)) as arriving:
            for row, outcome in arriving:
                if store is not None:
                    store.keep(row, outcome)
                outcomes[row.digest] = outcome
                if progress is not None:
                    progress(len(outcomes), len({row.digest for row in table}))
        frame = results((row, outcomes[row.digest]) for row in table)
        if store is not None:
            _write_results(store.folder, study, frame)
    return frame


def _stored(table: Sequence[Row], store: RowStore | None) -> Outcomes:
    if store is None:
        return {}
    finished = ((row.digest, store.finished(row)) for row in table)
    return {digest: outcome for digest, outcome in finished if outcome is not None}


def _outcomes(
    missing: Sequence[Row], workers: int | None, dask: str | None, program: Program
) -> Generator[tuple[Row, Outcome]]:
    if not missing:
        return
    if dask is not None:
        from experiments.sweeps.dask_cluster import run_on_dask  # takes a second to load

        yield from run_on_dask(missing, dask, program.run)
        return
    yield from run_in_processes(
        missing, min(workers or available_workers(), len(missing)), program.run
    )


def _write_results(folder: Path, study: Study, frame: pd.DataFrame) -> None:
    """Write table, record and page beside the rows, each file whole, the record last."""
    with named_in_faults(folder), _staging(folder) as part:
        run = Run(part, new_record("sweep", study.model_dump(), None))
        run.table("results", frame, title="Runs", parquet=True)
        run.finish()
        names = sorted(path.name for path in part.iterdir())
        for name in [name for name in names if name != "run.json"] + ["run.json"]:
            (part / name).replace(folder / name)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    part = folder / "results.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
