"""Command lines from named values: how a study's parameters become ``cluster-sim`` arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topologies.errors import InputError, suggestion

Value = str | Sequence[str]
LEFT_TO_US = ("json", "out", "quiet", "help")
NOT_IN_A_STUDY = ("sweep", "report")
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Parameter:
    """An argument or option of a command.

    Attributes
    ----------
    flags : tuple of str
        Spellings, such as ``("--size",)``; empty for a positional argument.
    off_flags : tuple of str
        Spellings that turn a flag off, such as ``("--no-sequence-parallel",)``.
    is_flag, repeats : bool
        Takes no value; may be given more than once.
    """

    flags: tuple[str, ...]
    off_flags: tuple[str, ...] = ()
    is_flag: bool = False
    repeats: bool = False

    def words(self, name: str, value: Value) -> Iterator[str]:
        """What stands on the command line for this value."""
        if self.is_flag:
            yield from self._flag(name, value)
        elif not self.flags:
            yield _one(value)
        elif self.repeats and not isinstance(value, str):
            yield from (f"{self.flags[-1]}={item}" for item in value)
        else:
            yield f"{self.flags[-1]}={_one(value)}"

    def _flag(self, name: str, value: Value) -> Iterator[str]:
        text = _one(value).lower()
        if text in TRUE:
            yield self.flags[-1]
        elif text not in FALSE:
            raise InputError(f"{name} is {_one(value)}; it is a switch: true or false")
        elif self.off_flags:
            yield self.off_flags[-1]


def command_parameters(command: str) -> dict[str, Parameter]:
    """Parameters of a ``cluster-sim`` command by name, positional ones first and in order.

    Raises
    ------
    InputError
        When there is no such command, or it cannot be part of a study.
    """
    known = _commands()
    if command not in known:
        listed = ", ".join(name for name in known if name not in NOT_IN_A_STUDY)
        raise InputError(
            f"no command is called {command}.{suggestion(command, known)} There are: {listed}."
        )
    if command in NOT_IN_A_STUDY:
        raise InputError(f"a study cannot run {command}; it runs a command that prints results")
    made = {}
    for item in sorted(known[command].params, key=lambda item: item.param_type_name):
        flags = tuple(flag for flag in item.opts if flag.startswith("--"))
        name = flags[-1].removeprefix("--").replace("-", "_") if flags else str(item.name)
        made[name] = Parameter(
            flags,
            tuple(item.secondary_opts),
            is_flag=bool(getattr(item, "is_flag", False)),
            repeats=bool(getattr(item, "multiple", False)),
        )
    return made


def arguments(command: str, values: Mapping[str, Value]) -> list[str]:
    """The command line of a command with these values, printing JSON.

    Raises
    ------
    InputError
        When a name is unknown, or belongs to the study itself.
    """
    known = command_parameters(command)
    mine = {name: parameter for name, parameter in known.items() if name not in LEFT_TO_US}
    for name in values:
        if name.replace("-", "_") not in mine:
            if name in LEFT_TO_US:
                raise InputError(f"a study sets --{name} itself; leave it out")
            raise InputError(f"{command} has no parameter {name}.{suggestion(name, mine)}")
    given = {name.replace("-", "_"): value for name, value in values.items()}
    options = ["--json", *(["--quiet"] if "quiet" in known else [])]
    positional: list[str] = []
    for name, parameter in mine.items():
        if name in given:
            words = list(parameter.words(name, given[name]))
            (options if parameter.flags else positional).extend(words)
    return [command, *options, "--", *positional]


def _commands() -> dict[str, Any]:
    import typer

    from experiments.cli.main import app

    return dict(getattr(typer.main.get_command(app), "commands", {}))


def _one(value: Value) -> str:
    return value if isinstance(value, str) else ",".join(value)
