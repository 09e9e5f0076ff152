"""Registries: objects by name, each name once, and names that load at their first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar


class Named(Protocol):
    """Type of objects that have a name."""

    @property
    def name(self) -> str:
        """Name under which the object is registered."""


N = TypeVar("N", bound=Named)


def by_name(what: str, entries: Iterable[N]) -> dict[str, N]:
    """Return objects by name; raises ValueError for two of one name, of which one would be lost."""
    named: dict[str, N] = {}
    for entry in entries:
        if entry.name in named:
            raise ValueError(f"two entries are registered as {what} {entry.name}; rename one")
        named[entry.name] = entry
    return named


def loader(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that loads a name from the module that has it."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        """Return the object of a name, which the package remembers."""
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
