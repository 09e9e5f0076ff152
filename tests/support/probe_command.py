"""A command and a runner that sweeps are tested with, in this process and in others."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.common import print_json
from experiments.cli.main import app
from topologies.errors import InputError


def probe(
    op: Annotated[str, typer.Argument()],
    size: Annotated[int, typer.Option("--size")] = 1,
    fast: Annotated[bool, typer.Option("--fast/--slow")] = True,
    tag: Annotated[list[str] | None, typer.Option("--tag")] = None,
    model: Annotated[str, typer.Option("--model")] = "",
    as_json: Annotated[bool, typer.Option("--json")] = False,
    out: Annotated[str, typer.Option("--out")] = "",
    quiet: Annotated[bool, typer.Option("--quiet")] = False,
) -> int | None:
    """Print what it was given; some sizes go wrong."""
    if size == 13:
        raise InputError("size 13 brings bad luck. Use 12.")
    if size == 14:
        raise ZeroDivisionError("fourteen")
    if size == 15:
        sys.stdout.write("no json")
        return None
    tags = tag or []
    document: dict[str, Any] = {"op": op, "double": 2 * size, "fast": fast, "tags": tags}
    print_json({**document, "memory_bytes": {"total": size}, "wall_s": 0.5})
    return 1 if size == 16 else None


@contextmanager
def registered() -> Iterator[None]:
    """The command is there for as long as this is open."""
    app.command("probe")(probe)
    added = app.registered_commands[-1]
    try:
        yield
    finally:
        app.registered_commands.remove(added)


def run_row(arguments: Sequence[str]) -> dict[str, Any]:
    """Stand-in for the real runner: leaves a line for each run; ``--size=666`` kills its process.

    The environment names the file to write to.
    """
    given = dict(word.removeprefix("--").split("=") for word in arguments if "=" in word)
    with Path(os.environ["PROBE_LOG"]).open("a") as log:
        log.write(given["size"] + "\n")
    if given["size"] == "666":
        os._exit(9)
    time.sleep(float(os.environ.get("PROBE_SLEEP_S", "0")))
    document = json.loads(json.dumps({"double": 2 * int(given["size"])}))
    return {"status": "ok", "message": "", "document": document, "wall_s": 0.0}
