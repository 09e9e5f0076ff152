"""Study: a command, and a table of parameters with which it is run, in YAML.

Every value is text, as on a command line, so YAML cannot turn one into a date, a truth value or a
number of base sixty by accident::

    command: collective
    fixed: {op: all-reduce, size: 1GiB, ideal: true}
    grid:
      cluster: [trn2.48xlarge, trn2-ultraserver]
      algorithm: [ring, multi-ring]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import cluster_sim
from experiments.reports.run_record import content_digest, digest, option_words
from topologies.support.arguments import check_names
from topologies.support.errors import InputError, shown, suggestion
from topologies.support.files.reading import no_such_file
from topologies.support.files.tool_files import leaves_of
from topologies.support.files.yaml_documents import read_yaml, rule

Value = str | Sequence[str]
WRITTEN = ("best", "cache", "chakra", "folder", "metrics", "overlay", "residuals", "state", "write")
"""Parameters that name a path to write to; ``--out`` is not among them, as sweeps set it."""
LEFT_TO_US = ("json", "out", "quiet", "help")
CODE = (".py", ".pyc")  # endings of files with code that a command runs


@dataclass(frozen=True)
class Program:
    """A program with commands, such as ``cluster-sim``."""

    # Runs a command line in this process and returns the exit status. It is sent to other
    # processes, so it must be a function of a module
    run: Callable[[Sequence[str]], int]
    commands: tuple[str, ...]
    excluded: tuple[str, ...]
    # Returns the parameters of a command by name, positional ones first and in order
    parameters: Callable[[str], Mapping[str, click.Parameter]]

    def checked(self, command: str) -> Mapping[str, click.Parameter]:
        """Return the parameters of a command that a study may run."""
        if command not in self.commands:
            listed = ", ".join(name for name in self.commands if name not in self.excluded)
            near = suggestion(command, self.commands)
            raise InputError(f"no command is called {command}.{near} There are: {listed}.")
        if command in self.excluded:
            raise InputError(f"a study cannot run {command}; it runs a command that prints results")
        return self.parameters(command)


def arguments(program: Program, command: str, values: Mapping[str, Value]) -> list[str]:
    """Return the command line of a command with some values and with JSON output."""
    parameters = program.checked(command)
    allowed = {name: item for name, item in parameters.items() if name not in LEFT_TO_US}
    for name in values:
        if name.replace("-", "_") not in allowed:
            if name in LEFT_TO_US:
                raise InputError(f"a study sets --{name} itself; leave it out")
            raise InputError(f"{command} has no parameter {name}.{suggestion(name, allowed)}")
    by_name = {name.replace("-", "_"): value for name, value in values.items()}
    options = ["--json", *(["--quiet"] if "quiet" in parameters else [])]
    positional: list[str] = []
    for name, parameter in allowed.items():
        if name in by_name:
            words = option_words(parameter, by_name[name])
            is_option = parameter.param_type_name == "option"
            (options if is_option else positional).extend(words)
    return [command, *options, "--", *positional]


LARGEST_FILE_BYTES = 2**20
MOST_RUNS = 1_000_000
RESULT = "result."
Values = dict[str, str | list[str]]


class Study(BaseModel):
    """Contents that a study file may have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str = Field(description="A command of cluster-sim, such as collective or train.")
    fixed: Values = Field(default_factory=dict, description="Parameters that every run has.")
    grid: dict[str, list[str]] = Field(
        default_factory=dict,
        description="Parameters with several values; all combinations are run.",
    )
    runs: list[Values] = Field(
        default_factory=list,
        description="Parameters of single runs; with a grid, each of its runs.",
    )
    show: list[str] = Field(
        default_factory=list, description="Columns to print; all are in results.csv."
    )

    def check_harmless(self, program: Program) -> None:
        """Check that the study runs no Python file and writes no file of its choice."""
        parameters = program.checked(self.command)
        tables: list[Mapping[str, Value]] = [self.fixed, self.grid, *self.runs]
        for name, value in (each for values in tables for each in values.items()):
            for text in [value] if isinstance(value, str) else value:
                does = "runs a Python file" if text.endswith(CODE) else ""
                if (key := name.replace("-", "_")) in parameters and key in WRITTEN:
                    does = "writes a file"
                if does:
                    raise InputError(
                        f"{name}: {shown(text)} {does}. Read the study, then add --trust if you "
                        "trust whoever wrote it."
                    )


KEYS = tuple(Study.model_fields)


@dataclass(frozen=True)
class Row:
    """One run of a study."""

    parameters: Mapping[str, str]  # values that distinguish the run from the others
    arguments: tuple[str, ...]
    # Digest of the command line, the version, and the content of the files that it names
    digest: str


