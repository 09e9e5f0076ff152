"""Values of results: in the form that JSON can hold, and checked before anybody reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topologies.errors import InputError

SHARES_OF_PEAK = ("mfu", "hfu")
IMPOSSIBLE = (
    "so something is wrong. Check the values of the cluster file, the plan and --catalogue; "
    "where they are the shipped ones, report it."
)


def plain(value: Any) -> Any:
    """Turn numpy scalars, arrays, paths and non-finite floats into what JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def check_results(document: Any, name: str = "") -> None:
    """Refuse a result that cannot be, before anything is printed or written.

    Raises
    ------
    InputError
        For a share of peak outside 0 to 1, or one that is not a number.
    """
    if isinstance(document, Mapping):
        for key, value in document.items():
            check_results(value, str(key))
    elif isinstance(document, list | tuple):
        for value in document:
            check_results(value, name)
    elif isinstance(document, float) and name in SHARES_OF_PEAK and not 0 <= document <= 1:
        raise InputError(f"{name} is {document:.4g} and must lie between 0 and 1, {IMPOSSIBLE}")
