"""Command lines of ``cluster-sim`` from the named values of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from topologies.errors import InputError, shown, suggestion

Value = str | Sequence[str]
LEFT_TO_US = ("json", "out", "quiet", "help")
CODE = (".py", ".pyc")
"""Endings of files with code that a command runs."""
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Parameter:
    """An argument or option of a command.

    ``flags``: spellings, such as ``("--size",)``; empty for a positional argument.
    ``off_flags``: spellings that turn a flag off, such as ``("--no-sequence-parallel",)``.
    ``writes``: whether it names a path to which the command writes.
    """

    flags: tuple[str, ...]
    off_flags: tuple[str, ...] = ()
    is_flag: bool = False
    repeats: bool = False
    writes: bool = False

    def words(self, name: str, value: Value) -> Iterator[str]:
        """Yield the words of the command line for a value."""
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


@dataclass(frozen=True)
class Program:
    """A program with commands, such as ``cluster-sim``.

    ``run``: runs a command line in this process and returns the exit status. It is sent to other
        processes, so it must be a function of a module.
    ``parameters``: returns the parameters of a command by name, positional ones first and in order.
    """

    run: Callable[[Sequence[str]], int]
    commands: tuple[str, ...]
    excluded: tuple[str, ...]
    parameters: Callable[[str], Mapping[str, Parameter]]

    def checked(self, command: str) -> Mapping[str, Parameter]:
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
            words = list(parameter.words(name, by_name[name]))
            (options if parameter.flags else positional).extend(words)
    return [command, *options, "--", *positional]


def check_harmless(program: Program, command: str, values: Mapping[str, Value]) -> None:
    """Check that no value runs code or writes a file, as in a study of unknown origin it might."""
    parameters = program.checked(command)
    for name, value in values.items():
        parameter = parameters.get(name.replace("-", "_"))
        texts = [value] if isinstance(value, str) else list(value)
        for text in texts:
            does = "runs a Python file" if text.endswith(CODE) else ""
            if parameter is not None and parameter.writes:
                does = "writes a file"
            if does:
                raise InputError(
                    f"{name}: {shown(text)} {does}. Read the study, then add --trust if you "
                    "trust whoever wrote it."
                )


def _one(value: Value) -> str:
    return value if isinstance(value, str) else ",".join(value)
