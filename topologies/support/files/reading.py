"""Reading of files that users name, with limits on their size and one wording for all mistakes."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topologies.support.errors import InputError, shown, suggestion, system_reason
from topologies.support.units import format_bytes

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


MOST_ENTRIES = 2000
MOST_NAMED = 3


def no_such_file(path: str | Path) -> str:
    """Say in which folder a file is missing, and which file there the user may have meant."""
    file = Path(path)
    folder = Path(os.path.abspath(file.parent))
    missing = next(
        (above for above in (*reversed(folder.parents), folder) if not os.path.isdir(above)), None
    )
    if missing is not None:
        return f"there is no folder {shown(str(missing))}. Correct the path."
    names = _names(folder)
    near = suggestion(file.name, names)
    same_kind = [name for name in names if file.suffix and name.endswith(file.suffix)]
    holds = "" if near or not file.suffix else f", {_listed(same_kind, file.suffix)}"
    return f"there is no such file in {shown(str(folder))}{holds}.{shown(near)} Correct the path."


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, MOST_ENTRIES))
    except OSError:  # a folder that may not be listed
        return []


def _listed(names: list[str], suffix: str) -> str:
    if not names:
        return f"which holds no {shown(suffix)} file"
    more = len(names) - MOST_NAMED
    listed = ", ".join(shown(name) for name in names[:MOST_NAMED])
    others = f" and {more:,} more {shown(suffix)} files" if more > 0 else ""
    return f"which holds {listed}{others}"


KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
"""Names of the kinds of file that are not read."""


def read_bytes(
    file: Path | Traversable, *, limit_bytes: int, name: str = "", remedy: str = ""
) -> bytes:
    """Return the content of a regular file."""
    named = shown(name or str(file))
    if not isinstance(file, Path):
        return file.read_bytes()  # a resource of this program
    try:
        with open(file, "rb", opener=open_regular) as stream:
            content = stream.read(limit_bytes + 1)
    except (OSError, ValueError) as fault:
        raise InputError(_unreadable(named, file, fault)) from None
    if len(content) > limit_bytes:
        raise InputError(
            f"{named} is over the limit of {format_bytes(limit_bytes)}. {remedy}".rstrip()
        )
    return content


def check_regular(file: str | Path, *, name: str = "", limit_bytes: int | None = None) -> Path:
    """Return the path of a regular file of at most ``limit_bytes``; refuse any other."""
    path, named = Path(file), shown(name or str(file))
    try:
        with open(path, "rb", opener=open_regular) as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
    except (OSError, ValueError) as fault:
        raise InputError(_unreadable(named, path, fault)) from None
    if limit_bytes is not None and size_bytes > limit_bytes:
        limit = format_bytes(limit_bytes)
        raise InputError(
            f"{named} has {size_bytes:,} bytes, over the limit of {limit}; split it first."
        )
    return path


def open_regular(path: str, flags: int) -> int:
    """Open a regular file, as an ``opener`` for :func:`open` that never waits for a writer."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    kind = KINDS.get(stat.S_IFMT(os.fstat(descriptor).st_mode))
    if kind is None:
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"it is {kind}, and only regular files are read")


def _unreadable(named: str, path: Path, fault: OSError | ValueError) -> str:
    if isinstance(fault, FileNotFoundError):
        return f"{named} cannot be read: {no_such_file(path)}"
    return f"{named} cannot be read: {system_reason(fault)}"


def read_text(
    file: Path | Traversable,
    *,
    limit_bytes: int,
    name: str = "",
    remedy: str = "",
    lenient: bool = False,
) -> str:
    """Return the text of a regular file in UTF-8, without a byte order mark."""
    content = read_bytes(file, limit_bytes=limit_bytes, name=name, remedy=remedy)
    return decoded(content, shown(name or str(file)), lenient=lenient)


def decoded(content: bytes, named: str, *, lenient: bool = False) -> str:
    """Decode UTF-8 text, without its byte order mark."""
    try:
        return content.decode("utf-8-sig", errors="replace" if lenient else "strict")
    except UnicodeDecodeError as mistake:
        line = content.count(b"\n", 0, mistake.start) + 1
        raise InputError(f"{named} line {line}: not UTF-8 text. Save it in UTF-8.") from None


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, in which no key may stand twice, as one value would be unread."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice, 40)} appears twice")
    return fields


def json_value(content: str | bytes, named: object, remedy: str) -> Any:
    """Return the value of a JSON text, none of whose objects has a key twice."""
    try:
        return json.loads(content, object_pairs_hook=once_each)
    except (ValueError, RecursionError) as mistake:
        why = " ".join(str(mistake).split())[:100]
        raise InputError(f"{named} is not JSON ({why}). {remedy}") from None


def csv_lines(text: str, named: str, *, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line of a CSV text, with the line number; empty lines are skipped."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as mistake:
        raise InputError(
            f"{named} line {reader.line_num}: not CSV ({mistake}). Correct the line."
        ) from None


def csv_rows(
    text: str, named: str, *, delimiter: str = ","
) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Return a CSV text's header and rows with their line numbers, stripped, without empty ones."""
    lines = csv_lines(text, named, delimiter=delimiter)
    _, cells = next(lines, (1, []))
    header = [cell.strip() for cell in cells]
    repeated = [column for column in header if column and header.count(column) > 1]
    if repeated:
        raise InputError(
            f"{named} line 1: the column {shown(repeated[0])!r} appears twice. Leave one out."
        )
    return header, _rows(lines, header, named)


def _rows(
    lines: Iterable[tuple[int, list[str]]], header: Sequence[str], named: str
) -> Iterator[tuple[int, dict[str, str]]]:
    for line, cells in lines:
        if len(cells) != len(header):
            raise InputError(
                f"{named} line {line}: it has not as many cells as the header has columns. "
                "Align it."
            )
        yield line, dict(zip(header, map(str.strip, cells), strict=True))
