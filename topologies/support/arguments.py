"""Types of arguments at the public functions, checked against the functions' own annotations."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from topologies.support.errors import InputError, shown, suggestion, wrong_type
from topologies.support.options import in_words

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Callable[..., Any])
NUMBERS = {int: (Integral, "a whole number"), float: (Real, "a number")}
WORDS = {bool: "True or False", str: "text", NoneType: "None"}


@dataclass(frozen=True)
class AtLeast:
    """Mark of a type whose values have a smallest one."""

    least: int


Seed = Annotated[int, AtLeast(0)]
"""Type of a seed; numpy draws no random numbers from a negative one."""


def checked(**remedies: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that refuses unknown arguments, and those of other types than annotated.

    Numbers of numpy count as numbers, and a whole number as a ``float``; ``True`` counts as no
    number. Items of sequences are checked as well. Types that exist only for type checkers, and
    types of functions' own parameters, are not checked.

    >>> @checked()
    ... def twice(size_bytes: int, name: str | None = None) -> int:
    ...     return 2 * size_bytes
    >>> twice(3)
    6
    >>> twice("3")
    Traceback (most recent call last):
    topologies.support.errors.InputError: size_bytes is '3' (str). Pass a whole number.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        """Return the function with its arguments checked."""
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            hints = _hints(function)
            refuse_misfit(function, args, kwargs)
            _check_each(signature.bind(*args, **kwargs).arguments, hints, remedies)
            return function(*args, **kwargs)

        return call

    return decorate


def refuse_misfit(
    function: Callable[..., Any],
    positional: Sequence[object],
    keywords: Mapping[str, object],
    label: str = "",
) -> None:
    """Refuse arguments that a function does not take, and a call that lacks one.

    ``function``: where the last parameter takes further keywords without naming them, any keyword
    passes. ``positional``: arguments by position. ``label``: name of the function in messages.

    >>> def twice(size_bytes: int) -> int:
    ...     return 2 * size_bytes
    >>> refuse_misfit(twice, [], {"size_byte": 3})
    Traceback (most recent call last):
    topologies.support.errors.InputError: twice has no 'size_byte'. Did you mean size_bytes?
    """
    label = label or function.__name__
    parameters, kinds = inspect.signature(function).parameters, inspect.Parameter
    variable = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    names = [name for name, parameter in parameters.items() if parameter.kind not in variable]
    if all(each.kind is not kinds.VAR_KEYWORD for each in parameters.values()):
        check_names(label, keywords, names)
    by_place = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    several = any(each.kind is kinds.VAR_POSITIONAL for each in parameters.values())
    if len(positional) > len(by_place) and not several:
        others = [name for name in names if name not in by_place]
        remedy = f"Name the others, such as {others[0]}=…." if others else "Leave the others out."
        raise InputError(
            f"{label} takes {len(by_place)} arguments by place ({', '.join(by_place)}), not "
            f"{len(positional)}. {remedy}"
        )
    for name, parameter in parameters.items():
        absent = name not in keywords and name not in by_place[: len(positional)]
        if absent and name in names and parameter.default is kinds.empty:
            raise InputError(f"{label} lacks {name}. Pass {name}=….")


def check_names(label: str, stated: Iterable[str], names: Sequence[str]) -> None:
    """Refuse a keyword that is not among the names that a function takes."""
    for name in stated:
        if name not in names:
            remedy = suggestion(name, names) or f" It takes {', '.join(names)}."
            raise InputError(f"{label} has no {shown(name, 40)!r}.{remedy}")


def fitting(label: str) -> Callable[[T], T]:
    """Return a decorator of a function or class that refuses unknown arguments as it is called.

    >>> from dataclasses import dataclass
    >>> @fitting("Window")
    ... @dataclass
    ... class Window:
    ...     seconds: float
    >>> Window(second=90)
    Traceback (most recent call last):
    topologies.support.errors.InputError: Window has no 'second'. Did you mean seconds?
    """

    def decorate(target: T) -> T:
        """Return the function or class with names that do not fit refused."""
        is_class = isinstance(target, type)
        inner: Callable[..., Any] = target.__init__ if is_class else target

        @wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            """Call the target, and explain arguments that do not fit it."""
            try:
                return inner(*args, **kwargs)
            except TypeError:
                refuse_misfit(target, args[1:] if is_class else args, kwargs, label)
                raise

        if not is_class:
            return cast(T, call)
        setattr(target, "__init__", call)  # noqa: B010 - a class has no such item to assign to
        return target

    return decorate


def check_fields(kind: type, values: Mapping[str, object]) -> None:
    """Refuse values of other types than the fields of a dataclass have."""
    _check_each(values, _field_hints(kind), {})


def _check_each(
    values: Mapping[str, object], hints: Mapping[str, Any], remedies: Mapping[str, str]
) -> None:
    """Check values by the types of the same names; a name without a type may have any value."""
    for name, value in values.items():
        hint = hints.get(name, Any)
        if not _matches(value, hint):
            raise wrong_type(name, value, remedies.get(name) or f"Pass {_in_words(hint)}.")
        least = _least(hint)
        if least is not None and isinstance(value, Real) and value < least:
            raise InputError(f"{name} is {value}; it must be {least} or more.")


def _resolved(name: str, annotation: Any, scope: Mapping[str, Any]) -> Any:
    """Return the type of an annotation; any where it is imported for type checkers only."""
    annotated = SimpleNamespace(__annotations__={name: annotation})
    try:
        return get_type_hints(annotated, globalns=dict(scope), include_extras=True)[name]
    except NameError:
        return Any


@cache
def _field_hints(kind: type) -> dict[str, Any]:
    scope = vars(sys.modules[kind.__module__])
    return {name: _resolved(name, text, scope) for name, text in kind.__annotations__.items()}


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Types of the parameters by name, but for further keywords, which may be anything."""
    scope = getattr(function, "__globals__", {})
    return {
        name: _resolved(name, parameter.annotation, scope)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def _least(hint: Any) -> int | None:
    """Smallest value of a type, also where None may stand in its place; None without a limit."""
    parts = get_args(hint)
    if get_origin(hint) is Annotated:
        return next((mark.least for mark in parts[1:] if isinstance(mark, AtLeast)), None)
    if get_origin(hint) in (Union, UnionType):
        return next((least for part in parts if (least := _least(part)) is not None), None)
    return None


def _matches(value: object, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _matches(value, parts[0])
    if origin in (Union, UnionType):
        return any(_matches(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if hint in NUMBERS:
        return isinstance(value, NUMBERS[hint][0]) and not isinstance(value, bool)
    if hint is bool:
        return type(value).__name__ in ("bool", "bool_")  # numpy's own is no subclass
    if origin is Callable:
        return callable(value)
    if origin is tuple:
        return isinstance(value, tuple | list) and _items_match(value, parts)
    if origin in (Sequence, list):
        items = _items(value)
        return items is not None and all(_matches(item, parts[0]) for item in items)
    if origin is Mapping and isinstance(value, Mapping):
        return all(_items_match(item, parts) for item in value.items())
    kind = origin or hint
    if hint is Any or not isinstance(kind, type):
        return True
    if getattr(kind, "_is_protocol", False):
        return callable(value) or "__call__" not in vars(kind)
    return isinstance(value, kind)


def _items_match(value: Sequence[object], parts: tuple[Any, ...]) -> bool:
    """Return whether the items of a tuple, or of a list in its place, are of its types."""
    if len(parts) == 2 and parts[1] is Ellipsis:
        return all(_matches(item, parts[0]) for item in value)
    return len(value) == len(parts) and all(map(_matches, value, parts))


def _items(value: object) -> Sequence[object] | None:
    """Items of a sequence or an array of one dimension; None for anything else, and for text."""
    array = getattr(value, "ndim", None) == 1 and hasattr(value, "tolist")
    listed = value.tolist() if array else value  # type: ignore[attr-defined]
    if isinstance(listed, str | bytes) or not isinstance(listed, Sequence):
        return None
    return listed[:1] if isinstance(listed, range) else listed  # all its items are whole numbers


def _in_words(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _in_words(parts[0])
    if origin in (Union, UnionType):
        return in_words(tuple(dict.fromkeys(_in_words(part) for part in parts)))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if hint in NUMBERS:
        return NUMBERS[hint][1]
    if hint in WORDS:
        return WORDS[hint]
    if origin is Callable:
        return "a function"
    if origin in (Sequence, list, Iterable, tuple):
        return "a sequence" if parts[0] is Any else f"a sequence, each {_in_words(parts[0])}"
    if origin is Mapping:
        return "a mapping" if parts[1] is Any else f"a mapping, each value {_in_words(parts[1])}"
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"
