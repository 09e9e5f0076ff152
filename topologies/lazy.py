"""Names of a package that are loaded at their first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def loader(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that loads a name from the module that has it."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        """Import the module that has a name, and keep the name."""
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
