"""Entry point of the command line; a user's mistake gets one line and exit status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from experiments.cli.process import ReaderGone, leave, open_streams, prepare, tell
from experiments.cli.registry import LazyGroup
from topologies.errors import LONGEST_NAME, InputError, file_fault, shown

INTERRUPTED = 130
LONGEST_MESSAGE = 1000
LONGEST_PATH = 250
ENDS = (".", "?", "!", "…", ":")
TRACEBACK = "CLUSTER_SIM_TRACEBACK"
"""Environment variable under which an internal fault shows its traceback."""
SHELLS = ("bash", "zsh", "fish")
EXAMPLES = (
    "cluster-sim train --model llama-3.1-8b --cluster trn2.48xlarge --tp 8",
    "cluster-sim collective all-reduce trn2-ultraserver,gb200-nvl72 --size 1GiB",
    "cluster-sim plan --model llama-3.1-8b --cluster dgx-h100 --global-batch 64",
    "cluster-sim serve --model llama-3.1-70b --cluster trn2.48xlarge --tp 16",
    "cluster-sim fleet --model llama-3.1-8b --demand azure-code --days 1",
)


def _print_version(ctx: click.Context, _parameter: object, wanted: bool) -> None:
    if wanted:
        from cluster_sim import __version__

        sys.stdout.write(f"cluster-sim {__version__}\n")
        ctx.exit()


def _print_completion(ctx: click.Context, _parameter: object, shell: str | None) -> None:
    if shell:
        from click.shell_completion import get_completion_class

        completion: Any = get_completion_class(shell)
        sys.stdout.write(
            completion(app, {}, "cluster-sim", "_CLUSTER_SIM_COMPLETE").source() + "\n"
        )
        ctx.exit()


app = LazyGroup(
    name="cluster-sim",
    help="Discrete-event simulator of AI-accelerator clusters, AWS Trainium first.",
    # A paragraph after \b keeps its lines.
    epilog="\n".join(["\b", "Examples:", *(f"  {example}" for example in EXAMPLES)]),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and exit.",
        ),
        click.Option(
            ["--show-completion"],
            type=click.Choice(SHELLS),
            is_eager=True,
            expose_value=False,
            callback=_print_completion,
            help="Print the script that completes commands and options in a shell, as for bash: "
            'eval "$(cluster-sim --show-completion bash)".',
        ),
    ],
)


def run(arguments: Sequence[str], program: click.Command = app) -> int:
    """Run one command line.

    Returns the exit status: 0; 1 for a failed validation; 2 for a user's mistake, which is
    explained in one line on stderr without a traceback.
    """
    try:
        status = program.main(list(arguments), prog_name="cluster-sim", standalone_mode=False)
    except click.ClickException as mistake:
        return _explain(mistake)
    except InputError as mistake:
        return _refuse(str(mistake))
    except OSError as fault:
        return _refuse(file_fault(fault))
    except ReaderGone:
        return 0
    except MemoryError:
        return _refuse(_out_of_memory())
    except (click.Abort, KeyboardInterrupt):
        return _interrupted()
    return status if isinstance(status, int) else 0


def _out_of_memory() -> str:
    from topologies.memory_limit import machine_bytes
    from topologies.units import format_bytes

    return (
        f"ran out of memory; this process may use {format_bytes(machine_bytes())}. Ask for less at "
        "once: fewer chips, sizes or iterations, a smaller batch, or a coarser --level."
    )


def _explain(mistake: click.ClickException) -> int:
    context = getattr(mistake, "ctx", None)
    if isinstance(mistake, click.exceptions.NoArgsIsHelpError):
        sys.stdout.write(context.get_help() + "\n" if context else "")
        return 2
    command = context.command_path if context else "cluster-sim"
    reason = (_wrong_value(mistake) or mistake.format_message()).rstrip(".")
    stop = "" if reason.endswith("?") else "."
    return _refuse(f"{reason}{stop} See {command} --help.")


def _wrong_value(mistake: click.ClickException) -> str:
    """Text with the option, its value and the rule that it breaks; empty for other mistakes."""
    parameter = getattr(mistake, "param", None)
    if parameter is None or isinstance(mistake, click.MissingParameter):
        return ""
    name = next((flag for flag in parameter.opts if flag.startswith("-")), parameter.name)
    return f"{name} {mistake.message}"


def _interrupted() -> int:
    return _refuse("interrupted; nothing half-written was left behind", status=INTERRUPTED)


def _refuse(message: str, status: int = 2) -> int:
    words = (_cut(word) for word in message.split())
    line = shown(" ".join(words), LONGEST_MESSAGE)
    tell(f"cluster-sim: {line}{'' if line[-1:] in ENDS else '.'}\n")
    return status


def _cut(word: str) -> str:
    """Take the middle out of an overlong name or path."""
    longest = LONGEST_PATH if "/" in word else LONGEST_NAME
    return word if len(word) <= longest else f"{word[: longest // 2 - 1]}…{word[-longest // 2 :]}"


def main() -> None:
    """Run the command line of this process."""
    prepare()
    if not open_streams():
        leave(_refuse("standard output is closed; send it somewhere, such as > /dev/null."))
    try:
        status = run(sys.argv[1:])
    except Exception as fault:
        status = _own_fault(fault)
    leave(status)


def _own_fault(fault: Exception) -> int:
    """Report an internal fault in one line as well; its traceback is shown on request."""
    import traceback

    if os.environ.get(TRACEBACK):
        traceback.print_exception(fault)
        return 1
    place = traceback.extract_tb(fault.__traceback__)[-1]
    kind = f"{type(fault).__name__}: {fault}".rstrip(": .")
    return _refuse(
        f"internal fault, not yours: {shown(kind, 300)}, at {Path(place.filename).name} line "
        f"{place.lineno}. Please report this line with the command; {TRACEBACK}=1 shows more.",
        status=1,
    )
