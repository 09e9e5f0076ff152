"""``cluster-sim experiment``: runs an experiment, whose options are its function's parameters."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from experiments.cli.options.from_fields import PLAIN, as_options, without_none
from experiments.cli.options.inputs import Invocation
from experiments.cli.output.printing import print_table, print_text
from experiments.cli.registry import LazyGroup
from experiments.reports.formatting import columns_of, constants, is_missing, table_text
from experiments.reports.run_record import plain
from experiments.scripts.registry import EXPERIMENTS, PARAMETERS, Experiment, Script
from topologies.support.errors import InputError
from topologies.support.options import KEY, described, required, setting

if TYPE_CHECKING:
    import pandas as pd

    from experiments.reports.run_directory import Run

COMMON = ("seed", "engine")  # parameters of ``run`` that every command has as options
WATCH = "watch"  # parameter of a ``run`` that takes long: a function that shows its progress
DESCRIPTION = re.compile(r"``([\w, ]+)``: (.+?\.)(?= ``[\w, ]+``: |$)")
"""Pattern of parameters and their description, which ends with a full stop."""


class ExperimentGroup(LazyGroup):
    """Experiments by name; dashes and underscores are equivalent."""

    thing = "experiment"
    unknown = "no experiment is called {}"

    @property
    def summaries(self) -> Mapping[str, str]:
        """Questions of all experiments by name."""
        return {each.name: each.question for each in EXPERIMENTS}

    def load(self, name: str) -> Any:
        """Build the command of an experiment."""
        return _command(next(each for each in EXPERIMENTS if each.name == name))

    def spelled(self, name: str) -> str:
        """Name of an experiment as it is registered."""
        return name.replace("-", "_")


experiment = ExperimentGroup(
    name="experiment",
    help="Run one of the experiments; `experiment NAME --help` lists its parameters.",
    no_args_is_help=True,
)


def _command(chosen: Experiment) -> Any:
    """Build the command of an experiment from the signature and docstring of its function."""
    script = chosen.load()
    parameters, docstring = _parameters(script.run), inspect.getdoc(script.run) or ""

    def ask(call: Invocation, options: Any) -> None:
        """Run the experiment with the options as they were stated."""
        values = {name: _value(name, each, options) for name, each in parameters.items()}
        taken = inspect.signature(script.run).parameters
        common = {name: getattr(call, name) for name in COMMON if name in taken}
        _run(chosen, script, {**values, **common}, call)

    ask.__annotations__["options"] = _settings(parameters, docstring)
    command = as_options(f"experiment {chosen.name}", ask)
    command.help = docstring.partition("\n\n")[0]
    return command


class _Parameter(NamedTuple):
    """Type and default of a parameter of ``run``."""

    kind: Any
    default: Any

    @property
    def is_list(self) -> bool:
        """Return whether the command line takes the values between commas."""
        return typing.get_origin(self.kind) in (tuple, list, Sequence)


def _parameters(run: Callable[..., Any]) -> dict[str, _Parameter]:
    """Return the parameters of ``run`` that are options of its command alone."""
    # The type of the result may need pandas, which is not loaded here.
    hints = inspect.get_annotations(run)
    named = {name: hint for name, hint in hints.items() if name not in ("return", WATCH)}
    types = typing.get_type_hints(SimpleNamespace(__annotations__=named), run.__globals__)
    return {
        name: _Parameter(without_none(types.get(name, str)), parameter.default)
        for name, parameter in inspect.signature(run).parameters.items()
        if name not in (*COMMON, WATCH)
    }


def _settings(parameters: Mapping[str, _Parameter], docstring: str) -> type:
    """Return a dataclass whose fields are options; a dataclass among them gives its fields."""
    texts, declared = PARAMETERS | parameter_texts(docstring), list[tuple[str, Any, Any]]()
    for name, (kind, default) in parameters.items():
        text = texts.get(name, "").rstrip(".") or name.replace("_", " ").capitalize()
        if dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            for key, each in described(type(default)).items():
                same = dataclasses.field(default=getattr(default, key), metadata={KEY: each})
                declared.append((key, hints[key], same))
        elif parameters[name].is_list:
            listed = None if default is None else ",".join(str(part) for part in default)
            declared.append((name, str, setting(listed, text, metavar="A,B,…")))
        else:
            is_open = default is inspect.Parameter.empty
            described_field = required(text) if is_open else setting(default, text)
            declared.append((name, kind if kind in PLAIN else str, described_field))
    doc = {"__doc__": "Settings."}
    return dataclasses.make_dataclass("Settings", declared, namespace=doc, kw_only=True)


def _value(name: str, parameter: _Parameter, options: Any) -> Any:
    """Return the argument of a parameter of ``run``."""
    kind = parameter.kind
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return kind(**{key: getattr(options, key) for key in described(kind)})
    stated = getattr(options, name)
    if not parameter.is_list or stated is None:
        return stated
    item: Any = next(part for part in typing.get_args(kind) if part is not Ellipsis)
    values = []
    for part in stated.split(","):
        try:
            values.append(item(part.strip()))
        except ValueError:
            what = "a whole number" if item is int else "a number"
            raise InputError(
                f"--{name.replace('_', '-')} {stated!r}: {part.strip()!r} must be {what}; write "
                "digits alone, with commas between values."
            ) from None
    return tuple(values)


def parameter_texts(docstring: str) -> dict[str, str]:
    """Descriptions in the paragraph of a docstring that begins with one, by parameter."""
    paragraphs = (" ".join(part.split()) for part in docstring.split("\n\n"))
    described = " ".join(part for part in paragraphs if DESCRIPTION.match(part))
    texts = {}
    for names, text in DESCRIPTION.findall(described):
        first = text[:1] if text.startswith("``") else text[:1].upper()
        words = (first + text[1:]).replace("``", "")
        texts.update(dict.fromkeys(names.split(", "), words))
    return texts


def _run(chosen: Experiment, script: Script, values: Mapping[str, Any], call: Invocation) -> None:
    has_progress = WATCH in inspect.signature(script.run).parameters
    watched = {WATCH: call.watch} if has_progress else {}
    frame = script.run(**values, **watched)
    inputs: dict[str, Any] = {}
    for name, value in values.items():  # a dataclass has an option for each field
        several = dataclasses.is_dataclass(value) and not isinstance(value, type)
        inputs |= dataclasses.asdict(value) if several else {name: value}
    from experiments.reports.drawing import headline

    figure = script.plot(frame)
    answer = headline(figure)

    document = {
        "experiment": chosen.name,
        "question": chosen.question,
        "answer": answer,
        "inputs": plain(inputs),
        "rows": _records(frame),
    }
    beside = None if script.claims is None else script.claims(frame)
    if beside is not None:
        document["claims"] = _records(beside)

    def show(_: object) -> None:
        """Print the answer and its rows, then what others claim."""
        print_experiment((chosen.question, answer, about(script.run)), frame)
        if beside is not None:
            _print_claims(beside)
        if call.out is not None:
            sys.stderr.write(f"written to {call.out}\n")

    def write(run: Run, _: object) -> None:
        """Write figure and rows of the experiment."""
        run.figure(chosen.name, figure, title=chosen.question)
        run.table("metrics", frame, title="Rows", parquet=True)
        if beside is not None:
            run.table("claims", beside, title="Claims beside these ratios")

    call.answer(document, show, write, inputs=inputs)


def _print_claims(beside: pd.DataFrame) -> None:
    """Print claims with their verdicts, then the reason of each that differs."""
    columns = ["claim", "claimed_low", "claimed_high", "ours", "verdict"]
    print_table("\nClaims beside these ratios", *table_text(beside[columns]))
    for row in beside[beside.apart != ""].to_dict("records"):
        reason = row["apart"]
        print_text(f"{row['claim']}: {row['verdict']}. {reason[0].upper()}{reason[1:]}.")


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a frame; an empty cell, such as a missing price, is null."""
    columns = columns_of(frame)
    cells = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return [{key: None if is_missing(cell) else cell for key, cell in row.items()} for row in cells]


