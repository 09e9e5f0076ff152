"""Reader of recipes in Python, whose functions set a configuration; nothing of them is run.

Recipes of Megatron-Bridge and torchtitan are functions that make a configuration by a call with
keywords, ``Config(training=Training(steps=10))``, or by that of another function, and then set its
fields, ``config.training.steps = 20``. Both give the dotted key ``training.steps``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.support.errors import InputError
from topologies.support.files.tool_files import OPERATORS, Unknown

NAME = "CONFIG"  # variable before a path that names the function, as in launches of torchtitan
DEEPEST = 8  # functions that call functions, and calls within calls, that are followed
LAUNCHES = ("run.run", "run.dryrun")  # functions of NeMo-Run that start a configuration
SHOWN = 4  # functions that a message names


@dataclass(frozen=True)
class Recipe:
    """Function of a file, and what names stand for within it."""

    function: ast.FunctionDef
    functions: Mapping[str, ast.FunctionDef]
    names: dict[str, ast.expr]  # expressions of constants, defaults of arguments and variables

    @property
    def config(self) -> str:
        """Variable that the function returns, or else the first whose fields it sets."""
        inner = [*ast.walk(self.function)]
        returned = [each.value for each in inner if isinstance(each, ast.Return) and each.value]
        if returned:
            return next((each.id for each in returned if isinstance(each, ast.Name)), "")
        fields = [each for each in self.function.body if isinstance(each, ast.Assign)]
        paths = (ast.unparse(each.targets[0]) for each in fields)
        return next((name for name, dot, _ in (each.partition(".") for each in paths) if dot), "")

    def settings(self, depth: int = 0) -> dict[str, Any]:
        """Return the fields of the configuration that the function returns, by dotted key."""
        keys: dict[str, Any] = {}
        config = self.config
        for statement in self.function.body:
            match statement:
                case ast.Return(value=ast.Call() as call):
                    keys |= self._made_by(call, depth)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.names[name] = value
                    if name == config:
                        keys |= self._made_by(value, depth)
                case ast.Assign(targets=[ast.Attribute() as target], value=value):
                    self._set(keys, _path(target, config), value, depth)
                case ast.Expr(value=ast.Call(func=called, args=[ast.Name(id=name), *_])):
                    if name == config and ast.unparse(called) not in LAUNCHES:
                        keys[f"{ast.unparse(called)}()"] = True
                case _:
                    keys |= dict(_decided_later(statement, config))
        return keys

    def _made_by(self, value: ast.expr, depth: int) -> dict[str, Any]:
        """Fields of a configuration by the call that makes it."""
        keys: dict[str, Any] = {}
        if not isinstance(value, ast.Call) or depth > DEEPEST:
            return keys
        name = ast.unparse(value.func)
        if name in self.functions:
            inner = _recipe(self.functions[name], self.functions, self.names)
            return inner.settings(depth + 1)
        if not value.keywords:
            return {f"{name}()": True}
        for each in value.keywords:
            self._set(keys, each.arg or "", each.value, depth)
        return keys

    def _set(self, keys: dict[str, Any], key: str, value: ast.expr, depth: int) -> None:
        """Set one field, and those of a call that is its value, in place of earlier ones."""
        if not key:
            return
        for within in [each for each in keys if each.startswith(f"{key}.")]:
            del keys[within]
        earlier = _path(value, self.config) if isinstance(value, ast.Attribute) else ""
        keys[key] = keys[earlier] if earlier in keys else self._value(value)
        value = self.names.get(value.id, value) if isinstance(value, ast.Name) else value
        for each in value.keywords if isinstance(value, ast.Call) and depth <= DEEPEST else ():
            self._set(keys, f"{key}.{each.arg}", each.value, depth + 1)

    def _value(self, value: ast.expr, depth: int = 0) -> Any:
        """Literal value of an expression; of a call its first literal, or else its name."""
        match value:
            case ast.Constant(value=literal):
                return literal
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(size))):
                return -size
            case ast.Name(id=name) if name in self.names and depth <= DEEPEST:
                return self._value(self.names[name], depth + 1)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self._value(part, depth) for part in parts]
            case ast.Call(args=args):
                first = self._value(args[0], depth) if args else None
                return first if isinstance(first, str) else ast.unparse(value.func)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
                numbers = [self._value(left, depth), self._value(right, depth)]
                if all(type(number) is int for number in numbers) and numbers[1]:
                    return OPERATORS[type(sign)](*numbers)
        return Unknown(f"{ast.unparse(value)}, which the file does not state as a literal")


def _path(target: ast.expr, config: str) -> str:
    """Return the dotted key of an attribute of the configuration; empty for one of another."""
    name, _, key = ast.unparse(target).partition(".")
    return key if name == config else ""


def _decided_later(statement: ast.stmt, config: str) -> Iterator[tuple[str, Unknown]]:
    """Yield the keys that a condition or a loop may set."""
    for each in ast.walk(statement):
        for target in each.targets if isinstance(each, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and (key := _path(target, config)):
                yield key, Unknown("decided by an if or a loop of the function")


def _recipe(
    function: ast.FunctionDef,
    functions: Mapping[str, ast.FunctionDef],
    names: Mapping[str, ast.expr],
) -> Recipe:
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [
        *zip(reversed(plain), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    usual = {each.arg: default for each, default in defaults if default is not None}
    return Recipe(function, functions, {**names, **usual})


def recipe_settings(path: Path, text: str, name: str = "") -> dict[str, Any]:
    """Return what a function of a file in Python sets, by dotted key.

    >>> recipe_settings(Path("a.py"), "def small():\\n    return Config(run=Run(steps=2 * 5))")
    {'run': 'Run', 'run.steps': 10}
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as mistake:
        raise InputError(f"{path} is not Python ({mistake}). Correct it.") from None
    functions = {each.name: each for each in body if isinstance(each, ast.FunctionDef)}
    public = [each for each in functions if not each.startswith("_")]
    if name not in functions and (name or len(public) != 1):
        more = f" and {len(public) - SHOWN} more" if len(public) > SHOWN else ""
        lacks = f"no function {name}" if name else f"{len(public)} functions that may be recipes"
        raise InputError(
            f"{path} has {lacks}: {', '.join(public[:SHOWN]) or 'none is public'}{more}. Name one "
            f"before its path, as '{NAME}={(public or ['recipe'])[0]} {path.name}'; of a program "
            "without such a function write the plan's fields into a file, one a line, as tp: 8."
        )
    constants = {
        target.id: each.value
        for each in body
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
        if isinstance(target, ast.Name)
    }
    return _recipe(functions[name or public[0]], functions, constants).settings()
