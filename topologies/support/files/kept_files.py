"""A cache on disk for results that are slow to compute, named by a digest of their inputs.

Files that are missing, cut short or damaged are made again. Kept machine code is run, and a digest
is no help against forgery: what others could have written is as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from topologies.support.errors import InputError
from topologies.support.files.writing import whole_file

T = TypeVar("T")
WRITABLE_BY_OTHERS = 0o022  # mode bits that let a group or everyone write
MOST_KEPT = 1000  # documents of a kind that are kept; the oldest are removed first
FOLDER_VARIABLE = "CLUSTER_SIM_CACHE"  # environment variable that names the folder of the cache


@cache
def folders() -> tuple[Path, ...]:
    """Return the folders of the cache: that which the environment names, or else two folders."""
    # The first is beside the package, so that files made at installation serve all its users.
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return (Path(named),)
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(__file__).parents[2] / "__pycache__" / "kept", Path(user) / "cluster-sim"


def read(name: str, within: Sequence[Path] = ()) -> bytes | None:
    """Return the content of a kept file; None where there is none, or it is damaged."""
    for folder in within or folders():
        with suppress(OSError), (folder / name).open("rb") as file:
            # A folder that the user names for this purpose is the user's responsibility.
            if not within and not (is_private(folder) and is_private(file.fileno())):
                continue
            head, _, content = file.read().partition(b"\n")
            if head == _head(content):
                return content
    return None


def read_json(name: str, convert: Callable[[Any], T], within: Sequence[Path] = ()) -> T | None:
    """Return what ``convert`` makes of a kept document; None without one or for another form."""
    # A whole file may still be wrong: its name has no digest of all that could ever write it.
    content = read(name, within)
    try:
        return None if content is None else convert(json.loads(content))
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
        return None


def made_once(
    kind: str,
    digest: str,
    make: Callable[[], T],
    convert: Callable[[Any], T],
    plain: Callable[[T], Any] = lambda value: value,
    *,
    most: int = MOST_KEPT,
    within: Path | None = None,
) -> T:
    """Return what ``convert`` makes of a document kept as JSON, or else make it, and keep it."""
    name, folders = f"{kind}-{digest}.json", (within,) if within else ()
    result = read_json(name, convert, folders)
    if result is None:
        result = make()
        content = json.dumps(plain(result)).encode()
        keep(name, content, f"{kind}-*.json", most=most, within=folders)
    return result


def is_private(place: Path | int) -> bool:
    """Return whether only this user, the installation's owner or root can have written a place."""
    status = os.stat(place)
    owners = (os.getuid(), 0, os.stat(__file__).st_uid)
    return status.st_uid in owners and not status.st_mode & WRITABLE_BY_OTHERS


def keep(
    name: str, content: bytes, replaces: str = "", *, most: int = 0, within: Sequence[Path] = ()
) -> None:
    """Keep a file, named by what it depends on, in the first folder that can be written, if any."""
    # Files of the pattern ``replaces`` are removed, but for the newest ``most``.
    for folder in within or folders():
        try:
            folder.mkdir(0o755, parents=True, exist_ok=True)
            if not within and not _made_private(folder):
                continue
            with whole_file(folder / name) as part:
                part.touch(0o644)
                part.write_bytes(_head(content) + b"\n" + content)
        except (OSError, InputError):
            continue
        older = (path for path in folder.glob(replaces) if path.name != name) if replaces else ()
        with suppress(OSError):  # another process may remove them at the same time
            for path in sorted(older, key=lambda each: each.stat().st_mtime, reverse=True)[most:]:
                path.unlink(missing_ok=True)
        return


def digest(*parts: str | bytes) -> str:
    """Return a digest of sixteen hexadecimal digits that differs for any other parts."""
    whole = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        # With lengths, so that ("ab", "c") and ("a", "bc") differ.
        whole.update(len(content).to_bytes(8, "big") + content)
    return whole.hexdigest()[:16]


def exact_text(value: Any) -> str:
    """Return text that is the same for equal values in every process, and differs for others."""
    # Every field that equality counts is in it, so that a field added to an input is part of a key;
    # ``str`` may round numbers or leave fields out.
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: getattr(value, part.name) for part in fields(value) if part.compare}
        return f"{type(value).__name__}{exact_text(parts)}"
    if isinstance(value, Mapping):
        pairs = sorted((exact_text(key), exact_text(item)) for key, item in value.items())
        return f"{{{','.join(f'{key}: {item}' for key, item in pairs)}}}"
    if isinstance(value, set | frozenset):
        return exact_text(sorted(map(exact_text, value)))
    if isinstance(value, list | tuple):
        return f"[{','.join(map(exact_text, value))}]"
    if hasattr(value, "tolist"):  # arrays and numbers of numpy
        listed = value.tolist()
        if value.ndim == 1 and value.dtype.kind in "iuf":  # as below, at once
            return f"[{','.join(map(repr, listed))}]"
        return exact_text(listed)
    if value is None or isinstance(value, str | bytes | int | float | Fraction):
        return repr(value)
    raise TypeError(f"a {type(value).__name__} has no exact text; describe it by its values")


def _made_private(folder: Path) -> bool:
    """Take from others the right to write in one of our own folders; return whether none has it."""
    if FOLDER_VARIABLE not in os.environ and folder.stat().st_uid == os.getuid():
        folder.chmod(folder.stat().st_mode & 0o7777 & ~WRITABLE_BY_OTHERS)
    return is_private(folder)


def _head(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
