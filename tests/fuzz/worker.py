"""A process that runs cases one after another, with limits on memory and time."""

import contextlib
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.cli.main import app
from experiments.cli.options.from_fields import parameters
from tests.fuzz.cases import Case, draw
from tests.fuzz.judge import Answer, faults
from tests.support.probe_command import threads

MEMORY_BYTES = 4 * 2**30
LONGEST_S = 60.0
"""Processor time of a case [s]; how long it takes on the clock is the machine's affair."""


class OverTime(BaseException):
    """A case took too long; nothing that catches errors catches it."""


def _stop(*_: object) -> None:
    raise OverTime(f"over {LONGEST_S:.0f} s of processor time")


def answer(case: Case, folder: Path) -> Answer:
    """Run a case in a folder of its own, in this process."""
    from experiments.cli.main import run

    output, errors = io.StringIO(), io.StringIO()
    case.write(folder)
    usual = signal.signal(signal.SIGPROF, _stop)
    before = os.getcwd()
    os.chdir(folder)
    status: int | None = None
    escaped = ""
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("always")
            signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
            status = run(list(case.arguments))
    except BaseException as fault:
        place = traceback.extract_tb(fault.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        message = str(fault)[:200].replace(str(folder), "FOLDER")
        escaped = f"{type(fault).__name__}: {message} at {where}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, usual)
        os.chdir(before)
    return Answer(status, output.getvalue(), errors.getvalue(), escaped)


def examine(case: Case) -> list[str]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        return faults(answer(case, folder), case.arguments, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def every_option() -> dict[str, Mapping[str, Any]]:
    """Parameters of every command by name, those that no study may name, too."""
    return {name: parameters(app.get_command(None, name)) for name in app.list_commands(None)}


def main() -> None:
    """Run cases by the seeds that stand on standard input, one a line; answer each in one line."""
    from experiments.sweeps import runner

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))
    options = every_option()
    runner.process_pool = threads  # a sweep's rows share this process's limits
    stream = os.fdopen(os.dup(1), "w", buffering=1)
    stream.write(f"ready {used}\n")
    for line in sys.stdin:
        seed = int(line)
        defects = examine(draw(seed, options))
        stream.write(f"{seed} {' | '.join(' '.join(one.split()) for one in defects)}\n")


if __name__ == "__main__":
    main()
