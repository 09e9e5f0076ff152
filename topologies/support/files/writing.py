"""Files and directories that appear whole: written as hidden siblings, then renamed."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from topologies.support.errors import InputError

PART = ".part"  # suffix of a file or directory that is being written
OLD = ".old"  # suffix of an earlier directory while a new one takes its place
GZIP_LEVEL = 2
"""Compression level; on a timeline it takes two thirds of the time of level 3 for 3% more bytes."""
GZIP_WINDOW = 31
"""zlib's ``wbits``: 15 for the largest window, and 16 for the header and trailer of a gzip file."""


def unfinished(path: Path) -> Path:
    """Return the hidden path that this process writes to before it becomes ``path``."""
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}{PART}")


def remove_orphans(path: Path) -> None:
    """Remove what dead processes of this host left unfinished in the folder of ``path``."""
    left = re.compile(rf"\.(.+)\.{_host()}-(\d{{1,18}})({PART}|{OLD})", re.ASCII | re.DOTALL)
    try:
        names = os.listdir(path.parent)
    except OSError:
        return
    for match in filter(None, map(left.fullmatch, names)):
        target, process, suffix = match.groups()
        orphan = path.with_name(match[0])
        if _is_alive(int(process)):
            continue
        if suffix == OLD and not orphan.with_name(target).exists():
            orphan.rename(orphan.with_name(target))  # killed between two renames: nothing is lost
        else:
            with suppress(OSError):
                if orphan.is_dir() and not orphan.is_symlink():
                    shutil.rmtree(orphan, ignore_errors=True)
                else:
                    orphan.unlink()


def check_target(path: Path) -> None:
    """Refuse a path at which no file can be written."""
    if "\0" in path.name:
        raise InputError(f"cannot write {path}: its name holds a zero byte. Choose another name.")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no directory {path.parent}. Create it.")
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: it is no file. Choose another name.")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary sibling that takes the name of ``path`` on success, and else is removed."""
    check_target(path)
    remove_orphans(path)
    part = unfinished(path)
    try:
        with named_in_faults(path):
            yield part
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_gzip(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write parts as a gzip file, whole or not at all, without a name and a time."""
    packer = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW)
    with whole_file(path) as unfinished_file, unfinished_file.open("wb") as file:
        for part in parts:
            file.write(packer.compress(part))
        file.write(packer.flush())


@contextmanager
def whole_files(folder: Path) -> Iterator[Path]:
    """Give a hidden folder whose files appear in ``folder``, made if need be, all or none."""
    remove_orphans(folder)
    part, is_new = unfinished(folder), not folder.exists()
    with named_in_faults(folder):
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.mkdir()
            yield part
            if is_new:
                part.rename(folder)
                return
            for path in sorted(part.iterdir()):
                path.replace(folder / path.name)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def named_in_faults(path: Path) -> Iterator[None]:
    """Name the target, and not its hidden sibling, in errors of the operating system."""
    # A full disk names no file by itself, and pyarrow raises errors without a number.
    try:
        yield
    except OSError as fault:
        if fault.errno is None:
            raise InputError(f"{path} cannot be written: {fault}. Choose another place.") from None
        hidden = str(path) if fault.filename is None else str(fault.filename)
        target = hidden.replace(str(unfinished(path)), str(path))
        raise OSError(fault.errno, fault.strerror, target) from None


def _host() -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in os.uname().nodename)[:40]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks whether the process exists
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it exists, but belongs to another user
        return True
    return True
