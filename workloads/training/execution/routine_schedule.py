"""One schedule of the ops of all ranks and of the collectives that they call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.merge import unite_resources
from cluster_sim.schedule.routines import Routines
from cluster_sim.schedule.table import JOIN, NO_RESOURCE, Edges, Flows, Resources, Schedule
from topologies.arrays import IntArray


@dataclass(frozen=True, eq=False)
class Called:
    """One collective of one group, and its calls."""

    pattern: Schedule  # schedule of the collective
    join: IntArray  # (calls,): first of the two joins of each call, at which the collective starts

    def __len__(self) -> int:
        return len(self.pattern) + 1


def with_routines(
    collectives: Schedule, called: list[Called], communications: IntArray
) -> tuple[Schedule, Routines]:
    """Return a schedule of the ops of ranks, then of each collective and the join that ends it."""
    kind, duration, resource = (
        column.copy()
        for column in (collectives.kind, collectives.duration_ps, collectives.resource)
    )
    kind[communications] = JOIN
    duration[communications], resource[communications] = 0, NO_RESOURCE
    patterns = [call.pattern for call in called]
    first = np.cumsum([len(collectives), *map(len, called)])
    tables, places = _fabric(collectives.resources, patterns)
    held = [
        np.append(place, NO_RESOURCE)[pattern.resource]
        for pattern, place in zip(patterns, places, strict=True)
    ]
    columns = OpColumns(
        kind=_behind(kind, [pattern.kind for pattern in patterns], JOIN),
        resource=_behind(resource, held, NO_RESOURCE),
        duration_ps=_behind(duration, [pattern.duration_ps for pattern in patterns], 0),
        size_bytes=_behind(collectives.size_bytes, [pattern.size_bytes for pattern in patterns], 0),
        priority=_behind(collectives.priority, [pattern.priority for pattern in patterns], 0),
    )
    routines = Routines(
        first,
        np.concatenate([np.empty(0, np.int64), *(call.join for call in called)]),
        np.repeat(np.arange(len(called)), [len(call.join) for call in called]),
    )
    return schedule(
        columns,
        edges=_edges(collectives.edges, patterns, first),
        resources=tables,
        flows=_flows(collectives.flows, patterns, first, places),
    ), routines


def _behind(outside: IntArray, parts: list[IntArray], end: int) -> IntArray:
    """Column of the ops outside of routines, then of each routine and of its last join."""
    last = np.full(1, end, outside.dtype)
    both = (column for part in parts for column in (part.astype(outside.dtype, copy=False), last))
    return np.concatenate([outside, *both])


def _fabric(streams: Resources, patterns: list[Schedule]) -> tuple[Resources, list[IntArray]]:
    """Resources of ranks, then those of collectives, each once, and the latter's new numbers."""
    # Most patterns share one table of resources, which is compared by identity.
    tables = {id(pattern.resources): pattern.resources for pattern in patterns}
    if not tables:
        return streams, []
    held, numbers = unite_resources(list(tables.values()))
    number = dict(zip(tables, numbers, strict=True))
    whole = Resources.concat([streams, held])
    return whole, [len(streams) + number[id(pattern.resources)] for pattern in patterns]


def _edges(outside: Edges, patterns: list[Schedule], first: IntArray) -> Edges:
    """Edges of the ops outside, then of each routine, whose last ops lead to its join.

    Columns are allocated once and written in place, as parts and whole would take twice the memory.
    """
    leaving = [np.diff(pattern.edges.ptr) for pattern in patterns]
    edges, at = len(outside) + sum(int(np.maximum(1, each).sum()) for each in leaving), len(outside)
    ptr, dst = np.empty(int(first[-1]) + 1, np.int64), np.empty(edges, np.int32)
    lag_ps, from_start = np.zeros(edges, np.int64), np.zeros(edges, np.bool_)
    ptr[: len(outside.ptr)] = outside.ptr
    dst[:at], lag_ps[:at], from_start[:at] = outside.dst, outside.lag_ps, outside.start_mask()
    for pattern, each, begin in zip(patterns, leaving, first.tolist(), strict=False):
        # An op that nothing of the routine waits for gets an edge to the join that ends it.
        last, end = np.flatnonzero(each == 0), begin + len(pattern)
        place = pattern.edges.ptr[last] + np.arange(len(last))
        copied = np.ones(len(pattern.edges) + len(last), np.bool_)
        copied[place] = False
        here = slice(at, at + len(copied))
        dst[here][copied] = pattern.edges.dst + np.int32(begin)
        dst[here][place] = end
        lag_ps[here][copied] = pattern.edges.lag_ps
        from_start[here][copied] = pattern.edges.start_mask()
        ptr[begin + 1 : end + 1] = at + np.cumsum(np.maximum(1, each))
        at = ptr[end + 1] = here.stop
    return Edges(ptr, dst, lag_ps, from_start if from_start.any() else None)


def _flows(
    outside: Flows, patterns: list[Schedule], first: IntArray, places: list[IntArray]
) -> Flows:
    """Flows of the ops outside, then of each routine."""
    tables = [pattern.flows for pattern in patterns]
    widths = [np.diff(table.ptr) for table in (outside, *tables)]
    ops = [table.op + begin for table, begin in zip(tables, first.tolist(), strict=False)]
    held = [place[table.resource] for table, place in zip(tables, places, strict=True)]
    return Flows(
        np.concatenate([outside.op, *ops]).astype(np.int32),
        np.concatenate([table.cap_bytes_per_s for table in (outside, *tables)]),
        np.concatenate([[0], np.cumsum(np.concatenate(widths))]).astype(np.int64),
        np.concatenate([outside.resource, *held]).astype(np.int32),
        np.concatenate([table.weight for table in (outside, *tables)]),
    )
