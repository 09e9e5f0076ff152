"""Entry point: one command line, whose mistakes are answered in one line with exit status 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from experiments.cli.groups import LazyGroup
from experiments.cli.process import leave, prepare
from topologies.errors import InputError, file_fault, shown

app = typer.Typer(
    name="cluster-sim",
    cls=LazyGroup,
    help="Discrete-event simulator of AI-accelerator clusters, AWS Trainium first.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130
LONGEST_MESSAGE = 1000

# Newer typer carries its own copy of click, so the base of its errors is taken from one of them.
UsageMistake: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from cluster_sim import __version__

        sys.stdout.write(f"cluster-sim {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options before the name of a command."""


def run(arguments: Sequence[str], program: typer.Typer = app) -> int:
    """Run one command line.

    Parameters
    ----------
    arguments : sequence of str
        Words after the program's name.
    program : Typer
        By default ``cluster-sim`` itself.

    Returns
    -------
    int
        0; 1 for a failed validation; 2 for a user's mistake, which is explained in one line on
        stderr without a traceback.
    """
    try:
        status = program(list(arguments), prog_name="cluster-sim", standalone_mode=False)
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
    told = (_wrong_value(mistake) or message).rstrip(".")
    stop = "" if told.endswith("?") else "."
    return _refuse(f"{told}{stop} See {command} --help.")


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
    sys.stderr.write(f"cluster-sim: {shown(' '.join(message.split()), LONGEST_MESSAGE)}\n")
    return status


def main() -> None:
    """Run the command line of this process."""
    prepare()
    leave(run(sys.argv[1:]))
