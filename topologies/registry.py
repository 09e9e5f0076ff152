"""Things that are registered under their names, each name once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Named(Protocol):
    """Anything that has a name."""

    @property
    def name(self) -> str:
        """Name under which it is found."""


N = TypeVar("N", bound=Named)


def by_name(what: str, entries: Iterable[N]) -> dict[str, N]:
    """Return registered things by name.

    Parameters
    ----------
    what : str
        Kind of thing for the message, such as ``algorithm``.
    entries : iterable
        Each with a ``name``.

    Raises
    ------
    ValueError
        For two of one name, of which only one could be found: a mistake of whoever added it.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> by_name("thing", [SimpleNamespace(name="ring"), SimpleNamespace(name="mesh")]).keys()
    dict_keys(['ring', 'mesh'])
    """
    named: dict[str, N] = {}
    for entry in entries:
        if entry.name in named:
            raise ValueError(f"two entries are registered as {what} {entry.name}; rename one")
        named[entry.name] = entry
    return named