ENDS = {"low": "80 % from", "high": "80 % to"}  # headings of the ends of an interval
CAVEAT = "80 % of measurements would lie between the two columns of 80 %."


def about(run: Callable[..., Any]) -> str:
    """Return how an experiment answers: what its docstring says before the parameters."""
    paragraphs = (" ".join(part.split()) for part in (inspect.getdoc(run) or "").split("\n\n")[1:])
    method = takewhile(
        lambda text: not (DESCRIPTION.match(text) or text[:8] == "Returns "), paragraphs
    )
    return " ".join(method)


def print_experiment(explained: tuple[str, str, str], rows: pd.DataFrame) -> None:
    """Print question, answer, how it was obtained, and the rows behind it."""
    (question, answer, method), (same, rest) = explained, constants(rows)
    keys = row_keys(rest)
    headings, cells = table_text(rest[list(dict.fromkeys([*keys, *rest.columns]))])
    named = [ENDS.get(heading, heading) for heading in headings]
    print_text(question, bold=True)
    print_text(f"{answer.rstrip('.')}." if answer else "")
    print_text(method.replace("``", ""))
    print_table(f"\nIn all rows: {same}" if same else "", named, cells, left=max(1, len(keys)))
    if set(ENDS) <= set(headings):
        click.echo(CAVEAT)


def row_keys(frame: pd.DataFrame) -> list[str]:
    """Return the columns that tell the rows of a table apart, the fewest from the left.

    A column of a key has each of its values in several rows, as a point of a grid does. Without
    such columns the key is the first column.

    >>> import pandas as pd
    >>> grid = {"op": ["a", "a", "b", "b"], "time": [1, 2, 3, 4], "z": [1, 2, 1, 2]}
    >>> row_keys(pd.DataFrame(grid))
    ['op', 'z']
    """
    names = [str(name) for name in frame.columns]
    repeated = [name for name in names if 2 * _distinct(frame, [name]) <= len(frame)]
    keys: list[str] = []
    for name in repeated:
        if _distinct(frame, [*keys, name]) > _distinct(frame, keys):
            keys.append(name)
    if not keys or _distinct(frame, keys) < len(frame):
        return names[:1]
    for name in tuple(keys):
        others = [key for key in keys if key != name]
        if _distinct(frame, others) == len(frame):
            keys = others
    return keys


def _distinct(frame: pd.DataFrame, names: list[str]) -> int:
    """Return how many different rows these columns have; one where there is no column."""
    return len(frame[names].drop_duplicates()) if names else 1
