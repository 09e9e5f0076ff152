"""The command line as a program for sweeps, which receive it instead of importing it.

The import would be circular, because the command ``sweep`` imports the sweeps.
"""

from __future__ import annotations

from typing import Any

import click

from experiments.cli.main import app, run
from experiments.sweeps.command_line import Parameter, Program

NOT_IN_A_STUDY = ("sweep", "report", "explore", "serve-api", "experiment", "list", "doctor")


WRITTEN = ("best", "cache", "chakra", "folder", "overlay", "residuals")
"""Parameters that name a path to write to; ``--out`` is not among them, as sweeps set it."""


def program_of(group: click.Group, excluded: tuple[str, ...]) -> Program:
    """Describe a group of commands to sweeps; a command is loaded when a study names it."""
    commands: Any = group
    names = tuple(commands.list_commands(None))
    return Program(run, names, excluded, lambda name: parameters(commands.get_command(None, name)))


def parameters(command: Any) -> dict[str, Parameter]:
    """Parameters of a command by name, positional ones first and in order."""
    by_name = {}
    for item in sorted(command.params, key=lambda item: str(item.param_type_name)):
        flags = tuple(flag for flag in item.opts if flag.startswith("--"))
        name = flags[-1].removeprefix("--").replace("-", "_") if flags else str(item.name)
        by_name[name] = Parameter(
            flags,
            tuple(item.secondary_opts),
            is_flag=bool(getattr(item, "is_flag", False)),
            repeats=bool(getattr(item, "multiple", False)),
            writes=name in WRITTEN,
        )
    return by_name


PROGRAM = program_of(app, NOT_IN_A_STUDY)
"""``cluster-sim`` itself."""
