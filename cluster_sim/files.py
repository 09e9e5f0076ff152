"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topologies.errors import InputError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary sibling to write to; it takes the name of ``path`` once that succeeded.

    An error or Ctrl-C on the way removes it and leaves what stood at ``path`` before.

    Raises
    ------
    InputError
        When the directory of ``path`` does not exist.
    """
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no directory {path.parent}. Create it.")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
