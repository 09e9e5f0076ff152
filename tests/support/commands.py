"""Commands in this process: as functions of their options, or as words with a JSON answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.testing import CliRunner

from experiments.cli.main import app
from experiments.cli.options.from_fields import as_options
from experiments.cli.registry import COMMANDS


def command(name: str) -> Callable[..., int | None]:
    """Function of a command; arguments may be given by position, options by name."""
    (registered,) = (one for one in COMMANDS if one.name == name)
    command = as_options(name, registered.load())
    assert command.callback is not None
    callback: Callable[..., int | None] = command.callback
    arguments = [str(one.name) for one in command.params if isinstance(one, click.Argument)]
    usual = {str(one.name): one.default for one in command.params if not one.required}

    def call(*positional: Any, **options: Any) -> int | None:
        return callback(**usual | dict(zip(arguments, positional, strict=False)) | options)

    return call


def document_of(words: Sequence[str]) -> dict[str, Any]:
    """JSON document that a command line prints, which must succeed and name ``--json``."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document
