"""Comparison of two schedules, column by column."""

from dataclasses import fields
from typing import Any

import numpy as np

from cluster_sim.schedule.table import Codes, Label, Schedule


def equal(first: Schedule, second: Schedule) -> bool:
    """Return whether two schedules hold the same ops, edges, resources, labels and facts."""
    second_parts = _parts(second)
    for part, owner in _parts(first).items():
        for item in fields(owner):
            a, b = getattr(owner, item.name), getattr(second_parts[part], item.name)
            if isinstance(a, np.ndarray) and not (type(b) is type(a) and np.array_equal(a, b)):
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
    tables = {name: getattr(schedule, name) for name in ("edges", "flows", "resources")}
    return {"schedule": schedule, **tables}
