"""Command line that repeats a run, from the inputs in its record."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from topologies.errors import InputError

if TYPE_CHECKING:
    import click

LONGEST_WORD = 1000


def command_line(record: Mapping[str, Any], program: click.Command | None) -> str:
    """Return the command line of ``cluster-sim`` that repeats a run; empty if it is unknown.

    Only options that differ from their defaults are stated.

    ``record``: contents of a ``run.json``. ``program``: program with the options of each command;
    without it the command line is unknown.
    """
    command, inputs = record.get("command"), record.get("inputs")
    if not isinstance(command, str) or not isinstance(inputs, dict):
        return ""
    changed = _changed(command, inputs, program)
    if changed is None:
        return ""
    options: list[str] = []
    positional: list[str] = []
    for item, value in changed:
        words = list(_words(item, value))
        (options if item.param_type_name == "option" else positional).extend(words)
    if isinstance(record.get("seed"), int) and record["seed"]:
        options.append(f"--seed={record['seed']}")
    words = ["cluster-sim", *command.split(), *positional, *options]
    return " ".join(shlex.quote(word[:LONGEST_WORD]) for word in words)


def changed_inputs(record: Mapping[str, Any], program: click.Command | None) -> set[str] | None:
    """Names of the inputs that differ from their defaults; None if the defaults are unknown.

    Parameters as for :func:`command_line`.
    """
    command, inputs = record.get("command"), record.get("inputs")
    if not isinstance(command, str) or not isinstance(inputs, dict):
        return None
    changed = _changed(command, inputs, program)
    return None if changed is None else {str(item.name) for item, _ in changed}


def _changed(
    command: str, inputs: Mapping[str, Any], program: click.Command | None
) -> list[tuple[Any, Any]] | None:
    """Parameters whose values differ from their defaults, with the values."""
    parameters = _parameters(command.split(), program)
    if parameters is None:
        return None
    pairs = [(item, _plain(inputs.get(str(item.name)))) for item in parameters]
    return [
        (item, value)
        for item, value in pairs
        if value is not None and value not in ("", [], item.default)
    ]


def _parameters(words: list[str], program: click.Command | None) -> list[Any] | None:
    """Parameters of a command; None for a command that the program does not have."""
    command: Any = program
    for word in words:
        if not hasattr(command, "list_commands") or word not in command.list_commands(None):
            return None
        try:
            command = command.get_command(None, word)
        except InputError:
            return None
    return list(command.params) if words else None


def _plain(value: Any) -> Any:
    """Return an input without the digest of its file."""
    if isinstance(value, dict):
        return value.get("path")
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _words(item: Any, value: Any) -> Iterator[str]:
    """Yield the words of a command line for a parameter with a value."""
    flags = [flag for flag in item.opts if flag.startswith("--")]
    if isinstance(value, bool):
        chosen = flags if value else list(item.secondary_opts)
        yield from chosen[-1:]
    elif not flags:
        yield from (map(str, value) if isinstance(value, list) else (str(value),))
    elif isinstance(value, list) and getattr(item, "multiple", False):
        yield from (f"{flags[-1]}={item}" for item in value)
    elif isinstance(value, list):
        yield f"{flags[-1]}={','.join(map(str, value))}"
    else:
        yield f"{flags[-1]}={value}"
