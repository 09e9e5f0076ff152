"""Options stated as keywords of a function, read and checked by the fields that declare them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from topologies.support.arguments import check_fields
from topologies.support.errors import InputError, shown
from topologies.support.options import Option, described

Inputs = TypeVar("Inputs")


def read_options(kind: type[Inputs], words: Mapping[str, Any]) -> Inputs:
    """Fill a dataclass of options with those words that are fields of it."""
    stated = {name: value for name, value in words.items() if value is not None}
    hints = get_type_hints(kind)
    values = {
        name: _as_typed(option, hints[name], stated[name])
        for name, option in described(kind).items()
        if name in stated
    }
    check_fields(kind, values)
    check_limits(kind, values)
    return kind(**values)


def _as_typed(option: Option, hint: Any, value: Any) -> Any:
    """Return a Python value in the form that its option has on the command line."""
    kinds = {hint, *get_args(hint)}
    if get_origin(hint) is tuple:
        several = isinstance(value, Iterable) and not isinstance(value, str)
        return tuple(value) if several else (value,)
    if str in kinds and not isinstance(value, bool) and isinstance(value, Real):
        return f"{value:.15g}" + (option.plain if math.isfinite(value) else "")
    if str in kinds and isinstance(value, Path):
        return str(value)
    return Path(value) if Path in kinds and isinstance(value, str) else value


def check_limits(kind: type, values: Mapping[str, Any]) -> None:
    """Refuse numbers beyond the limits of the fields of a dataclass that have their names."""
    for name, option in described(kind).items():
        value = values.get(name)
        least = -math.inf if option.least is None else option.least
        most = math.inf if option.most is None else option.most
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, Real) and not least <= float(number) <= most:
                limits = (
                    f"from {least:g} to {most:,.12g}" if most < math.inf else f"from {least:g} on"
                )
                raise InputError(f"{name} is {shown(repr(value))}; it must be a number {limits}.")
