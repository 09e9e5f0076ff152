"""Options of a command, generated from the dataclasses that the command takes.

A command is a function of a few dataclasses whose fields are described with
:func:`topologies.options.option`::

    def topology(call: Invocation, machine: MachineInputs, graph: GraphInputs) -> None: ...

:func:`as_options` returns a click command with one option for each field. A parameter
``Annotated[Mapping[str, Any], Stated(Plan)]`` receives only the fields that the user stated, for a
dataclass that the library completes.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from experiments.cli.options.invocation import Invocation
from experiments.cli.options.parameters import (
    REQUIRED,
    CommandWithArguments,
    click_parameter,
    shown,
)
from topologies.errors import InputError
from topologies.options import Option, described

Command = Callable[..., int | None]
PLAIN = (bool, int, float, str, Path)


@dataclass(frozen=True)
class Stated:
    """Mark of a mapping parameter that receives the stated fields of a dataclass.

    ``required, without, searched``: fields that must be stated, fields that the command does not
        take, and fields whose values the command searches, so that they have no default.
    """

    kind: type
    required: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Group:
    """Options of one parameter of a command, and the function that builds its argument.

    ``heading``: first line of the parameter's dataclass, above its options on the help page.
    """

    heading: str
    parameters: tuple[click.Parameter, ...]
    recorded: tuple[str, ...]
    build: Callable[[Mapping[str, Any]], Any]


def as_options(
    name: str,
    command: Command,
    *,
    resumes: bool = False,
    more: Mapping[str, Sequence[click.Parameter]] | None = None,
) -> click.Command:
    """Return a click command with one option for each field of a function's dataclasses.

    ``name``: name of the command, which a run directory records. ``command``: function whose
    parameters are annotated with dataclasses, or with :class:`Stated`. One of them may be an
    :class:`Invocation`, which receives the inputs of all others. ``resumes``: whether the directory
    of ``--out`` may hold an earlier run, which the command then checks. ``more``: options of a
    parameter that is no dataclass; it receives them as a mapping.
    """
    hints = get_type_hints(command, include_extras=True)
    listed = dict(more or {})
    groups = {
        key: _listed(listed[key]) if key in listed else _group(hints[key])
        for key in inspect.signature(command).parameters
    }
    parameters = [parameter for group in groups.values() for parameter in group.parameters]
    recorded = [key for group in groups.values() for key in group.recorded]
    if len({parameter.name for parameter in parameters}) < len(parameters):
        raise TypeError(f"command {name} has two options of one name")

    def call(**stated: Any) -> int | None:
        """Answer the command with what click read."""
        # click gives an empty tuple where an option that may be repeated is not stated
        values = {
            key: list(value) or None if isinstance(value, tuple) else value
            for key, value in stated.items()
        }
        with by_option_names(parameters, values):
            return answer(values)

    def answer(values: Mapping[str, Any]) -> int | None:
        """Answer the command with the value of each parameter."""
        arguments = {key: group.build(values) for key, group in groups.items()}
        inputs = {key: values[key] for key in recorded}
        for key, value in arguments.items():
            if isinstance(value, Invocation):
                arguments[key] = dataclasses.replace(value, command=name, inputs=inputs)
                if not resumes:
                    value.check_out()
                    value.hush()
        return command(**arguments)

    called = name.rpartition(" ")[2]
    headings = {
        str(parameter.name): group.heading
        for group in groups.values()
        for parameter in group.parameters
    }
    return CommandWithArguments(
        called, callback=call, params=parameters, help=command.__doc__, headings=headings
    )


def _group(hint: Any) -> _Group:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    stated = next((mark for mark in marks if isinstance(mark, Stated)), None)
    if stated is not None:
        return _stated(stated)
    if not dataclasses.is_dataclass(hint) or not isinstance(hint, type):
        raise TypeError(f"{hint} is no dataclass, so no option can be made of it")
    options, hints = described(hint), get_type_hints(hint)
    defaults = {field.name: _default(field) for field in dataclasses.fields(hint)}
    parameters = {
        key: click_parameter(key, _kind(hints[key], option), option, defaults[key])
        for key, option in options.items()
    }

    def build(entered: Mapping[str, Any]) -> Any:
        values = {key: entered[key] for key in options}
        lists = [key for key in options if get_origin(_bare(hints[key])) is tuple]
        return hint(**values | {key: tuple(values[key] or ()) for key in lists})

    return _Group(_heading(hint), tuple(parameters.values()), _recorded(options), build)


def _stated(stated: Stated) -> _Group:
    """Options of a dataclass, of which the command receives only the stated ones."""
    hints = get_type_hints(stated.kind)
    options = {
        key: option for key, option in described(stated.kind).items() if key not in stated.without
    }
    defaults = {field.name: field.default for field in dataclasses.fields(stated.kind)}

    def parameter(key: str, option: Option) -> click.Parameter:
        """Parameter of click for one field."""
        kind = option.kind or _bare(hints[key])
        kind = kind if kind in PLAIN else str
        if key in stated.required:
            return click_parameter(key, kind, dataclasses.replace(option, default=""), REQUIRED)
        default = option.default or shown(defaults[key])
        if key in stated.searched:
            default = "searched"
        return click_parameter(key, kind, dataclasses.replace(option, default=default), None)

    def build(entered: Mapping[str, Any]) -> dict[str, Any]:
        return {key: entered[key] for key in options if entered[key] is not None}

    parameters = tuple(parameter(key, option) for key, option in options.items())
    return _Group(_heading(stated.kind), parameters, _recorded(options), build)


def _listed(parameters: Sequence[click.Parameter]) -> _Group:
    """Return the group of options that are listed one by one."""
    names = tuple(str(parameter.name) for parameter in parameters)
    return _Group(
        "Settings",
        tuple(parameters),
        names,
        lambda entered: {name: entered[name] for name in names},
    )


def _heading(kind: type) -> str:
    first, *_ = (kind.__doc__ or "Options").strip().splitlines()
    return first.partition(":")[0].rstrip(".")


def _recorded(options: Mapping[str, Option]) -> tuple[str, ...]:
    return tuple(key for key, option in options.items() if option.recorded)


def _default(declared: dataclasses.Field[Any]) -> Any:
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return REQUIRED if declared.default is MISSING else declared.default


def _kind(hint: Any, option: Option) -> Any:
    """Type of an option's value: the field's, a list for a tuple, text for a literal."""
    bare = _bare(hint)
    if get_origin(bare) is tuple:
        return list[get_args(bare)[0]]  # type: ignore[misc]
    if get_origin(bare) is Literal:
        bare = str
    if option.kind is not None:
        bare = option.kind
    if bare not in PLAIN:
        raise TypeError(f"an option cannot have the type {hint}")
    return bare


def _bare(hint: Any) -> Any:
    if get_origin(hint) in (UnionType, Union):
        return next(part for part in get_args(hint) if part is not NoneType)
    return hint


@contextmanager
def by_option_names(
    parameters: Sequence[click.Parameter], values: Mapping[str, Any]
) -> Iterator[None]:
    """Name options as the command line spells them in errors that are raised inside.

    ``values``: values by the names of parameters. One that is None was not stated, so that an error
    about its field is about a file's.

    Raises the error of the library, whose subject is an option instead of a field.
    """
    try:
        yield
    except InputError as mistake:
        stated = [each for each in parameters if values.get(str(each.name)) is not None]
        message = with_option_names(str(mistake), _spelled(stated))
        if message == str(mistake):
            raise
        raise InputError(message) from None


def with_option_names(message: str, spelled: Mapping[str, str]) -> str:
    """Return a message whose subject, if it is a field, is spelled as its option.

    Other places keep their words: a field inside a file is no option.

    >>> with_option_names("seq_len is 0; give 1 or more.", {"seq_len": "--seq-len"})
    '--seq-len is 0; give 1 or more.'
    >>> with_option_names("plan.yaml: seq_len is 0.", {"seq_len": "--seq-len"})
    'plan.yaml: seq_len is 0.'
    """
    subject = re.match(r"(\w+)(?= (is|names|sum) )", message)
    if subject is None or subject[1] not in spelled:
        return message
    return spelled[subject[1]] + message[subject.end() :]


def _spelled(parameters: Sequence[click.Parameter]) -> dict[str, str]:
    """Options by the names of their fields."""
    return {
        str(parameter.name): flag
        for parameter in parameters
        for flag in parameter.opts
        if flag.startswith("--")
    }
