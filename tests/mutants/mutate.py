"""Places of a module that may be mutated, and its source with some of them switched by a key."""

import ast
import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Lt: ast.GtE, ast.GtE: ast.Lt,
    ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
"""Operators, with what a mutant has instead."""
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
COMPILED = {"compiled", "lean", "internal", "inlined"}
"""Decorators of functions that run as machine code, each mutant of which costs a compilation."""
SMALL = 100  # constants from here on are doubled: one more is less than tests may round


def places(source: str) -> list[str]:
    """Describe every place of a module's functions that may be mutated, in order.

    Examples
    --------
    >>> places("def half(x):\\n    return x / 2")
    ['line 2:12: Div becomes Mult', 'line 2:16: 2 becomes 3']
    """
    walk = _Walk({})
    walk.visit(ast.parse(source))
    return walk.texts


def lots(source: str, salt: str) -> list[bytes]:
    """Draw a lot for every place, which stays as it is while other lines of the module change."""
    lines, before = source.splitlines(), Counter[tuple[str, str]]()
    drawn = []
    for place in places(source):
        where, _, change = place.partition(": ")
        number = int(where.removeprefix("line ").partition(":")[0])
        alike = lines[number - 1].strip(), change
        before[alike] += 1
        drawn.append(sha256(repr((salt, alike, before[alike])).encode()).digest())
    return drawn


def switched(source: str, keys: Mapping[int, int]) -> str:
    """Return a module in which each place of ``keys`` is wrong while the mutant of its key is on.

    Examples
    --------
    >>> print(switched("def half(x):\\n    return x / 2", {0: 7}))
    from tests.mutants.active import mutated as _mutated
    <BLANKLINE>
    def half(x):
        return x * 2 if _mutated(7) else x / 2
    """
    tree = _Walk(keys).visit(ast.parse(source))
    first = sum(1 for _ in _head(tree))
    tree.body[first:first] = ast.parse("from tests.mutants.active import mutated as _mutated").body
    return ast.unparse(ast.fix_missing_locations(tree))


def _head(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that must come first: a docstring, and imports from the future."""
    for statement in tree.body:
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not (future or text):
            return
        yield statement


class _Walk(ast.NodeTransformer):
    """Walk over the bodies of functions: note each place, and switch those that have a key.

    Annotations, messages of errors, constants of modules and compiled functions are left out.
    """

    def __init__(self, keys: Mapping[int, int]) -> None:
        self.keys = keys
        self.texts: list[str] = []
        self.depth = 0  # of functions around the node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        names = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
        if not names & COMPILED:
            self.depth += 1
            node.body = [self.visit(statement) for statement in node.body]
            self.depth -= 1
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self.visit(node.value)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Note a place before those inside it."""
        change = _change(node) if self.depth else None
        key = None
        if change:
            key = self.keys.get(len(self.texts))
            where = f"{getattr(node, 'lineno', 0)}:{getattr(node, 'col_offset', 0) + 1}"
            self.texts.append(f"line {where}: {change[0]}")
        super().generic_visit(node)
        if change is None or key is None:
            return node
        wrong = copy.copy(node)
        setattr(wrong, *change[1:])
        test = ast.Call(ast.Name("_mutated", ast.Load()), [ast.Constant(key)], [])
        return ast.IfExp(test, wrong, node)  # type: ignore[arg-type]


def _change(node: ast.AST) -> tuple[str, str, Any] | None:
    """Return a text, an attribute of the node and its wrong value, or None for what has no twin."""
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in OPERATORS:
        other = OPERATORS[type(node.op)]
        return f"{type(node.op).__name__} becomes {other.__name__}", "op", other()
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        other = OPERATORS[type(node.ops[0])]
        rest = [other(), *node.ops[1:]]
        return f"{type(node.ops[0]).__name__} becomes {other.__name__}", "ops", rest
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        if isinstance(node.value, bool):
            return None
        wrong = node.value + (1 if abs(node.value) < SMALL else node.value)
        return f"{node.value} becomes {wrong}", "value", wrong
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TWINS:
        twin = ast.Name(TWINS[node.func.id], ast.Load())
        return f"{node.func.id} becomes {twin.id}", "func", twin
    return None
