"""Commands as functions of their options, called in this process without a command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from experiments.cli.commands import COMMANDS
from experiments.cli.options import as_options


def command(name: str) -> Callable[..., int | None]:
    """Function of a command; arguments may be given by position, options by name."""
    (known,) = (one for one in COMMANDS if one.name == name)
    function = as_options(name, known.load())
    parameters = inspect.signature(function).parameters.values()
    arguments = [one.name for one in parameters if "Argument" in repr(one.annotation)]

    def call(*positional: Any, **options: Any) -> int | None:
        return function(**dict(zip(arguments, positional, strict=False)), **options)

    return call
