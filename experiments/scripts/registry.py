"""Which experiment scripts there are, and what options their ``run`` takes."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any

from topologies.errors import InputError, suggestion

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Experiment:
    """A script with ``run`` and ``plot``; the module is loaded only when it is run.

    Attributes
    ----------
    name : str
        Of the module in ``experiments.scripts``.
    summary : str
        First line of its docstring.
    """

    name: str
    summary: str

    def load(self) -> ModuleType:
        """Import the module."""
        return importlib.import_module(f"experiments.scripts.{self.name}")

    def options(self) -> dict[str, dict[str, Any]]:
        """Parameters of ``run``, each with what :mod:`argparse` needs to read it."""
        run = self.load().run
        hints = typing.get_type_hints(run)
        return {
            name: _option(hints.get(name, str), parameter.default)
            for name, parameter in inspect.signature(run).parameters.items()
        }


def experiments(folder: Path = FOLDER) -> list[Experiment]:
    """All experiment scripts by name, found by reading their source, not by importing it."""
    found = []
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if {"run", "plot"} <= defined:
            summary = (ast.get_docstring(tree) or "").split("\n\n")[0]
            found.append(Experiment(path.stem, " ".join(summary.split())))
    return found


def experiment(name: str) -> Experiment:
    """The experiment of this name.

    Raises
    ------
    InputError
        When there is none.
    """
    known = {found.name: found for found in experiments()}
    wanted = name.replace("-", "_")
    if wanted not in known:
        listed = suggestion(wanted, known) or f" There are: {', '.join(known) or 'none'}."
        raise InputError(f"no experiment is called {name}.{listed}")
    return known[wanted]


def _option(hint: Any, default: Any) -> dict[str, Any]:
    """How one parameter is written on a command line."""
    inner = _without_none(hint)
    told: dict[str, Any] = {"default": default, "help": f"default {_shown(default)}"}
    if default is inspect.Parameter.empty:
        told = {"required": True}
    if inner is bool:
        return {**told, "action": argparse.BooleanOptionalAction}
    if typing.get_origin(inner) in (tuple, list, Sequence):
        item = next((part for part in typing.get_args(inner) if part is not Ellipsis), str)
        return {**told, "type": _comma_separated(item), "metavar": "A,B,…"}
    return {**told, "type": inner if inner in (int, float, str, Path) else str, "metavar": "VALUE"}


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (UnionType, typing.Union):
        return next(part for part in typing.get_args(hint) if part is not NoneType)
    return getattr(hint, "__origin__", hint) if hint in (list, tuple) else hint


def _comma_separated(item: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def values(text: str) -> tuple[Any, ...]:
        return tuple(item(part.strip()) for part in text.split(","))

    values.__name__ = f"comma-separated {getattr(item, '__name__', 'text')}"
    return values


def _shown(default: Any) -> str:
    if isinstance(default, tuple | list):
        default = ",".join(str(part) for part in default)
    return str(default).replace("%", "%%")
