"""A cache on disk for results that are slow to compute, named by a digest of their inputs.

Nothing depends on the cache: a file that is missing, cut short or damaged is made again, and where
no folder can be written every process computes its own results. A file begins with the digest of
the rest, by which damage is noticed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

FOLDER_VARIABLE = "CLUSTER_SIM_CACHE"
"""Environment variable that names the folder of the cache."""


@cache
def folders() -> tuple[Path, ...]:
    """Return the folders of the cache: that which the environment names, or else two folders.

    The first is beside the package, so that files made at installation serve all its users; the
    second is the user's own.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return (Path(named),)
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(__file__).parent / "__pycache__" / "kept", Path(user) / "cluster-sim"


def read(name: str, within: Sequence[Path] = ()) -> bytes | None:
    """Return the content of a kept file; None where there is none, or it is damaged.

    Parameters
    ----------
    name : str
    within : sequence of path
        Folders in which to look, by default those of :func:`folders`.
    """
    for folder in within or folders():
        with suppress(OSError):
            head, _, content = (folder / name).read_bytes().partition(b"\n")
            if head == _head(content):
                return content
    return None


def keep(
    name: str,
    content: bytes,
    replaces: str = "",
    *,
    most: int = 0,
    within: Sequence[Path] = (),
) -> None:
    """Keep a file in the first folder that can be written, if there is one.

    Parameters
    ----------
    name : str
        Name with a digest of everything that the content depends on.
    content : bytes
    replaces : str, optional
        Pattern of the names of older files, which are removed.
    most : int
        Number of older files that stay, those written last.
    within : sequence of path
        Folders to try in this order, by default those of :func:`folders`.
    """
    for folder in within or folders():
        temporary = folder / f"{name}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(_head(content) + b"\n" + content)
            temporary.replace(folder / name)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            continue
        older = (path for path in folder.glob(replaces) if path.name != name) if replaces else ()
        with suppress(OSError):  # another process may remove them at the same time
            for path in sorted(older, key=_written, reverse=True)[most:]:
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


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _head(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
