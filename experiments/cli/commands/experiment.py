"""``cluster-sim experiment``: runs an experiment, whose options are the parameters of its ``run``.

With ``--out DIR`` the frame and the figure are written to a run directory. The figure has the name
of the module, or its ``FIGURE``. An optional function ``save(run, frame, **options)`` of the module
adds more files (:class:`experiments.reports.run_directory.Run`).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any

import click

from cluster_sim.progress import progress
from experiments.cli.options.from_fields import as_options, click_parameter
from experiments.cli.options.inputs import Invocation
from experiments.cli.output.printing import print_table, print_text
from experiments.cli.registry import Entry, LazyGroup
from experiments.reports.formatting import constants, table_text
from experiments.reports.run_record import plain
from experiments.scripts.registry import EXPERIMENTS, PARAMETERS, Experiment
from topologies.errors import InputError
from topologies.files.table import Table, is_missing
from topologies.options import Option, described

if TYPE_CHECKING:
    import pandas as pd

    from experiments.reports.run_directory import Run

COMMON = ("seed", "engine")
"""Parameters of ``run`` that every command has as options."""
WATCH = "watch"
"""Parameter of a ``run`` that takes long: a function that shows its progress."""
SCALARS = (bool, int, float, str, Path)
DESCRIPTION = re.compile(r"``([\w, ]+)``: (.+?\.)(?= ``[\w, ]+``: |$)")
"""Pattern of parameters and their description, which ends with a full stop."""


class ExperimentGroup(LazyGroup):
    """Experiments by name; dashes and underscores are equivalent."""

    thing = "experiment"
    unknown = "no experiment is called {}"

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All experiments by name."""
        return {each.name: Entry(each.question, partial(_command, each)) for each in EXPERIMENTS}

    def spelled(self, name: str) -> str:
        """Name of an experiment as it is registered."""
        return name.replace("-", "_")


experiment = ExperimentGroup(
    name="experiment",
    help="Run one of the experiments; `experiment NAME --help` lists its parameters.",
    no_args_is_help=True,
)


def _command(chosen: Experiment) -> Any:
    """Build the command of an experiment from the signature and docstring of its ``run``."""
    module = chosen.load()
    arguments = _arguments(module.run)

    def ask(call: Invocation, options: Mapping[str, Any]) -> None:
        """Run the experiment with the options as they were stated."""
        values = {name: argument.read(options) for name, argument in arguments.items()}
        parameters = inspect.signature(module.run).parameters
        common = {name: getattr(call, name) for name in COMMON if name in parameters}
        _run(chosen, module, {**values, **common}, call)

    options = [option for argument in arguments.values() for option in argument.options]
    command = as_options(f"experiment {chosen.name}", ask, more={"options": options})
    command.help = _first_line(inspect.getdoc(module.run) or "")
    return command


@dataclass(frozen=True)
class _Argument:
    """Options of one parameter of ``run``, and how their values become its argument."""

    options: tuple[click.Parameter, ...]
    read: Callable[[Mapping[str, Any]], Any]


def _arguments(run: Callable[..., Any]) -> dict[str, _Argument]:
    """Options of the parameters of ``run``; a dataclass has one for each described field."""
    hints, texts = _hints(run), PARAMETERS | parameter_texts(inspect.getdoc(run) or "")
    return {
        name: _argument(name, parameter.default, _without_none(hints.get(name, str)), texts)
        for name, parameter in inspect.signature(run).parameters.items()
        if name not in (*COMMON, WATCH)
    }


def _hints(run: Callable[..., Any]) -> dict[str, Any]:
    """Types of the parameters; the type of the result may need pandas, which is not loaded here."""
    hints = inspect.get_annotations(run)
    named = {name: hint for name, hint in hints.items() if name not in ("return", WATCH)}
    return typing.get_type_hints(SimpleNamespace(__annotations__=named), run.__globals__)


def _argument(name: str, default: Any, kind: Any, texts: Mapping[str, str]) -> _Argument:
    if dataclasses.is_dataclass(kind):
        return _fields(default)
    help_text = texts.get(name, "").rstrip(".") or name.replace("_", " ").capitalize()
    if typing.get_origin(kind) in (tuple, list, Sequence):
        item = next(part for part in typing.get_args(kind) if part is not Ellipsis)
        listed = None if default is None else ",".join(str(part) for part in default)
        option = Option(help_text, metavar="A,B,…")
        reader = _list_reader(item)
        return _Argument(
            (click_parameter(name, str, option, listed),),
            lambda options: reader(name, options[name]),
        )
    kind = kind if kind in SCALARS else str
    parameter = click_parameter(name, kind, Option(help_text), default)
    return _Argument((parameter,), lambda options: options[name])


def _fields(default: Any) -> _Argument:
    """Options of the described fields of a dataclass, with the defaults of an instance."""
    kind = type(default)
    hints, options = typing.get_type_hints(kind), described(kind)
    return _Argument(
        tuple(
            click_parameter(name, hints[name], option, getattr(default, name))
            for name, option in options.items()
        ),
        lambda values: kind(**{name: values[name] for name in options}),
    )


def parameter_texts(docstring: str) -> dict[str, str]:
    """Descriptions in the paragraph of a docstring that begins with one, by parameter.

    >>> parameter_texts("Run.\\n\\n``tp, pp``: degrees of a replica. ``model``: ``gpt`` or other.")
    {'tp': 'Degrees of a replica.', 'pp': 'Degrees of a replica.', 'model': 'gpt or other.'}
    """
    paragraphs = (" ".join(part.split()) for part in docstring.split("\n\n"))
    described = " ".join(part for part in paragraphs if DESCRIPTION.match(part))
    texts = {}
    for names, text in DESCRIPTION.findall(described):
        first = text[:1] if text.startswith("``") else text[:1].upper()
        words = (first + text[1:]).replace("``", "")
        texts.update(dict.fromkeys(names.split(", "), words))
    return texts


