"""Options of ``cluster-sim fleet`` and ``lend`` as keywords of Python functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from topologies.arguments import check_fields, check_names
from topologies.errors import InputError, shown, suggestion
from topologies.options import Option, described
from workloads.options.fleet import FleetOptions

OLDER = {
    "chunk_tokens": "chunk",
    "unit_rate_per_s": "unit_rate",
    "prefix_share": "prefix_cache",
}
"""Older keywords, which are read as their newer names."""
NO_KEYWORDS = ("demand", "peak", "compare")
"""Options that are a parameter of another name, an older name, and what a result always offers."""
Inputs = TypeVar("Inputs")


def keywords_of(function: Callable[..., Any], *kinds: type) -> list[str]:
    """Names of the options of some dataclasses that a function takes as ``**keywords``."""
    taken = {*signature(function).parameters, *NO_KEYWORDS}
    names = [name for kind in kinds for name in described(kind) if name not in taken]
    return [*names, *OLDER]


def fleet_options(
    function: Callable[..., Any],
    kinds: Sequence[type],
    words: Mapping[str, Any],
    **parameters: Any,
) -> FleetOptions:
    """Return the options of a fleet that the keywords of a function describe.

    ``function``: public function that was called, for messages. ``kinds``: dataclasses whose
    options are its keywords. ``words``: keywords that were stated; one whose value is None keeps
    its default. ``**parameters``: options that are parameters of the function.
    """
    names = [*signature(function).parameters, *keywords_of(function, *kinds)]
    check_names(function.__name__, words, names)
    groups = get_type_hints(FleetOptions)
    return FleetOptions(
        **{name: read_options(kind, {**words, **parameters}) for name, kind in groups.items()}
    )


def read_options(kind: type[Inputs], words: Mapping[str, Any]) -> Inputs:
    """Fill a dataclass of options with those words that are fields of it.

    >>> from workloads.options.fleet import PolicyInputs
    >>> read_options(PolicyInputs, {"hold": 600, "tp": 8}).hold
    '600s'
    """
    stated = {OLDER.get(name, name): value for name, value in words.items() if value is not None}
    hints = get_type_hints(kind)
    values = {
        name: _as_typed(option, hints[name], stated[name])
        for name, option in described(kind).items()
        if name in stated
    }
    check_fields(kind, values)
    for name, option in described(kind).items():
        if name in values:
            _check(name, option, values[name])
    return kind(**values)


def _as_typed(option: Option, hint: Any, value: Any) -> Any:
    """Return a Python value in the form that its option has on the command line."""
    kinds = {hint, *get_args(hint)}
    if get_origin(hint) is tuple:
        several = isinstance(value, Iterable) and not isinstance(value, str)
        return tuple(value) if several else (value,)
    if str in kinds and not isinstance(value, bool) and isinstance(value, Real):
        return f"{value:g}" + (option.plain if math.isfinite(value) else "")
    if str in kinds and isinstance(value, Path):
        return str(value)
    return Path(value) if Path in kinds and isinstance(value, str) else value


def _check(name: str, option: Option, value: Any) -> None:
    """Check a value against the choices and limits of its option, as the command line does."""
    choices = option.choices() if callable(option.choices) else option.choices
    if choices and value not in choices:
        near = suggestion(str(value), [str(each) for each in choices])
        raise InputError(
            f"{name} is {shown(repr(value))}; choose from {', '.join(map(str, choices))}.{near}"
        )
    least = -math.inf if option.least is None else option.least
    most = math.inf if option.most is None else option.most
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, Real) and not least <= float(number) <= most:
            raise InputError(
                f"{name} is {shown(repr(value))}; it must be a number from {least:g} to {most:g}."
            )
