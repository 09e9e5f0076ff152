"""Places of a module that may be mutated, and its source with one of them changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Lt: ast.GtE, ast.GtE: ast.Lt,
    ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
"""Operators, with what a mutant has instead."""
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def places(source: str) -> list[str]:
    """Describe every place of a module's functions that may be mutated, in order.

    Examples
    --------
    >>> places("def half(x):\\n    return x / 2")
    ['line 2: Div becomes Mult', 'line 2: 2 becomes 3']
    """
    return [text for text, _ in _mutable(ast.parse(source))]


def mutant(source: str, number: int) -> str:
    """Return a module with one place changed.

    Examples
    --------
    >>> mutant("def half(x):\\n    return x / 2", 0)
    'def half(x):\\n    return x * 2'
    """
    tree = ast.parse(source)
    _, change = list(_mutable(tree))[number]
    setattr(*change)
    return ast.unparse(tree)


def _mutable(tree: ast.Module) -> Iterator[tuple[str, tuple[ast.AST, str, object]]]:
    """Yield each place with the node, the attribute and the value that make it wrong.

    Annotations, messages and constants of modules say nothing that a test could miss.
    """
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    seen: set[int] = set()
    for function in functions:
        for statement in function.body:
            for node in ast.walk(statement):
                if id(node) in seen or isinstance(node, ast.Raise):
                    continue
                seen.add(id(node))
                yield from _of_node(node)


def _of_node(node: ast.AST) -> Iterator[tuple[str, tuple[ast.AST, str, object]]]:
    where = f"line {getattr(node, 'lineno', 0)}"
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in OPERATORS:
        other = OPERATORS[type(node.op)]
        yield f"{where}: {type(node.op).__name__} becomes {other.__name__}", (node, "op", other())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        other = OPERATORS[type(node.ops[0])]
        rest = [other(), *node.ops[1:]]
        yield f"{where}: {type(node.ops[0]).__name__} becomes {other.__name__}", (node, "ops", rest)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        if isinstance(node.value, bool):
            return
        yield f"{where}: {node.value} becomes {node.value + 1}", (node, "value", node.value + 1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TWINS:
        twin = ast.copy_location(ast.Name(TWINS[node.func.id], ast.Load()), node.func)
        yield f"{where}: {node.func.id} becomes {twin.id}", (node, "func", twin)