def _run(
    chosen: Experiment, module: ModuleType, values: Mapping[str, Any], call: Invocation
) -> None:
    frame = (module.table if hasattr(module, "table") else module.run)(
        **values, **_watched(module, call)
    )
    brief = module.brief(frame) if hasattr(module, "brief") else frame
    inputs = _by_option(values)
    from experiments.reports.drawing import headline

    figure = module.plot(frame)
    answer = headline(figure)

    def document() -> dict[str, Any]:
        """JSON document of the answer."""
        return {
            "experiment": chosen.name,
            "question": chosen.question,
            "answer": answer,
            "inputs": plain(inputs),
            "rows": _records(brief),
        }

    def write(run: Run) -> None:
        """Write figure and rows of the experiment."""
        called = getattr(module, "FIGURE", chosen.name)
        run.figure(called, figure, title=chosen.question)
        run.table("metrics", frame, title="Rows", parquet=True)
        if hasattr(module, "save"):
            module.save(run, frame, **values)

    explained = Explained(chosen.question, answer, about(module))
    call.answer(document, partial(_print, explained, brief, call), write, inputs=inputs)


def _watched(module: ModuleType, call: Invocation) -> dict[str, Any]:
    """Return the argument of ``run`` that shows its progress on a terminal, if it has one."""
    if WATCH not in inspect.signature(module.run).parameters:
        return {}
    return {WATCH: partial(progress, quiet=call.quiet)}


def _by_option(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``run`` by option; a dataclass has one for each field."""
    inputs: dict[str, Any] = {}
    for name, value in values.items():
        several = dataclasses.is_dataclass(value) and not isinstance(value, type)
        inputs |= dataclasses.asdict(value) if several else {name: value}
    return inputs


def _print(explained: Explained, frame: Table | pd.DataFrame, call: Invocation) -> None:
    print_experiment(explained, Table.of(frame))
    if call.out is not None:
        sys.stderr.write(f"written to {call.out}\n")


def _records(frame: Table | pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as documents; an empty cell, such as a missing price, is null."""
    rows = Table.of(frame).documents()
    return [{key: None if is_missing(cell) else cell for key, cell in row.items()} for row in rows]


def _first_line(text: str) -> str:
    return text.partition("\n\n")[0]


def _list_reader(item: Callable[[str], Any]) -> Callable[[str, Any], Any]:
    def read(name: str, text: str | None) -> tuple[Any, ...] | None:
        """Read values that stand between commas."""
        try:
            return None if text is None else tuple(item(part.strip()) for part in text.split(","))
        except ValueError:
            kind = getattr(item, "__name__", "text")
            raise InputError(
                f"--{name.replace('_', '-')} {text!r} is no list of {kind} values; "
                "write them with commas, as A,B,C."
            ) from None

    return read


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (UnionType, typing.Union):
        return next(part for part in typing.get_args(hint) if part is not NoneType)
    return hint


ENDS = {"low": "80 % from", "high": "80 % to"}
"""Headings of the ends of an interval."""
CAVEAT = "80 % of measurements would lie between the two columns of 80 %."


@dataclass(frozen=True)
class Explained:
    """Question of an experiment, its answer in a sentence, and how it was obtained."""

    question: str
    answer: str
    method: str


def about(module: ModuleType) -> str:
    """Return the docstring of an experiment's module without its first line."""
    return " ".join((inspect.getdoc(module) or "").partition("\n\n")[2].replace("``", "").split())


def print_experiment(explained: Explained, rows: Table) -> None:
    """Print the answer first, then how it was obtained, and the rows behind it.

    Columns that tell rows apart come first, and again beside columns that do not fit.
    """
    same, rest = constants(rows)
    keys = row_keys(rest)
    ordered = Table({name: rest.columns[name] for name in _first(keys, list(rest.columns))})
    headings, cells = table_text(ordered)
    named = [ENDS.get(heading, heading) for heading in headings]
    print_text(explained.question, bold=True)
    print_text(f"{explained.answer.rstrip('.')}." if explained.answer else "")
    print_text(explained.method)
    print_table(f"\nIn all rows: {same}" if same else "", named, cells, left=max(1, len(keys)))
    if set(ENDS) <= set(headings):
        click.echo(CAVEAT)


def row_keys(table: Table) -> list[str]:
    """Return the columns that tell the rows of a table apart, the fewest from the left.

    A column of a key has each of its values in several rows, as a point of a grid does. Without
    such columns the key is the first column.

    >>> row_keys(Table({"op": ["a", "a", "b", "b"], "time": [1, 2, 3, 4], "z": [1, 2, 1, 2]}))
    ['op', 'z']
    """
    names = list(table.columns)
    repeated = [name for name in names if 2 * len(set(table.columns[name])) <= len(table)]
    keys: list[str] = []
    for name in repeated:
        if _distinct(table, [*keys, name]) > _distinct(table, keys):
            keys.append(name)
    if not keys or _distinct(table, keys) < len(table):
        return names[:1]
    for name in tuple(keys):
        others = [key for key in keys if key != name]
        if _distinct(table, others) == len(table):
            keys = others
    return keys


def _distinct(table: Table, names: list[str]) -> int:
    """Return how many different rows these columns have; one where there is no column."""
    return len(set(zip(*(table.columns[name] for name in names), strict=True))) if names else 1


def _first(keys: list[str], names: list[str]) -> Iterator[str]:
    yield from keys
    yield from (name for name in names if name not in keys)
