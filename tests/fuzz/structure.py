"""Structured documents with one value replaced or left out."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import yaml

Place = tuple[str | int, ...]
LEFT_OUT = object()
"""In place of a value: its key or entry is left out."""
NASTY_VALUES: tuple[Any, ...] = (
    None, [], {}, "", "x", "1", -1, 0, 1.5, 1e308, -0.0, True, 10**30, 2**31, 2**63, float("nan"),
    float("inf"), [1, 2], {"a": 1}, "\x1b[2J", "[/x]", "9" * 5000, LEFT_OUT,
)  # fmt: skip
"""Values that readers of structured documents get wrong."""


def places(document: Any, before: Place = ()) -> Iterator[Place]:
    """Keys and indices that lead to every value of a document, the whole of it first."""
    yield before
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*before, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from places(value, (*before, index))


def replaced(document: Any, place: Place, value: Any) -> Any:
    if not place:
        return None if value is LEFT_OUT else value
    changed = copy.deepcopy(document)
    parent = changed
    for key in place[:-1]:
        parent = parent[key]
    if value is LEFT_OUT:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return changed


def parsed(name: str, content: bytes) -> Any:
    """Return the document in a JSON, JSON-lines or YAML file; None where it holds none."""
    try:
        if name.endswith(".jsonl"):
            return [json.loads(line) for line in content.splitlines()]
        if name.endswith(".json"):
            return json.loads(content)
        if name.endswith((".yaml", ".yml")):
            return yaml.safe_load(content)
    except (ValueError, yaml.YAMLError):
        return None
    return None


def written(name: str, document: Any) -> bytes:
    if name.endswith(".jsonl") and isinstance(document, list):
        return "\n".join(map(json.dumps, document)).encode()
    if name.endswith((".yaml", ".yml")):
        return yaml.safe_dump(document, allow_unicode=True).encode()
    return json.dumps(document).encode()


def mutated(name: str, content: bytes, rng: random.Random) -> bytes:
    """Replace a value of a structured file; any other file is returned as it is."""
    document = parsed(name, content)
    if document is None:
        return content
    place, value = rng.choice(list(places(document))), rng.choice(NASTY_VALUES)
    return written(name, replaced(document, place, value))
