"""Files kept from one run to the next for slow results, named by the digest of their inputs.

Nothing here is needed: a file that is missing, was cut short or damaged is made again, and where
no folder can be written every process makes its own. A file begins with the digest of the rest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

FOLDER_VARIABLE = "CLUSTER_SIM_CACHE"
"""Environment variable that names another folder."""


@cache
def folders() -> tuple[Path, ...]:
    """Folders for kept files: the one that the environment names, or else the first of these.

    A folder beside the package, so that what is made when it is installed is there for everybody
    who uses it; and one of the user's own.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return (Path(named),)
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(__file__).parent / "__pycache__" / "kept", Path(user) / "cluster-sim"


def read(name: str, within: Sequence[Path] = ()) -> bytes | None:
    """Content of a kept file, of these folders if given; None where there is none, or damaged."""
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
    """Keep a file where that is possible.

    Parameters
    ----------
    name : str
        With a digest of everything that the content follows from.
    content : bytes
    replaces : str, optional
        Pattern of names that are of no more use once this file is there.
    most : int
        Files of that pattern that are left all the same, the last written first.
    within : sequence of path
        Folders of which the first that can be written is used; by default the usual ones.
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
        others = (path for path in folder.glob(replaces) if path.name != name) if replaces else ()
        with suppress(OSError):  # another process may take them away at the same time
            for path in sorted(others, key=_written, reverse=True)[most:]:
                path.unlink(missing_ok=True)
        return


def digest(*parts: str | bytes) -> str:
    """Sixteen hexadecimal digits that tell these parts from any others."""
    whole = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        whole.update(len(content).to_bytes(8, "big") + content)
    return whole.hexdigest()[:16]


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _head(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
