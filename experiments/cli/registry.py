"""Commands of ``cluster-sim``, each of whose modules is loaded when its command is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from experiments.cli.options.from_fields import HelpContext, as_options
from topologies.support.errors import InputError, suggestion

COMMANDS = {
    "topology": "Print sizes, distances, cuts and rates of a cluster.",
    "collective": "Simulate a collective at one or many sizes.",
    "train": "Simulate one optimizer step and say where its time goes.",
    "plan": "Search for the fastest parallel plans that fit in memory.",
    "share": "Run several jobs on one cluster, and see what they lose.",
    "queue": "Queue jobs for a cluster, and see how long they wait.",
    "run-job": "Run a training job of weeks through its failures.",
    "serve": "Serve requests on one replica, token by token.",
    "replay": "Replay an execution trace of another tool on a cluster.",
    "fleet": "Run a fleet that serves by day and trains by night.",
    "lend": "Say how many units can be lent tonight, at a stated confidence.",
    "experiment": "Run one of the experiments, or list them.",
    "sweep": "Run a table of parameters on all processors.",
    "validate": "Compare predictions with published measurements.",
    "calibrate": "Fit the catalogue to your own measurements.",
    "measure-kit": "Write scripts that measure your own machine.",
    "compare": "Say what differs between two recorded runs, and why.",
    "explore": "Serve a local page with sliders over runs side by side.",
    "serve-api": "Answer questions of programs over HTTP, in JSON.",
    "report": "Write the stand-alone page of a run directory again.",
    "list": "List models, clusters, algorithms and other names.",
    "doctor": "Report versions, caches, memory and speed of this machine.",
}
"""Commands with their line of ``cluster-sim --help``, the first of their function's docstring."""
ELSEWHERE = {
    "measure-kit": "calibrate",
    "compare": "explore",
    "report": "explore",
    "list": "listing",
}
"""Modules of ``experiments.cli.commands`` that have another name than their command."""
CHECKING_OUT = ("topology", "sweep")  # commands that check themselves what ``--out`` names


def command_function(name: str) -> Any:
    """Import the function of a command."""
    module = importlib.import_module(
        f"experiments.cli.commands.{ELSEWHERE.get(name, name.replace('-', '_'))}"
    )
    return module.listing if name == "list" else getattr(module, name.replace("-", "_"))


class LazyGroup(click.Group):
    """Commands by name, each loaded at its first use; by default those of the registry."""

    context_class = HelpContext
    thing = "command"  # word for one entry of the group
    unknown = "No such command '{}'"  # message for a name that is not in the group

    @property
    def summaries(self) -> Mapping[str, str]:
        """Summaries of all commands by name, in the order of the help page."""
        return COMMANDS

    def load(self, name: str) -> Any:
        """Load the command of a registered name."""
        function = command_function(name)
        if isinstance(function, click.Group):
            return function
        return as_options(name, function, begins=name in CHECKING_OUT)

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
