"""Commands as functions of their options, which run in this process without a command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from experiments.cli.commands import COMMANDS
from experiments.cli.options import as_options


def command(name: str) -> Callable[..., int | None]:
    """Function of a command; arguments may be given by position, options by name."""
    (known,) = (one for one in COMMANDS if one.name == name)
    command = as_options(name, known.load())
    assert command.callback is not None
    callback: Callable[..., int | None] = command.callback
    arguments = [str(one.name) for one in command.params if isinstance(one, click.Argument)]
    usual = {str(one.name): one.default for one in command.params if not one.required}

    def call(*positional: Any, **options: Any) -> int | None:
        return callback(**usual | dict(zip(arguments, positional, strict=False)) | options)

    return call
