"""Commands in this process: as functions of their options, or as words with a JSON answer."""

import contextlib
import io
import json
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import click

from experiments.cli.main import run
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


def ended(words: str | Sequence[str], *more: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a command line in this process."""
    output, errors = io.StringIO(), io.StringIO()
    line = shlex.split(words) if isinstance(words, str) else list(words)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = run([*line, *more])
    return status, output.getvalue(), errors.getvalue()


def printed_by(words: str | Sequence[str], *more: str) -> str:
    """Output of a command line, which must succeed."""
    status, output, errors = ended(words, *more)
    assert status == 0, errors
    return output


def document_of(words: str | Sequence[str], *more: str) -> dict[str, Any]:
    """JSON document that a command line prints, which must succeed."""
    document: dict[str, Any] = json.loads(printed_by(words, *more, "--json", "--quiet"))
    return document


def refusal_of(words: str | Sequence[str], *more: str) -> str:
    """Sentence with which a command line is refused, which must be all that it prints."""
    status, output, errors = ended(words, *more)
    assert (status, output, errors.count("\n")) == (2, "", 1), errors
    return errors
