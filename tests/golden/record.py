"""Run the golden commands and compare their JSON with what was recorded.

``python -m tests.golden.record`` compares; with ``--write`` it records. Wall times, memory of the
process and versions are left out, every other number is kept to its last digit.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.cli.main import run

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
VOLATILE = {"build_s", "simulate_s", "wall_s", "peak_rss_bytes", "version", "search_s", "elapsed_s"}
"""Keys that tell about the process rather than about the simulated machine."""
INTERVALS = {"interval", "low", "high", "tied", "coverage", "median_half_width", "mean_wait_ends_s"}
"""Keys that follow the residuals of all validation tables, which are recorded by themselves."""
LEFT_OUT = VOLATILE | INTERVALS
FITTED = ("checkpoint_interval_s",)
"""Ends of keys that LAPACK fits; their last digits differ from processor to processor."""


def commands() -> dict[str, list[str]]:
    """Words of each golden command by its name."""
    lines = (HERE / "commands.txt").read_text().splitlines()
    pairs = (line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {name: shlex.split(text.replace("FILES", str(HERE))) for name, text in pairs}


def answer(words: list[str]) -> Any:
    """JSON document of one command without what differs between two runs."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        status = run([*(word.replace("STATE", folder) for word in words), "--json", "--quiet"])
    if not output.getvalue():
        return {"status": status, "stderr": errors.getvalue().replace(str(HERE), "FILES")}
    if "--follow" in words:  # a line of JSON for each hour
        return steady([json.loads(line) for line in output.getvalue().splitlines()])
    return steady(json.loads(output.getvalue()))


def steady(value: Any) -> Any:
    """Copy of a document without its volatile keys and this folder's path."""
    if isinstance(value, dict):
        return {key: steady(item) for key, item in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [steady(item) for item in value]
    return value.replace(str(HERE), "FILES") if isinstance(value, str) else value


def differences(expected: Any, actual: Any, place: str = "") -> Iterator[str]:
    """One line for each value that differs between two documents."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            yield from differences(expected.get(key), actual.get(key), f"{place}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for number, pair in enumerate(zip(expected, actual, strict=True)):
            yield from differences(*pair, f"{place}[{number}]")
    elif place.endswith(FITTED) and isinstance(expected, float) and isinstance(actual, float):
        if not math.isclose(expected, actual, rel_tol=1e-12):
            yield f"{place}: {expected} became {actual}"
    elif expected != actual or type(expected) is not type(actual):
        yield f"{place}: {str(expected)[:80]} became {str(actual)[:80]}"


def recorded(name: str) -> Any:
    """Document recorded for a command."""
    return json.loads((EXPECTED / f"{name}.json").read_text())


def main(arguments: list[str]) -> int:
    """Compare or record the commands whose names contain one of the arguments (all if none)."""
    wanted = [word for word in arguments if not word.startswith("--")]
    moved = 0
    for name, words in commands().items():
        if wanted and not any(part in name for part in wanted):
            continue
        document = answer(words)
        if "--write" in arguments:
            EXPECTED.mkdir(exist_ok=True)
            text = json.dumps(document, indent=1, sort_keys=True)
            (EXPECTED / f"{name}.json").write_text(text + "\n")
            print(f"{name}: {len(text)} characters")
            continue
        lines = list(differences(recorded(name), document))
        moved += bool(lines)
        print(f"{name}: {'same' if not lines else f'{len(lines)} values moved'}")
        for line in lines[:10]:
            print(f"  {line}")
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
