"""Schedules on disk, and whether two are the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from cluster_sim.build import check
from cluster_sim.schedule import (
    BoolArray,
    Codes,
    Edges,
    Flows,
    IntArray,
    Label,
    Resources,
    Schedule,
)


def save(made: Schedule, path: str | Path) -> None:
    """Write a schedule as a compressed ``.npz`` of plain arrays (no pickle)."""
    arrays: dict[str, IntArray | BoolArray] = {}
    names: dict[str, Sequence[str]] = {}
    for part, owner in _parts(made).items():
        for item in fields(owner):
            value = getattr(owner, item.name)
            if isinstance(value, np.ndarray):
                arrays[f"{part}.{item.name}"] = value
    for key, label in made.labels.items():
        arrays[f"label.{key}"] = label.code if isinstance(label, Codes) else label
        if isinstance(label, Codes):
            names[key] = label.names
    header = {
        "facts": dict(made.facts),
        "names": names,
        "kinds": made.resources.kinds,
        "switches_from": made.resources.switches_from,
    }
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with Path(path).open("wb") as file:
        np.savez_compressed(file, header=text, **arrays)  # type: ignore[arg-type]


def load(path: str | Path) -> Schedule:
    """Read and check what :func:`save` wrote; nothing in the file is run."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    header = json.loads(arrays.pop("header").tobytes())
    parts: dict[str, dict[str, Any]] = {}
    for key, value in arrays.items():
        part, name = key.split(".", 1)
        parts.setdefault(part, {})[name] = value
    labels = {
        key: Codes(value, tuple(header["names"][key])) if key in header["names"] else value
        for key, value in parts.pop("label", {}).items()
    }
    made = Schedule(
        **parts["schedule"],
        edges=Edges(**parts["edges"]),
        flows=Flows(**parts["flows"]),
        resources=Resources(
            kinds=tuple(header["kinds"]),
            switches_from=header["switches_from"],
            **parts["resources"],
        ),
        labels=labels,
        facts=header["facts"],
    )
    check(made)
    return made


def equal(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules hold the same ops, edges, resources, labels and facts."""
    left, right = _parts(one), _parts(other)
    for part, owner in left.items():
        for item in fields(owner):
            a, b = getattr(owner, item.name), getattr(right[part], item.name)
            if isinstance(a, np.ndarray) and not (
                isinstance(b, np.ndarray) and np.array_equal(a, b)
            ):
                return False
    if one.labels.keys() != other.labels.keys() or one.facts != other.facts:
        return False
    if one.resources.names() != other.resources.names():
        return False
    return all(_same(one.labels[key], other.labels[key]) for key in one.labels)


def _same(a: Label, b: Label) -> bool:
    if isinstance(a, Codes) or isinstance(b, Codes):
        return list(a) == list(b)
    return bool(np.array_equal(a, b))


def _parts(made: Schedule) -> dict[str, Any]:
    return {
        "schedule": made,
        "edges": made.edges,
        "flows": made.flows,
        "resources": made.resources,
    }
