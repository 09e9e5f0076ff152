"""A command and a runner with which sweeps are tested, in this process and in others."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from experiments.cli.commands.sweep import program_of
from experiments.cli.main import run as run_line
from experiments.cli.output.printing import print_json
from topologies.support.errors import InputError


@click.command("probe")
@click.argument("op")
@click.option("--size", type=int, default=1)
@click.option("--fast/--slow", default=True)
@click.option("--tag", multiple=True)
@click.option("--model", default="")
@click.option("--json", "as_json", is_flag=True)
@click.option("--out", default="")
@click.option("--quiet", is_flag=True)
def probe(
    op: str, size: int, fast: bool, tag: tuple[str, ...], **_ignored: str | bool
) -> int | None:
    """Print what it was given; some sizes go wrong."""
    if size == 13:
        raise InputError("size 13 brings bad luck. Use 12.")
    if size == 14:
        raise ZeroDivisionError("fourteen")
    if size == 15:
        sys.stdout.write("no json")
        return None
    document = {"op": op, "double": 2 * size, "fast": fast, "tags": list(tag)}
    print_json({**document, "memory_bytes": {"total": size}, "wall_s": 0.5})
    return 1 if size == 16 else None


app = click.Group("probes", commands=[probe])


def run(arguments: Sequence[str]) -> int:
    """Run the probe as the command line runs a command."""
    return run_line(arguments, app)


PROBE = replace(program_of(app, ()), run=run)
"""A program with one command, as sweeps see it."""


@contextmanager
def threads(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Stand-in for a pool of processes, whose start takes a second."""
    with ThreadPoolExecutor(workers) as pool:
        yield pool


def run_row(_: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """Stand-in for the real runner: leaves a line for each run; ``--size=666`` kills its process.

    The environment names the file to write to.
    """
    options = dict(word.removeprefix("--").split("=") for word in arguments if "=" in word)
    with Path(os.environ["PROBE_LOG"]).open("a") as log:
        log.write(options["size"] + "\n")
    if options["size"] == "666":
        os._exit(9)
    time.sleep(float(os.environ.get("PROBE_SLEEP_S", "0")))
    document = json.loads(json.dumps({"double": 2 * int(options["size"])}))
    return {"status": "ok", "message": "", "document": document, "wall_s": 0.0}
