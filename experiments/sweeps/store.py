"""Finished runs of a sweep on disk, one file a run, each written whole and never run twice."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from experiments.reports.out_directory import check_writable
from experiments.reports.run_record import digest
from experiments.sweeps.runner import Outcome
from experiments.sweeps.study import Row
from topologies.errors import InputError, shown, system_reason
from topologies.files.writing import whole_file

ROWS, MARK = "rows", "sweep.json"
CHECKSUM = "checksum"
FINAL = ("ok", "refused")
"""Final outcomes; a run that crashed is run again when the sweep is resumed."""


class RowStore:
    """Directory of a sweep, open for one process at a time; see :func:`open_store`."""

    def __init__(self, folder: Path):
        self.folder = folder

    def finished(self, row: Row) -> Outcome | None:
        """Return the outcome of a run; None if it has not finished or its file is damaged.

        A file is read only if it has the checksum of its content, so a run with a changed digit is
        run again.
        """
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
    _check_foreign(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"--out {folder} cannot be written: {system_reason(fault)}") from None
    if not (folder / MARK).exists():
        with whole_file(folder / MARK) as part:
            part.write_text('{"cluster_sim_sweep": 1}\n')
    with _claimed(folder):
        _prepare(folder)
        yield RowStore(folder)


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


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Lock the directory for this process; the lock of a killed process does not last."""
    lock = FileLock(folder / MARK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"another sweep is writing to {folder}. Wait for it, or choose another --out."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _check_foreign(folder: Path) -> None:
    """Check that a directory is new, empty or that of a sweep."""
    check_writable(folder)
    if not folder.exists():
        return
    names = {entry.name for entry in folder.iterdir() if entry.suffix != ".part"}
    if not names or MARK in names:
        return
    raise InputError(
        f"--out {folder} holds {sorted(names)[0]}, and no sweep. Choose a new directory."
    )
