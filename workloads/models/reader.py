"""Typed reader of the fields of a ``config.json``, under any of the names that families use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topologies.support.errors import InputError

LARGEST_NUMBER = 10**9
Fields = Mapping[str, Any]


class Reader:
    """Fields of one config, each checked when it is read."""

    # Families have several names for one field, so each method takes all of them. A name may be
    # dotted, for a field of a nested object. A null counts as absent.

    def __init__(self, fields: Fields, name: str):
        self.fields = fields
        self.name = name
        self.asked: set[str] = set()

    def value(self, *names: str) -> Any:
        """Return the value of the first of these fields that is there and not null, else None."""
        return self._first(names)[1]

    def has(self, *names: str) -> bool:
        """Return whether any of these fields is there and not null."""
        return self.value(*names) is not None

    def _first(self, names: Sequence[str]) -> tuple[str, Any]:
        """Name and value of the first of these fields that is there and not null."""
        self.asked.update(name.partition(".")[0] for name in names)
        for name in names:
            at: Any = self.fields
            for key in name.split("."):
                at = at.get(key) if isinstance(at, Mapping) else None
            if at is not None:
                return name, at
        return "", None

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return the whole number of the first of these fields."""
        name, value = self._first(names)
        if value is None:
            if default is None:
                raise InputError(f"model {self.name}: the config has no {names[0]}. Add it.")
            return default
        return self.whole(name, value, least)

    def whole(self, name: str, value: Any, least: int = 1) -> int:
        """Return a value of a field as a whole number."""
        if value is None:
            raise InputError(f"model {self.name}: the config has no {name}. Add it.")
        whole = isinstance(value, int | float) and value == value // 1
        if isinstance(value, bool) or not whole or not least <= value <= LARGEST_NUMBER:
            raise InputError(
                f"model {self.name}: {name} is {str(value)[:40]!r}; it must be a whole number "
                f"from {least} to {LARGEST_NUMBER:.0e}. Correct the config."
            )
        return int(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return the truth value of the first of these fields."""
        name, value = self._first(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(
                f"model {self.name}: {name} is {str(value)[:40]!r}; it must be true or false."
            )
        return value

    def number(self, name: str, default: float) -> float:
        """Return the positive number of a field."""
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise InputError(
                f"model {self.name}: {name} is {str(value)[:40]!r}; it must be a positive number."
            )
        return float(value)

    def items(self, *names: str) -> list[Any]:
        """Return the list of the first of these fields; an empty one if there is no such field."""
        value = self.value(*names)
        if value is None:
            return []
        if not isinstance(value, list | tuple) or len(value) > 10_000:
            raise InputError(f"model {self.name}: {names[0]} is {str(value)[:40]!r}; give a list.")
        return list(value)

    def dropout(self, *names: str) -> bool:
        """Return whether any of these rates of dropout is above zero."""
        rates = [self.value(name) for name in names]
        return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def first_count(read: Reader, names: tuple[str, ...], default: int | None) -> int:
    """Return a count, which some families list for each layer: then that of the first layer."""
    value = read.value(*names)
    if isinstance(value, list) and value:
        return read.whole(next(field for field in names if read.has(field)), value[0])
    return read.count(*names, default=default, least=0)
