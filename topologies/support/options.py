"""Descriptions of dataclass fields as options of a command: help, unit, choices, limits, name.

A field is described where it is declared, and nowhere else::

    tp: int = setting(1, "Tensor-parallel degree")

``experiments.cli.options`` turns described fields into options. Nothing is imported here, so that
any dataclass may describe its fields.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T")
KEY = "option"  # key of the description in the metadata of a field

Choices = tuple[str | int, ...] | Callable[[], tuple[str | int, ...]] | str
"""Values of an option; or a function that returns them, or the place of a table whose keys they
are, such as ``module:TABLE``, when they are needed."""


@dataclass(frozen=True)
class Option:
    """Description of one option or argument of a command."""

    help: str  # one phrase without a full stop; unit and choices are added to it
    # Unit of a plain number, such as ``"USD/MWh"``; empty for text that carries its own unit
    unit: str = ""
    # Values that the option may take, for the help text and for shell completion
    choices: Choices = ()
    # Description of a default that depends on other inputs, such as ``"fills the cluster"``
    default: str = ""
    metavar: str = ""  # placeholder of the value; by default its type
    name: str = ""  # name on the command line without dashes; by default that of the field
    # least, most: smallest and largest value of a number
    least: float | None = None
    most: float | None = None
    # Type of the value on the command line if it is not that of the field: ``str`` for a quantity
    # such as ``160MB`` that the library parses
    kind: type | None = None
    # Unit that a plain number from Python gets where the command line takes text, such as ``s``
    plain: str = ""
    argument: bool = False  # whether the value is given by position instead of by name
    # Whether results depend on the value, so that a run directory records it as an input
    recorded: bool = True

    def choice_texts(self) -> tuple[str, ...]:
        """Return the choices as texts; empty if the option takes any value."""
        values = self.choices() if callable(self.choices) else self.choices
        if isinstance(values, str):
            module, _, table = values.partition(":")
            values = tuple(getattr(importlib.import_module(module), table))
        return tuple(str(value) for value in values)

    def sentence(self) -> str:
        """Return the help text with unit and choices."""
        unit = f" [{self.unit}]" if self.unit else ""
        choices = self.choice_texts()
        values = f". One of {in_words(choices)}" if choices else ""
        return f"{self.help}{unit}{values}."


def option(help: str, **details: Any) -> Mapping[str, Option]:  # noqa: A002
    """Return the metadata of a field that is an option; see :class:`Option` for the details."""
    return {KEY: Option(help, **details)}


def setting(value: Any, help: str, /, **details: Any) -> Any:  # noqa: A002
    """Return a field that is an option, with its default; see :class:`Option` for the details."""
    return field(default=value, metadata=option(help, **details))


def required(help: str, /, **details: Any) -> Any:  # noqa: A002
    """Return a field that is an option and must be stated; see :class:`Option` for the details."""
    return field(metadata=option(help, **details))


def described(kind: type) -> dict[str, Option]:
    """Return the options among the fields of a dataclass, by field name, in their order."""
    declared: tuple[Field[Any], ...] = fields(kind)
    return {each.name: each.metadata[KEY] for each in declared if KEY in each.metadata}


def documented(kind: type[T]) -> type[T]:
    """Return a class whose docstring ends with a list of attributes, with the described fields."""
    entries = [
        f"{name} : {kind.__annotations__[name]}\n    {each.sentence()}"
        for name, each in described(kind).items()
    ]
    kind.__doc__ = "\n".join([inspect.cleandoc(kind.__doc__ or ""), *entries])
    return kind


def observed(options: T) -> tuple[T, set[str]]:
    """Return a copy of options, and the set of its fields that have been read of it so far."""
    read: set[str] = set()
    kind: Any = type(options)
    names = {each.name for each in fields(kind)}

    def noting(self: Any, name: str) -> Any:
        if name in names:
            read.add(name)
        return kind.__getattribute__(self, name)

    copy: Any = object.__new__(type(kind.__name__, (kind,), {"__getattribute__": noting}))
    vars(copy).update(vars(options))
    return copy, read


def in_words(values: tuple[str, ...], last: str = "or") -> str:
    """Write values as a list in words.

    >>> in_words(("none", "dp", "all"))
    'none, dp or all'
    """
    if len(values) < 2:
        return "".join(values)
    return f"{', '.join(values[:-1])} {last} {values[-1]}"
