"""Counters over a trace: links at work, and how fast memory is read and written."""

from __future__ import annotations

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.trace.trace import Trace
from topologies.arrays import IntArray

MOST_POINTS = 20_000
"""Values of a counter; of more each of so many equal stretches of time keeps its last."""
Counter = tuple[str, str, IntArray, IntArray]
"""Name, unit, times [ps] and values."""


def counters(trace: Trace, rows: IntArray) -> list[Counter]:
    """Return the counters of these ops: busy links, and bytes a second of memory."""
    schedule, counted = trace.schedule, []
    kinds = schedule.resources.kinds
    start, end = trace.times.start_ps[rows], trace.times.end_ps[rows]
    ran = (start >= 0) & (end > start)
    rows, start, end = rows[ran], start[ran], end[ran]
    held = np.concatenate([schedule.resources.kind, [0]])[schedule.resource[rows]]
    on_link = (schedule.resource[rows] >= 0) & (held == _number(kinds, "link"))
    if on_link.any():
        counted.append(_counter("links busy", "links", start[on_link], end[on_link], 1))
    flows = schedule.flows
    if len(flows) and "hbm" in kinds:
        first = schedule.resources.kind[flows.resource[flows.ptr[:-1]]] == _number(kinds, "hbm")
        reads = np.isin(rows, flows.op[first])
        size = schedule.size_bytes[rows[reads]].astype(np.float64)
        rate = size * PS_PER_S / (end[reads] - start[reads])
        counted.append(_counter("memory", "B/s", start[reads], end[reads], rate.astype(np.int64)))
    return counted


def _number(kinds: tuple[str, ...], name: str) -> int:
    return kinds.index(name) if name in kinds else -1


def _counter(name: str, unit: str, start: IntArray, end: IntArray, by: IntArray | int) -> Counter:
    """Sum of what is on, wherever it changes."""
    step = np.broadcast_to(np.asarray(by, np.int64), start.shape)
    at, where = np.unique(np.concatenate([start, end]), return_inverse=True)
    change = np.zeros(len(at), np.int64)
    np.add.at(change, where, np.concatenate([step, -step]))
    value = np.cumsum(change)
    if len(at) > MOST_POINTS:
        last = np.unique(np.linspace(0, len(at) - 1, MOST_POINTS).astype(np.int64))
        at, value = at[last], value[last]
    return name, unit, at, np.maximum(0, value)
