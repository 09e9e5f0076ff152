"""Commands of ``cluster-sim``: a name, the module loaded at its first use, and a summary.

A new command is one line here and one module of ``experiments.cli.commands`` with a function of the
command's name; see ``docs/how-to/add-a-command.md``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """A command that is loaded when it is used.

    ``name``: name on the command line.
    ``module``: module of ``experiments.cli.commands`` with the function of that name.
    ``summary``: line of ``cluster-sim --help``, and first line of the function's docstring.
    ``function``: name of the function where it differs from the command's with underscores.
    ``resumes``: whether ``--out`` may name the directory of an earlier run.
    """

    name: str
    module: str
    summary: str
    function: str = ""
    resumes: bool = False

    def load(self) -> Callable[..., int | None]:
        """Import the function of the command."""
        module: Any = importlib.import_module(f"experiments.cli.commands.{self.module}")
        loaded: Callable[..., int | None] = getattr(
            module, self.function or self.name.replace("-", "_")
        )
        return loaded


COMMANDS = (
    Command("topology", "topology", "Print sizes, distances, cuts and rates of a cluster."),
    Command("collective", "collective.command", "Simulate a collective at one or many sizes."),
    Command("train", "train", "Simulate one optimizer step and say where its time goes."),
    Command("plan", "plan", "Search for the fastest parallel plans that fit in memory."),
    Command(
        "share", "share", "Run several jobs on one cluster and say what each costs the others."
    ),
    Command("run-job", "run_job.command", "Run a training job of weeks through its failures."),
    Command("serve", "serve.command", "Serve requests on one replica, token by token."),
    Command("replay", "replay", "Replay an execution trace of another tool on a cluster."),
    Command("fleet", "fleet.command", "Run a fleet that serves by day and trains by night."),
    Command("lend", "lend", "Say how many units can be lent tonight, at a stated confidence."),
    Command("experiment", "experiment", "Run one of the experiments, or list them."),
    Command("sweep", "sweep", "Run a table of parameters on all processors.", resumes=True),
    Command("validate", "validate", "Compare predictions with published measurements."),
    Command("calibrate", "calibrate", "Fit the catalogue to your own measurements."),
    Command("measure-kit", "measure_kit", "Write the scripts that an owner of hardware runs."),
    Command("explore", "explore", "Serve a local page with sliders over runs side by side."),
    Command("serve-api", "serve_api", "Answer questions of programs over HTTP, in JSON."),
    Command("report", "report", "Write the stand-alone page of a run directory again."),
    Command("list", "listing", "List models, clusters, algorithms and other names.", "listing"),
    Command("doctor", "doctor", "Report versions, caches, memory and speed of this machine."),
)
