"""Entry point of the command line; a user's mistake gets one line and exit status 2."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from experiments.cli.registry import LazyGroup
from topologies.support.errors import LONGEST_NAME, InputError, file_fault, shown
from topologies.support.options import in_words

MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2
"""Numbers of parameters of glibc's ``mallopt``, see mallopt(3)."""
NEVER = 2**31 - 1
GROWTH_BYTES = 64 * 2**20
OBJECTS_BETWEEN_SEARCHES = 400_000
SWITCHED = ("(on)", "(off)", "(true)", "(false)", "(yes)", "(no)")
"""Ends of click's words on an argument too many that are meant for a switch."""


def prepare() -> None:
    """Set up the process for speed: reuse of memory, one thread, few garbage collections."""
    # A schedule of a million ops passes through dozens of arrays of a few megabytes. glibc would
    # get the memory of each from the system and return it, and every page would be cleared again,
    # which takes up to half of a large run. No command multiplies matrices, so threads for linear
    # algebra, which take a tenth of a second to start, would only wait. Python looks for cycles of
    # garbage after 700 new objects; imports create up to three hundred thousand, none of them
    # garbage.
    gc.set_threshold(OBJECTS_BETWEEN_SEARCHES)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.platform != "linux":
        return
    import ctypes

    try:
        tune = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    tune(MMAP_MAX, 0)
    tune(TRIM_THRESHOLD, NEVER)
    tune(TOP_PAD, GROWTH_BYTES)


class ReaderGone(Exception):  # noqa: N818 – no error: whoever reads, such as head, has enough
    """Signal that the reader of standard output has closed it."""


class _Output(io.TextIOWrapper):
    """Standard output whose errors say that they concern standard output."""

    def write(self, text: str) -> int:
        """Write text; raise ReaderGone if the reader has closed the stream."""
        with _named():
            return super().write(text)

    def flush(self) -> None:
        """Flush the written text."""
        with _named():
            super().flush()


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as fault:
        raise OSError(fault.errno, fault.strerror, "standard output") from None


def open_streams() -> bool:
    """Prepare the standard streams, and return whether standard output is open."""
    # For a closed descriptor Python has no stream, and the first file opened would get its number,
    # and so the text meant for people.
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if not sys.warnoptions:
        # Warnings of libraries mean nothing to users; results are checked before they are shown.
        warnings.simplefilter("ignore")
    if sys.stdout is None:
        return False
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        terminal, encoding, errors = stream.isatty(), stream.encoding, stream.errors
        if errors == "strict":  # × in ASCII would end a command after all of its work
            errors = "replace"
        sys.stdout = _Output(stream.detach(), encoding, errors, line_buffering=terminal)
    return True


def leave(status: int) -> NoReturn:
    """End the process without unloading its modules, which takes longer than a small command."""
    atexit._run_exitfuncs()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except ReaderGone:
        pass
    except OSError as fault:
        status = 2
        tell(f"cluster-sim: {file_fault(fault)}\n")
    tell("")
    os._exit(status)


def tell(line: str) -> None:
    """Write a line to stderr; if that fails, the exit status still tells of the error."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line)
        sys.stderr.flush()


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
    """Run one command line; returns 0, 1 for a failed validation or 2 for a user's mistake."""
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
        left = "nothing half-written was left behind"
        if next((word for word in arguments if word[:1] != "-"), "") == "sweep":
            left = "finished rows are kept, and the same command goes on after them"
        return _refuse(f"interrupted; {left}", status=INTERRUPTED)
    return status if isinstance(status, int) else 0


def _out_of_memory() -> str:
    from topologies.support.memory_limit import machine_bytes
    from topologies.support.units import format_bytes

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
    reason, parameter = mistake.format_message(), getattr(mistake, "param", None)
    if isinstance(mistake, click.NoSuchOption) and context:
        reason = _elsewhere(mistake, context.command) or reason
    elif reason.startswith("Got unexpected extra argument") and not reason.endswith(SWITCHED):
        reason += "; a number stands with its unit, as 15T, and words with spaces in quotes"
    elif reason.endswith(SWITCHED):
        reason += ": a switch has no value; write --NAME for on, --no-NAME for off"
    elif parameter is not None and not isinstance(mistake, click.MissingParameter):
        name = next((flag for flag in parameter.opts if flag.startswith("-")), parameter.name)
        reason = f"{name} {mistake.message}"  # the option, its value, and the rule that it breaks
    reason = reason.rstrip(".")
    stop = "" if reason.endswith("?") else "."
    return _refuse(f"{reason}{stop} See {command} --help.")


def _elsewhere(mistake: click.NoSuchOption, command: click.Command) -> str:
    """Say what another tool's option is called here, or which commands have it; or nothing."""
    from experiments.cli.options.other_names import other_name

    def flags(of: click.Command) -> list[str]:
        return [flag for option in of.params for flag in option.opts]

    name = mistake.option_name
    if here := other_name(name, flags(command)):
        return f"No such option {name!r}; here it is {here}"
    context = click.Context(app)
    having = [each for each in app.summaries if name in flags(app.get_command(context, each))]
    return f"No such option {name!r}; it is for {in_words(tuple(having), 'and')}" if having else ""


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
