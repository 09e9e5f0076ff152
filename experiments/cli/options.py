"""Options of a command, generated from the dataclasses that the command takes.

A command is a function of a few dataclasses whose fields are described with
:func:`topologies.options.option`::

    def topology(call: Invocation, machine: MachineInputs, graph: GraphInputs) -> None: ...

:func:`as_options` gives the same function with one keyword for each field, which typer understands.
A parameter ``Annotated[Mapping[str, Any], Stated(Plan)]`` receives the fields that the user stated
and no other, for a dataclass that the library completes.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from experiments.cli.invocation import Invocation
from topologies.options import Option, described

Command = Callable[..., int | None]
PLAIN = (bool, int, float, str, Path)


@dataclass(frozen=True)
class Stated:
    """Marks a mapping parameter of a command that holds the stated fields of a dataclass.

    Attributes
    ----------
    kind : type
        Dataclass with described fields.
    required, without : tuple of str
        Fields that must be stated, and fields that this command does not take.
    """

    kind: type
    required: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Group:
    """Options of one parameter of a command, and how their values become its argument."""

    parameters: tuple[inspect.Parameter, ...]
    recorded: tuple[str, ...]
    build: Callable[[Mapping[str, Any]], Any]


def as_options(
    name: str,
    command: Command,
    *,
    resumes: bool = False,
    more: Mapping[str, Sequence[inspect.Parameter]] | None = None,
) -> Command:
    """Return a command as a function of keywords, one for each field of its dataclasses.

    Parameters
    ----------
    name : str
        Name of the command, which a run directory records.
    command : function
        Its parameters are annotated with dataclasses, or with :class:`Stated`; one of them may be
        an :class:`Invocation`, which then knows the inputs of all others.
    resumes : bool
        Whether the directory of ``--out`` may hold an earlier run, and the command checks it.
    more : mapping of str to parameters, optional
        Options of a parameter that is no dataclass; it receives them as a mapping.

    Raises
    ------
    TypeError
        When two fields have one name, or a field has a type that no option can have.
    """
    hints = get_type_hints(command, include_extras=True)
    given_by = dict(more or {})
    groups = {
        key: _listed(given_by[key]) if key in given_by else _group(hints[key])
        for key in inspect.signature(command).parameters
    }
    parameters = [one for group in groups.values() for one in group.parameters]
    recorded = [key for group in groups.values() for key in group.recorded]
    if len({one.name for one in parameters}) < len(parameters):
        raise TypeError(f"command {name} has two options of one name")

    signature = inspect.Signature(parameters)

    def call(**stated: Any) -> int | None:
        bound = signature.bind(**stated)
        bound.apply_defaults()
        given = bound.arguments
        arguments = {key: group.build(given) for key, group in groups.items()}
        inputs = {key: given[key] for key in recorded}
        for key, value in arguments.items():
            if isinstance(value, Invocation):
                arguments[key] = dataclasses.replace(value, command=name, inputs=inputs)
                if not resumes:
                    value.check_out()
                    value.hush()
        return command(**arguments)

    call.__doc__, call.__name__ = command.__doc__, name
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


def _group(hint: Any) -> _Group:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    stated = next((mark for mark in marks if isinstance(mark, Stated)), None)
    if stated is not None:
        return _stated(stated)
    if not dataclasses.is_dataclass(hint) or not isinstance(hint, type):
        raise TypeError(f"{hint} is no dataclass, so no option can be made of it")
    options, hints = described(hint), get_type_hints(hint)
    defaults = {one.name: _default(one) for one in dataclasses.fields(hint)}
    parameters = {
        key: typer_parameter(key, _kind(hints[key], option), option, defaults[key])
        for key, option in options.items()
    }

    def build(given: Mapping[str, Any]) -> Any:
        values = {key: given[key] for key in options}
        lists = [key for key in options if get_origin(_bare(hints[key])) is tuple]
        return hint(**values | {key: tuple(values[key] or ()) for key in lists})

    return _Group(tuple(parameters.values()), _recorded(options), build)


def _stated(stated: Stated) -> _Group:
    """Options of a dataclass of which only those that are given count."""
    hints = get_type_hints(stated.kind)
    options = {
        key: option for key, option in described(stated.kind).items() if key not in stated.without
    }
    usual = {one.name: one.default for one in dataclasses.fields(stated.kind)}

    def parameter(key: str, option: Option) -> inspect.Parameter:
        kind = option.kind or _bare(hints[key])
        kind = kind if kind in PLAIN else str
        if key in stated.required:
            return typer_parameter(key, kind, option, inspect.Parameter.empty)
        shown = option.default or _shown(usual[key])
        return typer_parameter(key, kind | None, dataclasses.replace(option, default=shown), None)

    def build(given: Mapping[str, Any]) -> dict[str, Any]:
        return {key: given[key] for key in options if given[key] is not None}

    parameters = tuple(parameter(key, option) for key, option in options.items())
    return _Group(parameters, _recorded(options), build)


def _listed(parameters: Sequence[inspect.Parameter]) -> _Group:
    """Options that are given one by one."""
    names = tuple(one.name for one in parameters)
    return _Group(tuple(parameters), names, lambda given: {name: given[name] for name in names})


def _recorded(options: Mapping[str, Option]) -> tuple[str, ...]:
    return tuple(key for key, option in options.items() if option.recorded)


def typer_parameter(key: str, kind: Any, option: Option, default: Any) -> inspect.Parameter:
    """Return the parameter that typer reads as an option.

    Parameters
    ----------
    key : str
        Name of the value in the function.
    kind : type
        A plain type, a list of one, or either with ``None``.
    option : Option
    default : value
        ``inspect.Parameter.empty`` for a value that must be given.
    """
    bare = _bare(kind)
    told: dict[str, Any] = {
        "help": _with_default(option, default),
        "metavar": option.metavar or None,
        "min": option.least,
        "max": option.most,
        "show_default": False,
    }
    if known := option.known():
        told["autocompletion"] = lambda incomplete: [one for one in known if incomplete in one]
    spelled = (option.name or key).replace("_", "-")
    if option.argument:
        info = typer.Argument(**told)
    elif bare is bool and default is not False:
        info = typer.Option(f"--{spelled}/--no-{spelled}", **told)
    else:
        info = typer.Option(f"--{spelled}", **told)
    if default == ():
        default = None
    hint: Any = Annotated[kind, info]
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _with_default(option: Option, default: Any) -> str:
    usual = option.default or ("" if default is inspect.Parameter.empty else _shown(default))
    return f"{option.sentence().rstrip('.')}; default {usual}." if usual else option.sentence()


def _default(declared: dataclasses.Field[Any]) -> Any:
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return inspect.Parameter.empty if declared.default is MISSING else declared.default


def _kind(hint: Any, option: Option) -> Any:
    """Type of an option's value: that of the field, a list for a tuple, text for a literal."""
    bare, optional = _bare(hint), NoneType in get_args(hint)
    if get_origin(bare) is tuple:
        return list[get_args(bare)[0]] | None  # type: ignore[misc]
    if get_origin(bare) is Literal:
        bare = str
    if option.kind is not None:
        bare = option.kind
    if bare not in PLAIN:
        raise TypeError(f"an option cannot have the type {hint}")
    return bare | None if optional else bare


def _bare(hint: Any) -> Any:
    """Type without ``None``."""
    if get_origin(hint) in (UnionType, Union):
        return next(part for part in get_args(hint) if part is not NoneType)
    return hint


def _shown(default: Any) -> str:
    """Text of a default for the help page, empty where there is nothing to say."""
    if isinstance(default, bool):
        return "on" if default else ""
    if default is MISSING or default is None or default in ((), ""):
        return ""
    return "-".join(map(str, default)) if isinstance(default, tuple) else str(default)