def read_study(path: str | Path) -> Study:
    """Read a study file."""
    if not Path(path).exists():
        raise InputError(
            f"{shown(str(path))} cannot be read: {no_such_file(path)} A study is a YAML file "
            f"with the keys {', '.join(KEYS)}."
        )
    limit, content = LARGEST_FILE_BYTES, f"keys: a study is a mapping with {', '.join(KEYS)}"
    document = read_yaml(path, limit_bytes=limit, content=content, what="study", all_text=True)
    try:
        return study(document)
    except InputError as mistake:
        raise InputError(f"{shown(str(path))}: {mistake}") from None


def study(document: Any) -> Study:
    """Return a study from a document that was read or written by hand."""
    if not isinstance(document, dict):
        raise InputError(
            f"a study is a mapping, not {type(document).__name__}. Write the keys "
            f"{', '.join(KEYS)}, each with its value."
        )
    check_names("a study", map(str, document), KEYS)
    try:
        return Study.model_validate(document)
    except ValidationError as refused:
        first = refused.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("str", "list[str]"))
        raise InputError(f"{shown(place)}: {rule(first)}.") from None


def rows(described: Study, program: Program) -> list[Row]:
    """Return all runs of a study: for each entry of ``runs``, all combinations of the grid."""
    count = math.prod(len(values) for values in described.grid.values()) * max(
        1, len(described.runs)
    )
    if not (described.grid or described.runs) or not count:
        raise InputError(
            "the study has no runs; name parameters with several values under grid, or list runs."
        )
    if count > MOST_RUNS:
        raise InputError(f"the study has {count:,} runs; at most {MOST_RUNS:,}. Make several.")
    files: dict[str, str] = {}
    return [
        _row(described, {**fixed, **dict(zip(described.grid, values, strict=True))}, files, program)
        for fixed in described.runs or [{}]
        for values in itertools.product(*described.grid.values())
    ]


def results(finished: Iterable[tuple[Row, Mapping[str, Any]]]) -> pd.DataFrame:
    """Return parameters, status, results and message of all runs, a row for each of a command's."""
    pairs = [pair for row, outcome in finished for pair in _rows_of(row, outcome)]
    table = [cells for cells, _ in pairs]
    frame = pd.DataFrame(table)
    repeated = [name for name in frame.columns if name.startswith(RESULT) and _repeats(frame, name)]
    whole = dict.fromkeys(_whole_with_gaps(frame, table), "Int64")
    for name in frame.columns:
        texts = {isinstance(value, str) for value in frame[name].dropna()}
        if len(texts) > 1:  # text beside numbers
            frame[name] = [None if pd.isna(value) else str(value) for value in frame[name]]
    frame = frame.astype(whole).drop(columns=repeated)
    return frame.assign(message=[message for _, message in pairs])


def _rows_of(row: Row, outcome: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the cells of each row of one run, and its message."""
    stated = {name: _typed(text) for name, text in row.parameters.items()}
    stated["status"] = outcome["status"]
    document = outcome["document"] or {}
    many = document.get("rows") if isinstance(document.get("rows"), list) else [document]
    for printed in many or [{}]:
        leaves = leaves_of(printed if isinstance(printed, dict) else {"value": printed})
        taken = {*stated, "message"}
        cells = stated | {
            RESULT * (name in taken) + name: str(value) if isinstance(value, list) else value
            for name, value in leaves
        }
        yield cells, outcome["message"]


def _whole_with_gaps(frame: pd.DataFrame, table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns of integers that pandas holds as floats, because some runs have no value."""
    return [
        str(name)
        for name in frame.columns
        if frame[name].dtype == float
        and frame[name].isna().any()
        and all(type(row[name]) is int for row in table if row.get(name) is not None)
    ]


def _row(described: Study, varied: Values, files: dict[str, str], program: Program) -> Row:
    command_line = arguments(program, described.command, {**described.fixed, **varied})
    # Each word, or its value, may name a file, or several between commas.
    values = [word.partition("=")[2] or word for word in command_line]
    named = sorted({name for value in values for name in (value, *value.split(","))})
    for name in named:
        if name not in files:
            files[name] = content_digest(name)
    read = {name: files[name] for name in named if files[name]}
    question = {"arguments": command_line, "files": read, "version": cluster_sim.__version__}
    shown = {
        key: value if isinstance(value, str) else ",".join(value) for key, value in varied.items()
    }
    return Row(shown, tuple(command_line), digest(question))


def _typed(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return text


def _repeats(frame: pd.DataFrame, name: str) -> bool:
    """Return whether a result is always equal to the parameter of its name."""
    repeated = name.removeprefix(RESULT)
    if repeated not in frame:
        return False
    present = frame[name].notna()
    return bool(
        (frame.loc[present, name].astype(str) == frame.loc[present, repeated].astype(str)).all()
    )
