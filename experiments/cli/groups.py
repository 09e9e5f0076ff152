"""Groups of commands, each of whose modules is loaded when its command is used.

``cluster-sim --help`` lists names and summaries without importing numpy, pandas or numba.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from experiments.cli.options.parameters import HelpContext
from experiments.cli.registry import COMMANDS, Command
from topologies.errors import InputError, suggestion


@dataclass(frozen=True)
class Entry:
    """A line of a help page, and the function that loads its command."""

    summary: str
    load: Callable[[], Any]


class LazyGroup(click.Group):
    """Commands by name, each loaded at its first use; by default those of the registry."""

    context_class = HelpContext
    thing = "command"
    """Word for one entry of the group."""
    unknown = "No such command '{}'"
    """Message for a name that is not in the group."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All commands by name, in the order of the help page."""
        return {
            command.name: Entry(command.summary, partial(_loaded, command)) for command in COMMANDS
        }

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the help page."""
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load a command; None for an unknown name."""
        name = self.spelled(cmd_name)
        return self.entries[name].load() if name in self.entries else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command whose name is the first argument."""
        if self.spelled(args[0]) not in self.entries and not args[0].startswith("-"):
            near = suggestion(args[0], self.entries)
            raise InputError(
                f"{self.unknown.format(args[0][:80])}.{near} There are: {', '.join(self.entries)}. "
                f"See {ctx.command_path} --help."
            )
        return super().resolve_command(ctx, [self.spelled(args[0]), *args[1:]])

    def spelled(self, name: str) -> str:
        """Return the registered name of an entry for the spelling of a user."""
        return name

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and summaries without loading a command."""
        with formatter.section(f"{self.thing.capitalize()}s"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])


def _loaded(command: Command) -> Any:
    function: Any = command.load()
    if isinstance(function, click.Group):
        return function
    from experiments.cli.options.from_fields import as_options  # no help page of a group needs it

    return as_options(command.name, function, resumes=command.resumes)
