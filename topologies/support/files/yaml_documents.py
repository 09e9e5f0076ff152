"""A safe reader of YAML files from outside: clusters, plans and studies.

Tags and merge keys are refused. Aliases are counted expanded before anything is built.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from topologies.support.errors import InputError, shown
from topologies.support.files.reading import read_text

DEEPEST = 30
MOST_VALUES = 100_000

MERGE = "tag:yaml.org,2002:merge"
_FAULTS = (ValueError, TypeError, OverflowError, RecursionError)
"""Errors that the library raises for values such as a number of 5,000 digits or 30 February."""


def read_yaml(
    path: Path | str, *, limit_bytes: int, content: str, what: str = "", all_text: bool = False
) -> dict[str, Any]:
    """Return the mapping of a small YAML file, values as text if ``all_text``, or converted."""
    text = read_text(Path(path), limit_bytes=limit_bytes)
    return yaml_mapping(text, path, content=content, what=what, all_text=all_text)


def yaml_mapping(
    text: str, path: Path | str, *, content: str, what: str = "", all_text: bool = False
) -> dict[str, Any]:
    """Return the mapping that the text of a YAML file holds; parameters as of ``read_yaml``."""
    named, no = shown(str(path)), f"no {what}" if what else "not YAML"
    try:
        document = _document(text, _TextLoader if all_text else _Loader)
    except yaml.MarkedYAMLError as mistake:
        line = mistake.problem_mark.line + 1 if mistake.problem_mark else 1
        raise InputError(f"{named} line {line} is {no}: {mistake.problem}. Correct it.") from None
    except (yaml.YAMLError, *_FAULTS) as mistake:
        reason = shown(" ".join(str(mistake).split()), 200)
        raise InputError(f"{named} is {no}: {reason}. Correct it.") from None
    if not isinstance(document, dict):
        raise InputError(f"{named} holds no {content}.")
    return document


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses tags, deep nesting, merge keys, and keys that occur twice."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Read a node, once it is known to have no tag and to lie not too deep."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _mistake(f"the tag {shown(str(tag), 60)} is not read; leave it out", event)
        if isinstance(event, yaml.CollectionStartEvent) and self.depth >= DEEPEST:
            raise _mistake(f"it is nested too deeply, at most {DEEPEST} levels are read", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping; the library would let a later key silently replace an earlier one."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE:
                raise _mistake("merge keys (<<) are not read; write the keys out", key_node)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _mistake("a key must be a text or a number", key_node)
            if key in seen:
                raise _mistake(f"the key {shown(str(key), 60)} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _TextLoader(_Loader):
    """A loader of texts only."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 – so that no value is guessed from its looks


def _document(text: str, loader_type: type[_Loader]) -> Any:
    loader = loader_type(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_size(root: yaml.Node) -> None:
    """Count the values of a document with all aliases expanded, and refuse too many."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, above: frozenset[int]) -> int:
        """Count the values of a node as if each alias were written out."""
        if id(node) in above:
            raise _mistake("an alias stands within what it repeats", node)
        if id(node) in sizes:
            return sizes[id(node)]
        inside = above | {id(node)}
        total = 1
        if isinstance(node, yaml.MappingNode):
            total += sum(size(key, inside) + size(value, inside) for key, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(size(value, inside) for value in node.value)
        if total > MOST_VALUES:
            raise _mistake(f"its aliases come to more than {MOST_VALUES:,} values", node)
        sizes[id(node)] = total
        return total

    size(root, frozenset())


def _mistake(problem: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


MUST = {
    "missing": "it is missing; give it a value",
    "string_pattern_mismatch": "it must be made of letters, digits, spaces and . + - only",
    "string_type": "it must be a text; write one word, or a text in quotes",
    "string_too_short": "it must have at least {min_length} character",
    "string_too_long": "it must have at most {max_length} characters",
    "too_short": "it must have at least {min_length} entry",
    "too_long": "it must have at most {max_length} entries",
    "list_type": "it must be a list, one entry after each dash",
    "int_type": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "int_parsing_size": "it must be a smaller whole number",
    "float_type": "it must be a number",
    "float_parsing": "it must be a number",
    "finite_number": "it must be a finite number",
    "bool_type": "it must be true or false",
    "bool_parsing": "it must be true or false",
    "greater_than_equal": "it must be at least {ge}",
    "less_than_equal": "it must be at most {le:,}",
    "invalid_key": "a key must be a text; leave it out, or write it in quotes",
}
"""Rules in plain words, by pydantic's names of the kinds of mistake."""


def rule(mistake: Mapping[str, Any]) -> str:
    """Return the rule that a value must keep, in plain words, from an error of pydantic.

    >>> rule({"type": "greater_than_equal", "ctx": {"ge": 1}, "msg": "Input should be …"})
    'it must be at least 1'
    """
    kind = mistake["type"]
    if kind in MUST:
        return MUST[kind].format_map(mistake.get("ctx", {}))
    words = str(mistake["msg"]).removeprefix("Value error, ").rstrip(".")
    return words[:1].lower() + words[1:]
