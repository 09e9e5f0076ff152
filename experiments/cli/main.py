"""Entry point: gathers the commands and turns mistakes into one line and exit status 2."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import typer

from experiments.cli.calibrate import calibrate
from experiments.cli.collective import collective
from experiments.cli.everywhere import everywhere
from experiments.cli.fleet import fleet
from experiments.cli.plan import plan
from experiments.cli.report import report
from experiments.cli.serve import serve
from experiments.cli.sweep import sweep
from experiments.cli.topology import topology
from experiments.cli.train import train
from experiments.cli.validate import validate
from topologies.errors import InputError, file_fault, suggestion

app = typer.Typer(
    name="cluster-sim",
    help="Discrete-event simulator of AI-accelerator clusters, AWS Trainium first.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

INTERRUPTED = 130

# Newer typer carries its own copy of click, so the base of its errors is found from one of them.
UsageMistake: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


@app.callback()
def _root() -> None:
    """Keep the commands as subcommands even while there is only one."""


for _command in (
    *(topology, collective, train, plan, serve, fleet),
    *(sweep, validate, calibrate, report),
):
    app.command()(everywhere(_command))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns 0, 1 or 2, and never a traceback for a user's mistake."""
    try:
        status = app(list(arguments), prog_name="cluster-sim", standalone_mode=False)
    except UsageMistake as mistake:
        return _explain(mistake)
    except InputError as mistake:
        return _refuse(str(mistake))
    except OSError as fault:
        return _refuse(file_fault(fault))
    except (typer.Abort, KeyboardInterrupt):
        return _interrupted()
    if status == INTERRUPTED:  # typer answers Ctrl-C itself, without a word
        return _interrupted()
    return status if isinstance(status, int) else 0


def _explain(mistake: Exception) -> int:
    message = getattr(mistake, "format_message", mistake.__str__)()
    if type(mistake).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(message + "\n")
        return 2
    command = getattr(getattr(mistake, "ctx", None), "command_path", "cluster-sim")
    said = (_wrong_value(mistake) or message).rstrip(".")
    stop = "" if said.endswith("?") else "."
    return _refuse(f"{said}{stop}{_near_command(message)} See {command} --help.")


def _near_command(message: str) -> str:
    """What an unknown command may have meant, and those that there are."""
    asked = re.fullmatch(r"No such command '(.*)'\.?", message)
    if asked is None:
        return ""
    known = [command.callback.__name__ for command in app.registered_commands if command.callback]
    return f"{suggestion(asked[1], known)} There are {', '.join(known)}."


def _wrong_value(mistake: Exception) -> str:
    """Option, value and what it must be; empty where the mistake is not a value's."""
    parameter = getattr(mistake, "param", None)
    errors = getattr(mistake.__cause__, "errors", None)
    if parameter is None or errors is None:
        return ""
    first = errors()[0]
    must = str(first["msg"]).removeprefix("Input should ").partition(",")[0]
    name = next((flag for flag in parameter.opts if flag.startswith("-")), parameter.name)
    return f"{name} {first['input']!r} must {must}"


def _interrupted() -> int:
    return _refuse("interrupted; nothing half-written was left behind", status=INTERRUPTED)


def _refuse(message: str, status: int = 2) -> int:
    sys.stderr.write("cluster-sim: " + " ".join(message.split()) + "\n")
    return status


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))
