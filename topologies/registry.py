"""Registries: objects by name, where each name occurs once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Named(Protocol):
    """Type of objects that have a name."""

    @property
    def name(self) -> str:
        """Name under which the object is registered."""


N = TypeVar("N", bound=Named)


def by_name(what: str, entries: Iterable[N]) -> dict[str, N]:
    """Return objects by name.

    Raises ValueError for two objects of the same name: a programming mistake, since only one could
    be found.
    """
    named: dict[str, N] = {}
    for entry in entries:
        if entry.name in named:
            raise ValueError(f"two entries are registered as {what} {entry.name}; rename one")
        named[entry.name] = entry
    return named
