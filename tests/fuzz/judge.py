"""Answers that a command may give; every other answer is a defect."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARES = ("mfu", "hfu", "slo_attainment", "coverage")
NOT_BELOW_ZERO = ("_s", "_bytes", "_per_s", "_usd", "_joules")
MAY_BE_NEGATIVE = (
    "error", "change", "bias", "elasticity", "saved", "difference", "net", "delta", "margin",
)  # fmt: skip
LONGEST_LINE = 1200


@dataclass(frozen=True)
class Answer:
    """Outcome of a command: exit status, output, messages, and an exception that escaped it."""

    status: int | None
    output: str
    errors: str
    escaped: str = ""


def faults(answer: Answer, arguments: tuple[str, ...], folder: Path) -> list[str]:
    """Return what is wrong with an answer, one phrase a fault; an empty list if nothing is."""
    if answer.escaped:
        return [f"traceback: {answer.escaped}"]
    spoken = (*_status_faults(answer, arguments), *_document_faults(answer, arguments))
    return [*spoken, *_file_faults(answer, arguments, folder)]


def _status_faults(answer: Answer, arguments: tuple[str, ...]) -> Iterator[str]:
    allowed = {0, 1, 2} if arguments[:1] in (("validate",), ("sweep",)) else {0, 2}
    if answer.status not in allowed:
        yield f"status {answer.status}"
    lines = answer.errors.splitlines()
    if "Traceback" in answer.errors:
        yield "traceback on stderr"
    if "Warning" in answer.errors:
        yield "a warning of a library on stderr"
    if answer.status == 2 and len(lines) != 1:
        yield f"{len(lines)} lines on stderr"
    if any(len(line) > LONGEST_LINE for line in lines):
        yield "a message of more than a thousand characters"
    if any(not one.isprintable() and one not in "\n\t" for one in answer.errors + answer.output):
        yield "control characters on the terminal"


def _document_faults(answer: Answer, arguments: tuple[str, ...]) -> Iterator[str]:
    if answer.status != 0 or "--json" not in arguments:
        return
    try:
        document = json.loads(answer.output, parse_constant=lambda name: f"constant {name}")
    except ValueError as fault:
        yield f"no JSON document: {fault}"
        return
    yield from _value_faults(document, "")


def _value_faults(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _bound_faults(value)
        for key, item in value.items():
            yield from _value_faults(item, str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _value_faults(item, name)
    elif isinstance(value, str) and value.startswith("constant "):
        yield f"{name} is {value.removeprefix('constant ')}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if name in SHARES and not 0 <= value <= 1 + 1e-9:
            yield f"{name} is {value}"
        signed = any(word in name for word in MAY_BE_NEGATIVE)
        if name.endswith(NOT_BELOW_ZERO) and value < 0 and not signed:
            yield f"{name} is {value}"


def _bound_faults(row: Mapping[str, Any]) -> Iterator[str]:
    time_s, bound_s = row.get("time_s"), row.get("lower_bound_s")
    numbers = isinstance(time_s, int | float) and isinstance(bound_s, int | float)
    if numbers and time_s < bound_s * (1 - 1e-9):
        yield f"time_s {time_s} is below lower_bound_s {bound_s}"


def _file_faults(answer: Answer, arguments: tuple[str, ...], folder: Path) -> Iterator[str]:
    left = [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".old"))]
    if left:
        yield f"a half file is left: {left[0]}"
    whole = (folder / "out" / "run.json").exists() or (folder / "out" / "sweep.json").exists()
    if answer.status != 0 and (folder / "out").exists() and not whole:
        yield "a directory without a record is left"
