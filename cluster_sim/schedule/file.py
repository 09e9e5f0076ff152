"""Files of schedules, and a comparison of two schedules."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from cluster_sim.schedule.build import check
from cluster_sim.schedule.table import (
    Codes,
    Edges,
    Flows,
    Label,
    Resources,
    Schedule,
    ScheduleError,
)
from topologies.arrays import BoolArray, IntArray
from topologies.errors import InputError
from topologies.files.missing import no_such_file
from topologies.files.reading import check_regular
from topologies.files.writing import whole_file

LARGEST_BYTES = 64 * 2**30
"""Largest stored schedule that is read, unpacked [B]."""

_FAULTS = (
    ScheduleError, zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, TypeError,
    ValueError, IndexError, AttributeError, RuntimeError, MemoryError,
)  # fmt: skip
"""Errors that numpy, zipfile and this module raise for a file that is no schedule."""


def save(schedule: Schedule, path: str | Path) -> None:
    """Write a compressed ``.npz`` of plain arrays (no pickle), whole or not at all."""
    arrays: dict[str, IntArray | BoolArray] = {}
    names: dict[str, Sequence[str]] = {}
    for part, owner in _parts(schedule).items():
        for item in fields(owner):
            value = getattr(owner, item.name)
            if isinstance(value, np.ndarray):
                arrays[f"{part}.{item.name}"] = value
    for key, label in schedule.labels.items():
        arrays[f"label.{key}"] = label.code if isinstance(label, Codes) else label
        if isinstance(label, Codes):
            names[key] = label.names
    header = {
        "facts": dict(schedule.facts),
        "names": names,
        "kinds": schedule.resources.kinds,
        "switches_from": schedule.resources.switches_from,
    }
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with whole_file(Path(path)) as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(file, header=text, **arrays)  # type: ignore[arg-type]


def load(path: str | Path) -> Schedule:
    """Read and check what :func:`save` wrote; nothing in the file is run.

    Raises
    ------
    InputError
        When the file is missing, too large, no schedule, or breaks the rules of time.
    """
    try:
        arrays = _arrays(Path(path))
        schedule = _schedule(arrays, json.loads(arrays.pop("header").tobytes()))
        check(schedule)
    except FileNotFoundError:
        raise InputError(f"schedule {path} cannot be read: {no_such_file(path)}") from None
    except InputError:
        raise
    except _FAULTS as fault:
        reason = " ".join(str(fault).split())[:200]
        raise InputError(f"{path} is not a schedule that save wrote: {reason}") from None
    return schedule


def _arrays(path: Path) -> dict[str, Any]:
    """Read the arrays of an ``.npz``, all of one dimension, if they are within the limit."""
    if path.exists():
        check_regular(path)
    # Sizes stand in the directory of the archive: a small file may unpack to any number of bytes.
    with zipfile.ZipFile(path) as packed:
        unpacked_bytes = sum(member.file_size for member in packed.infolist())
    if unpacked_bytes > LARGEST_BYTES:
        raise InputError(
            f"{path} unpacks to {unpacked_bytes:,} bytes; the limit is {LARGEST_BYTES:,}. "
            "Save fewer ops."
        )
    with np.load(path, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    for key, value in arrays.items():
        if value.ndim != 1:
            raise ValueError(f"{key} has {value.ndim} dimensions, a column has one")
    return arrays


def _schedule(arrays: Mapping[str, Any], header: Mapping[str, Any]) -> Schedule:
    parts: dict[str, dict[str, Any]] = {}
    for key, value in arrays.items():
        part, _, name = key.partition(".")
        if name:
            parts.setdefault(part, {})[name] = value
    labels = {
        key: Codes(value, tuple(header["names"][key])) if key in header["names"] else value
        for key, value in parts.get("label", {}).items()
    }
    return Schedule(
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


def equal(first: Schedule, second: Schedule) -> bool:
    """Return whether two schedules hold the same ops, edges, resources, labels and facts."""
    second_parts = _parts(second)
    for part, owner in _parts(first).items():
        for item in fields(owner):
            a, b = getattr(owner, item.name), getattr(second_parts[part], item.name)
            if isinstance(a, np.ndarray) and not (
                isinstance(b, np.ndarray) and np.array_equal(a, b)
            ):
                return False
    if first.labels.keys() != second.labels.keys() or first.facts != second.facts:
        return False
    if first.resources.names() != second.resources.names():
        return False
    return all(_equal_labels(first.labels[key], second.labels[key]) for key in first.labels)


def _equal_labels(a: Label, b: Label) -> bool:
    """Compare labels by their names: the same names may stand in another order of codes."""
    if isinstance(a, Codes) or isinstance(b, Codes):
        return list(a) == list(b)
    return bool(np.array_equal(a, b))


def _parts(schedule: Schedule) -> dict[str, Any]:
    return {
        "schedule": schedule,
        "edges": schedule.edges,
        "flows": schedule.flows,
        "resources": schedule.resources,
    }
