"""Sweep: all runs of a study, each run once, in one table."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from filelock import FileLock, Timeout

from cluster_sim.processes import available_workers
from experiments.reports.run_directory import Run
from experiments.reports.run_record import check_writable, digest, new_record
from experiments.sweeps.runner import Outcome, run_in_processes, run_on_dask
from experiments.sweeps.study import Program, Row, Study, results, rows
from topologies.support.errors import InputError, shown, system_reason
from topologies.support.files.writing import named_in_faults, whole_file

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
    """Carry out all runs of a study that are not finished; returns the table of all in order."""
    table = rows(study, program)
    with open_store(Path(out)) if out is not None else nullcontext() as store:
        kept = [] if store is None else [(row.digest, store.finished(row)) for row in table]
        outcomes = {digest: outcome for digest, outcome in kept if outcome is not None}
        missing = list({row.digest: row for row in table if row.digest not in outcomes}.values())
        if missing and dask is not None:
            finishing = run_on_dask(missing, dask, program.run)
        else:
            count = min(workers or available_workers(), len(missing))
            finishing = run_in_processes(missing, count, program.run)
        with closing(finishing):
            for row, outcome in finishing:
                if store is not None:
                    store.keep(row, outcome)
                outcomes[row.digest] = outcome
                if progress is not None:
                    progress(len(outcomes), len({row.digest for row in table}))
        frame = results((row, outcomes[row.digest]) for row in table)
        if store is not None:
            _write_results(store.folder, study, frame)
    return frame


def _write_results(folder: Path, study: Study, frame: pd.DataFrame) -> None:
    """Write table, record and page beside the rows, each file whole, the record last."""
    with named_in_faults(folder), TemporaryDirectory(suffix=".part", dir=folder) as staged:
        part = Path(staged)
        run = Run(part, new_record("sweep", study.model_dump(), None))
        run.table("results", frame, title="Runs", parquet=True)
        run.finish()
        names = sorted(path.name for path in part.iterdir())
        for name in [name for name in names if name != "run.json"] + ["run.json"]:
            (part / name).replace(folder / name)


ROWS, MARK = "rows", "sweep.json"
CHECKSUM = "checksum"
FINAL = ("ok", "refused")
"""Final outcomes; a run that crashed is run again when the sweep is resumed."""


class RowStore:
    """Directory of a sweep, open for one process at a time; see :func:`open_store`."""

    def __init__(self, folder: Path):
        self.folder = folder

    def finished(self, row: Row) -> Outcome | None:
        """Return the outcome of a run; None if it is not finished or its file lost its checksum."""
        try:
            stored = json.loads(self._path(row).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(stored, dict) or stored.get("digest") != row.digest:
            return None
        checksum = stored.pop(CHECKSUM, None)
        whole = checksum == digest(stored) and stored.get("status") in FINAL
        return stored if whole else None

    def keep(self, row: Row, outcome: Outcome) -> None:
        """Write the outcome of a run; when the method returns, it is on disk."""
        entry = {"digest": row.digest, "arguments": list(row.arguments), **outcome}
        stored = {**entry, CHECKSUM: digest(entry)}
        with whole_file(self._path(row)) as part, part.open("w", encoding="utf-8") as file:
            json.dump(stored, file)
            file.flush()
            os.fsync(file.fileno())

    def _path(self, row: Row) -> Path:
        return self.folder / ROWS / f"{row.digest}.json"


@contextmanager
def open_store(folder: Path) -> Iterator[RowStore]:
    """Open a new sweep directory, or an earlier one in order to resume it."""
    check_writable(folder)
    there = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    names = sorted(name for name in there if not name.endswith(".part"))
    if names and MARK not in names:
        raise InputError(f"--out {folder} holds {names[0]}, and no sweep. Choose a new directory.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"--out {folder} cannot be written: {system_reason(fault)}") from None
    if not (folder / MARK).exists():
        with whole_file(folder / MARK) as part:
            part.write_text('{"cluster_sim_sweep": 1}\n')
    try:
        with FileLock(folder / MARK, timeout=0):  # the lock of a killed process does not last
            _prepare(folder)
            yield RowStore(folder)
    except Timeout:
        raise InputError(
            f"another sweep is writing to {folder}. Wait for it, or choose another --out."
        ) from None


def _prepare(folder: Path) -> None:
    """Create the folder of rows, and remove the unfinished files of a killed sweep."""
    rows = folder / ROWS
    if rows.exists() and not rows.is_dir():
        raise InputError(f"{shown(str(rows))} is a file, and rows belong there. Remove it.")
    rows.mkdir(exist_ok=True)
    for left in (*folder.glob("*.part"), *folder.glob(".*.part"), *rows.glob(".*.part")):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
    wrong = next((path for path in sorted(rows.iterdir()) if not path.is_file()), None)
    if wrong is not None:
        raise InputError(
            f"{shown(str(wrong))} is no file, and the result of a run belongs there. Remove it."
        )
