"""Run one command as the command line does, whether or not it is registered there already."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.cli.main import app
from experiments.cli.main import run as run_line


def run(name: str, command: Callable[..., int | None], arguments: Sequence[str]) -> int:
    """Exit status of ``cluster-sim NAME ARGUMENTS``."""
    registered = {
        known.name or known.callback.__name__ for known in app.registered_commands if known.callback
    }
    if name not in registered:
        app.command(name)(command)
    return run_line([name, *arguments])
