"""Rows of measured runs as a user of ``train`` tells of them: by less than a table states.

A level leaves out columns of a training row. What remains is predicted as ``train`` predicts it,
so the errors at a level are those that a user who tells as much gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.validation.predictions.training import FLAGS, STATED
from experiments.validation.reading.rows import Row, Rows
from workloads.confidence.kinds import BARE, FRAMEWORK, PLAN
from workloads.training.frameworks.conditions import CONDITIONS

LEVELS = (FRAMEWORK, PLAN, BARE)
"""Levels from what tells most to what tells least."""
TABLE_ROWS = 30
"""Rows of a table that are judged as a user would see them, evenly spaced over the table."""
ALWAYS = (
    *("tp", "pp", "dp", "cp", "ep", "etp", "microbatch", "global_batch", "seq", "precision"),
    *("lora_rank", "lora_on", "train_only", "optimizer"),
)
"""Columns of a plan that are told at every level: what is trained, by which degrees."""


def stripped(values: Mapping[str, Any], level: str) -> dict[str, Any]:
    """Return the cells of a row that a user tells at a level; the others are empty.

    >>> row = {"tp": 8, "recompute": "full", "framework": "megatron-core:graphs", "date": "2024"}
    >>> stripped(row, "framework")
    {'tp': 8, 'recompute': 'full', 'framework': 'megatron-core', 'date': None}
    >>> stripped(row, "bare")
    {'tp': 8, 'recompute': None, 'framework': None, 'date': None}
    """
    framework = str(values.get("framework") or "").partition(":")[0] or None
    hidden = {"variant", "source", "name", *CONDITIONS}
    if level != FRAMEWORK:
        hidden.add("framework")
    if level == BARE:
        hidden |= {*STATED, *FLAGS} - {*ALWAYS}
    kept = {**values, "framework": framework} if "framework" in values else dict(values)
    return {name: None if name in hidden else value for name, value in kept.items()}


def as_told(rows: Rows, level: str) -> Rows:
    """Return at most :data:`TABLE_ROWS` rows of a table as a user tells them."""
    kept = rows.rows[:: max(1, -(-len(rows.rows) // TABLE_ROWS))]
    return replace(rows, rows=tuple(_as_told(row, level) for row in kept))


def _as_told(row: Row, level: str) -> Row:
    values = stripped(row.values, level)
    # A name stays as a label of the row; a framework stays without its settings.
    shown = {name: "" for name in row.cells if name != "name" and values.get(name, 0) is None}
    framework = {"framework": str(values["framework"])} if values.get("framework") else {}
    return replace(row, values=values, cells={**row.cells, **shown, **framework, "stated": level})
