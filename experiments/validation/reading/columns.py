"""Columns of files of measurements, and kinds of file by their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Value = int | float | str | None
Holds = Literal["text", "count", "number", "flag"]


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes
    ----------
    name : str
    holds : str
        ``text``, ``count`` (a whole number), ``number`` or ``flag`` (0 or 1).
    required : bool
        Whether a row without it cannot be predicted.
    least : float
        Smallest value of a count or a number; numbers must be above 0 where it is 0.
    choices : tuple of str
        Texts that are allowed; any where empty.
    also : mapping of str to str
        Other spellings of the choices, in small letters with hyphens.
    """

    name: str
    holds: Holds
    required: bool = False
    least: float = 1
    choices: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of measurement, and the columns of its rows.

    Attributes
    ----------
    name : str
        ``training``, ``memory``, ``layer``, ``collective``, ``serving``, ``kernel`` or ``job``.
    columns : tuple of Column
    published : tuple of str
        Columns of measured values; the error of a row is that of the first that it states.
    """

    name: str
    columns: tuple[Column, ...]
    published: tuple[str, ...]

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that a file of this kind must have."""
        return tuple(column.name for column in self.columns if column.required)

    def column(self, name: str) -> Column | None:
        """Return the column of a name, if the kind has it."""
        return next((column for column in self.columns if column.name == name), None)
