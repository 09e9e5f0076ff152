"""The one exception for a user's mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A user's mistake: the message names the thing, the value, the limit and the remedy."""


def suggestion(value: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean X?`` when one of the choices is close to the value, else nothing.

    Examples
    --------
    >>> suggestion("trn2.48xlrge", ["trn1.32xlarge", "trn2.48xlarge"])
    ' Did you mean trn2.48xlarge?'
    >>> suggestion("zebra", ["trn2"])
    ''
    """
    close = difflib.get_close_matches(value, list(choices), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def file_fault(fault: OSError) -> str:
    """Which file the system refused, and why, as a sentence without its error number.

    Examples
    --------
    >>> file_fault(OSError(28, "No space left on device", "out/run.json"))
    'out/run.json: No space left on device.'
    """
    where = "" if fault.filename is None else f"{fault.filename}: "
    return f"{where}{fault.strerror or fault}."
