"""The directory that ``--out`` names: what may be replaced there, and how a run appears whole.

A run is written to a hidden directory beside its target, which is renamed at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from experiments.reports.run_record import RECORD, REPORT, read_record
from topologies.errors import InputError, shown, system_reason
from topologies.files.writing import OLD, named_in_faults, remove_orphans, unfinished


@contextmanager
def whole_directory(path: str | Path) -> Iterator[Path]:
    """Give a hidden directory to write to; on success it takes the name of ``path``.

    An error, Ctrl-C or SIGTERM inside the ``with`` leaves nothing behind, and leaves an earlier run
    directory at ``path`` unchanged.
    """
    target = _resolved(path)
    check_replaceable(target)
    part = unfinished(target)
    with _termination_as_exit(), named_in_faults(target), _parents(target):
        remove_orphans(target)
        _make(part, path)
        try:
            yield part
            check_replaceable(target)
            _put_in_place(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def check_replaceable(path: Path) -> None:
    """Check that a path is new, empty or an earlier run; to be called before a long computation."""
    check_writable(path)
    if not path.exists():
        return
    names = sorted(entry.name for entry in path.iterdir())
    if not names:
        return
    try:
        ours = {*read_record(path)["files"], RECORD, REPORT}
    except InputError:
        ours = set()
    foreign = [name for name in names if name not in ours]
    if foreign:
        raise InputError(
            f"--out {path} holds {foreign[0]}, which no run of cluster-sim wrote. "
            "Choose a new directory."
        )


def check_writable(path: Path) -> None:
    """Check that a directory can be created at a path, as far as this can be known beforehand."""
    _resolved(path)
    try:
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    except OSError as fault:
        raise InputError(f"--out {path} cannot be a directory: {system_reason(fault)}") from None
    if not nearest.is_dir():
        what = "is" if nearest == path else f"is below {nearest}, which is"
        raise InputError(f"--out {path} {what} a file. Choose a new directory.")
    if nearest != path or not any(path.iterdir()):
        _try_to_write(nearest, path)


def _resolved(path: str | Path) -> Path:
    """Return the path that links lead to; those that lead to each other are refused."""
    with suppress(OSError, RuntimeError, ValueError):
        resolved = Path(path).resolve()
        # Python 3.13 and later leave a link that leads back to itself where earlier ones raise.
        if not any(map(os.path.islink, (resolved, *resolved.parents))):
            return resolved
    raise InputError(
        f"--out {shown(str(path))} cannot be a directory: its links lead nowhere. "
        "Choose a new directory."
    )


def _try_to_write(folder: Path, path: Path) -> None:
    """Create a directory and remove it again, because permissions alone do not tell enough."""
    probe = folder / f".{os.getpid()}.probe"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as fault:
        raise InputError(
            f"--out {path} cannot be written: nothing can be made in {folder} "
            f"({fault.strerror}). Choose another directory."
        ) from None


def _make(folder: Path, written: str | Path) -> None:
    try:
        folder.mkdir()
    except OSError as fault:
        raise InputError(f"--out {written} cannot be written: {system_reason(fault)}") from None


@contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Create the directories above the target, and remove the new ones if the run fails."""
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputError(f"--out {target} cannot be written: {system_reason(fault)}") from None
    try:
        yield
    except BaseException:
        for parent in missing:
            if not any(parent.iterdir()):
                parent.rmdir()
        raise


def _put_in_place(part: Path, target: Path) -> None:
    if not target.exists():
        part.rename(target)
        return
    old = part.with_suffix(OLD)
    target.rename(old)
    try:
        part.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that the unfinished files are removed as after Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
