"""Text from strangers' files: bounded in size, in UTF-8, with one wording for what can be wrong."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path

from topologies.errors import InputError
from topologies.units import format_bytes


def read_text(
    file: Path | Traversable,
    *,
    limit_bytes: int,
    name: str = "",
    remedy: str = "",
    lenient: bool = False,
) -> str:
    """Text of a file, without a byte order mark.

    Parameters
    ----------
    file : path
    limit_bytes : int
        Largest file that is read [B].
    name : str
        Of the file in messages; by default its path.
    remedy : str
        What to do about a file that is too large, as a sentence.
    lenient : bool
        Put a sign where bytes are no UTF-8, for what programs have printed.

    Raises
    ------
    InputError
        For a file that cannot be read, is too large or is no text.
    """
    named = name or str(file)
    try:
        with file.open("rb") as stream:
            content = stream.read(limit_bytes + 1)
    except OSError as mistake:
        raise InputError(f"{named} cannot be read: {mistake.strerror}.") from None
    if len(content) > limit_bytes:
        said = f"{named} is over the limit of {format_bytes(limit_bytes)}. {remedy}"
        raise InputError(said.rstrip())
    try:
        return content.decode("utf-8-sig", errors="replace" if lenient else "strict")
    except UnicodeDecodeError as mistake:
        line = content.count(b"\n", 0, mistake.start) + 1
        raise InputError(f"{named} line {line}: not UTF-8 text.") from None
