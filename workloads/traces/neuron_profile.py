"""Reader of JSON summaries of neuron-profile and Neuron Explorer.

A summary has no order: engines are assumed to work at the same time, after the rest of the total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster_sim.schedule.table import PS_PER_S
from topologies.support.errors import InputError
from topologies.support.files.reading import json_value
from workloads.traces.recording import (
    COLLECTIVE,
    COMPUTE,
    HOST,
    MEMORY,
    Columns,
    Group,
    Node,
    Recording,
    read_bounded,
)

LONGEST_S = 2**60 / PS_PER_S
ENGINES = (
    ("tensor_engine_active_time", "tensor engine", COMPUTE),
    ("vector_engine_active_time", "vector engine", MEMORY),
    ("scalar_engine_active_time", "scalar engine", MEMORY),
    ("gpsimd_engine_active_time", "gpsimd engine", MEMORY),
    ("dma_active_time", "DMA", MEMORY),
    ("cc_op_active_time", "collectives", COLLECTIVE),
)
"""Engines: the field of a summary, the name of the node, and the kind of its work."""
CORE_ENGINES = 4
"""Number of the first engines, of which a core has one each, so that none is active for longer
than the total time."""
ROUNDED = 1.01
"""Largest share of the total time to which a summary may round an engine's active time."""


def is_summary(document: Any) -> bool:
    """Return whether a JSON document is a summary of neuron-profile."""
    return bool(_summaries(document))


def _summaries(document: Any) -> dict[str, Mapping[str, Any]]:
    """Summaries of a document by the hash of their model; a single one may have no hash."""
    if not isinstance(document, dict):
        return {}
    if "total_time" in document:
        return {"summary": document}
    return {
        str(key): value
        for key, value in document.items()
        if isinstance(value, dict) and "total_time" in value
    }


def read_neuron_profile(paths: Sequence[Path]) -> Recording:
    """Read summaries, one file for each rank."""
    columns, files, recorded_s = Columns(), dict[int, str](), 0.0
    for rank, path in enumerate(paths):
        remedy = "Export it with --output-format summary-json."
        summaries = _summaries(json_value(read_bounded(path), path, remedy))
        if not summaries:
            raise InputError(f"{path} has no total_time. {remedy}")
        files[rank] = str(path)
        recorded_s = max(recorded_s, _rank(columns, rank, path, summaries))
    return columns.finish(
        files, {"format": "neuron-profile", "iterations": 1, "recorded_s": recorded_s}
    )


def _rank(
    columns: Columns, rank: int, path: Path, summaries: Mapping[str, Mapping[str, Any]]
) -> float:
    """Add the models of a rank, one after the other, and return their total time [s]."""
    before: list[int] = []
    total_s = 0.0
    for number, (name, summary) in enumerate(summaries.items()):
        whole = _seconds(summary, "total_time", path)
        total_s += whole
        active = [(label, kind, _seconds(summary, field, path)) for field, label, kind in ENGINES]
        for field, _, _ in ENGINES[:CORE_ENGINES]:
            if _seconds(summary, field, path) > ROUNDED * whole:
                raise InputError(
                    f"{path}: {field} is {summary[field]} s of a total_time of {whole} s. "
                    "Export the summary again."
                )
        rest = max(0.0, whole - max(seconds for _, _, seconds in active))
        waiting = Node(HOST, f"waiting of {name[:40]}", number, round(rest * PS_PER_S))
        first = columns.add(rank, 0, waiting)
        for earlier in before:
            columns.link(earlier, first)
        before = [first]
        for lane, (label, kind, seconds) in enumerate(active):
            if seconds:
                group = Group("summary", (rank,)) if kind == COLLECTIVE else None
                duration_ps = round(seconds * PS_PER_S)
                row = columns.add(rank, lane, Node(kind, label, number, duration_ps, group=group))
                columns.link(first, row)
                before.append(row)
    return total_s


def _seconds(summary: Mapping[str, Any], field: str, path: Path) -> float:
    value = summary.get(field, 0)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value < LONGEST_S:
        raise InputError(
            f"{path}: {field} is {str(value)[:40]}; it must be a time in seconds from 0."
        )
    return float(value)
