"""Messages about files that do not exist: the folder in which one was sought, and what is there."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from topologies.errors import shown, suggestion

MOST_ENTRIES = 2000
MOST_NAMED = 3


def no_such_file(path: str | Path) -> str:
    """Say in which folder a file is missing, and which file there the user may have meant.

    Returns text such as ``there is no such file in /home/me. Did you mean study.yaml? Correct the
    path.``.

    >>> no_such_file("/no/such/folder/study.yaml")
    'there is no folder /no. Correct the path.'
    """
    file = Path(path)
    folder = Path(os.path.abspath(file.parent))
    missing = next(
        (above for above in (*reversed(folder.parents), folder) if not _is_folder(above)), None
    )
    if missing is not None:
        return f"there is no folder {shown(str(missing))}. Correct the path."
    names = _names(folder)
    near = suggestion(file.name, names)
    same_kind = [name for name in names if file.suffix and name.endswith(file.suffix)]
    holds = "" if near or not file.suffix else f", {_listed(same_kind, file.suffix)}"
    return f"there is no such file in {shown(str(folder))}{holds}.{shown(near)} Correct the path."


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        return False


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
    return f"which holds {listed}" + (
        f" and {more:,} more {shown(suffix)} files" if more > 0 else ""
    )
