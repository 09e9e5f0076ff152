"""Commands of ``cluster-sim``, each of whose modules is loaded when its command is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from experiments.cli.options.from_fields import HelpContext, as_options
from topologies.support.errors import InputError, suggestion


@dataclass(frozen=True)
class Command:
    """A command that is loaded when it is used."""

    name: str
    module: str  # module of ``experiments.cli.commands`` with the function of that name
    summary: str  # line of ``cluster-sim --help``, and first line of the function's docstring
    function: str = ""  # name of the function where it differs from the command's with underscores
    begins: bool = False  # whether the command itself checks what ``--out`` names

    def load(self) -> Callable[..., int | None]:
        """Import the function of the command."""
        module: Any = importlib.import_module(f"experiments.cli.commands.{self.module}")
        loaded: Callable[..., int | None] = getattr(
            module, self.function or self.name.replace("-", "_")
        )
        return loaded


COMMANDS = (
    Command(
        "topology", "topology", "Print sizes, distances, cuts and rates of a cluster.", begins=True
    ),
    Command("collective", "collective", "Simulate a collective at one or many sizes."),
    Command("train", "train", "Simulate one optimizer step and say where its time goes."),
    Command("plan", "plan", "Search for the fastest parallel plans that fit in memory."),
    Command("share", "share", "Run several jobs on one cluster, and see what they lose."),
    Command("queue", "queue", "Queue jobs for a cluster, and see how long they wait."),
    Command("run-job", "run_job", "Run a training job of weeks through its failures."),
    Command("serve", "serve", "Serve requests on one replica, token by token."),
    Command("replay", "replay", "Replay an execution trace of another tool on a cluster."),
    Command("fleet", "fleet", "Run a fleet that serves by day and trains by night."),
    Command("lend", "lend", "Say how many units can be lent tonight, at a stated confidence."),
    Command("experiment", "experiment", "Run one of the experiments, or list them."),
    Command("sweep", "sweep", "Run a table of parameters on all processors.", begins=True),
    Command("validate", "validate", "Compare predictions with published measurements."),
    Command("calibrate", "calibrate", "Fit the catalogue to your own measurements."),
    Command("measure-kit", "calibrate", "Write scripts that measure your own machine."),
    Command("compare", "explore", "Say what differs between two recorded runs, and why."),
    Command("explore", "explore", "Serve a local page with sliders over runs side by side."),
    Command("serve-api", "serve_api", "Answer questions of programs over HTTP, in JSON."),
    Command("report", "explore", "Write the stand-alone page of a run directory again."),
    Command("list", "listing", "List models, clusters, algorithms and other names.", "listing"),
    Command("doctor", "doctor", "Report versions, caches, memory and speed of this machine."),
)


class LazyGroup(click.Group):
    """Commands by name, each loaded at its first use; by default those of the registry."""

    context_class = HelpContext
    thing = "command"  # word for one entry of the group
    unknown = "No such command '{}'"  # message for a name that is not in the group

    @property
    def summaries(self) -> Mapping[str, str]:
        """Summaries of all commands by name, in the order of the help page."""
        return {command.name: command.summary for command in COMMANDS}

    def load(self, name: str) -> Any:
        """Load the command of a registered name."""
        command = next(command for command in COMMANDS if command.name == name)
        function: Any = command.load()
        if isinstance(function, click.Group):
            return function
        return as_options(name, function, begins=command.begins)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the help page."""
        return list(self.summaries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load a command; None for an unknown name."""
        name = self.spelled(cmd_name)
        return self.load(name) if name in self.summaries else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command whose name is the first argument."""
        names = list(self.summaries)
        if self.spelled(args[0]) not in names and not args[0].startswith("-"):
            near = suggestion(args[0], names)
            raise InputError(
                f"{self.unknown.format(args[0][:80])}.{near} There are: {', '.join(names)}. "
                f"See {ctx.command_path} --help."
            )
        return super().resolve_command(ctx, [self.spelled(args[0]), *args[1:]])

    def spelled(self, name: str) -> str:
        """Return the registered name of an entry for the spelling of a user."""
        return name

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and summaries without loading a command."""
        with formatter.section(f"{self.thing.capitalize()}s"):
            formatter.write_dl(list(self.summaries.items()))
