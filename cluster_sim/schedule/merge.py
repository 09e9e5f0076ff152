"""Several schedules at once, on the resources that they have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import Codes, Edges, Flows, Label, Resources, Schedule
from topologies.arrays import IntArray
from topologies.errors import InputError


def merge(*parts: Schedule) -> Schedule:
    """Run schedules side by side: they start together, and resources of one name are one.

    Parameters
    ----------
    *parts : Schedule
        Such as collectives of different streams, or a collective and a kernel.

    Returns
    -------
    Schedule
        The ops of all, one schedule after the other. Label ``stream`` is the number of the schedule
        that an op is from; of the other labels those that all have.

    Raises
    ------
    InputError
        When a resource has more slots, or another capacity, in one than in another.

    Examples
    --------
    >>> from cluster_sim.collectives import CollectiveCall, build, whole
    >>> from cluster_sim.trace.trace import run
    >>> from topologies.clusters.names import cluster
    >>> chips = whole(cluster("ring:4", bandwidth="1GB/s", latency="1us"))
    >>> one = build(CollectiveCall("all-gather", chips, 4_000_000), "ring")
    >>> [round(run(both).total_s * 1e3, 3) for both in (one, merge(one, one))]
    [3.003, 6.001]
    """
    resources, numbers = common([part.resources for part in parts])
    before = np.cumsum([0, *(len(part) for part in parts)])
    kinds = [{(name, type(value)) for name, value in part.labels.items()} for part in parts]
    shared = {name for name, _ in set.intersection(*kinds)}
    labels = {name: _label([part.labels[name] for part in parts]) for name in sorted(shared)}
    stream = np.repeat(np.arange(len(parts), dtype=np.int16), [len(part) for part in parts])
    return schedule(
        OpColumns(
            **{
                name: np.concatenate([getattr(part, name) for part in parts])
                for name in ("kind", "duration_ps", "size_bytes", "priority")
            },
            resource=np.concatenate(
                [_renumbered(part.resource, new) for part, new in zip(parts, numbers, strict=True)]
            ),
        ),
        edges=_edges(parts, before),
        flows=_flows(parts, numbers, before),
        resources=resources,
        labels={**labels, "stream": stream},
        facts={"streams": len(parts)},
    )


def common(tables: Sequence[Resources]) -> tuple[Resources, list[IntArray]]:
    """Each resource once, in the order in which they come, and the new numbers of each table's.

    Raises
    ------
    InputError
        When a resource has more slots, or another capacity, in one table than in another.
    """
    every = Resources.concat(tables)
    first, where = _same(every)
    for column in ("slots", "capacity"):
        values = getattr(every, column)
        differs = values != values[first][where]
        if differs.any():
            k = int(np.argmax(differs))
            raise InputError(
                f"{every.names(np.array([k]))[0]} has {column} {values[first][where][k]} in one "
                f"schedule and {values[k]} in another; build both for the same cluster"
            )
    order = np.argsort(first)
    place = np.empty(len(first), np.int64)
    place[order] = np.arange(len(first))
    ends = np.cumsum([len(table) for table in tables])[:-1]
    return every.picked(first[order]), np.split(place[where], ends)


def _same(every: Resources) -> tuple[IntArray, IntArray]:
    """First row of each distinct resource, and the distinct resource of each row."""
    columns = (every.lane, every.peer, every.owner, every.kind)
    order = np.lexsort(columns)  # stable, so that the first of equal rows stays first
    new = np.zeros(len(every), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= np.diff(column[order]) != 0
    where = np.empty(len(every), np.int64)
    where[order] = np.cumsum(new) - 1
    return order[new], where


def _renumbered(resource: IntArray, new: IntArray) -> IntArray:
    return np.append(new, -1)[resource].astype(np.int32)


def _edges(parts: Sequence[Schedule], before: IntArray) -> Edges:
    tables, counts = [part.edges for part in parts], np.cumsum([len(part.edges) for part in parts])
    shifts = np.concatenate([[0], counts])
    ptr = [table.ptr[:-1] + by for table, by in zip(tables, shifts, strict=False)]
    starts = None
    if any(table.from_start is not None for table in tables):
        starts = np.concatenate([table.start_mask() for table in tables])
    return Edges(
        np.concatenate([*ptr, shifts[-1:]]).astype(np.int64),
        np.concatenate(
            [table.dst + by for table, by in zip(tables, before, strict=False)], dtype=np.int32
        ),
        np.concatenate([table.lag_ps for table in tables]),
        starts,
    )


def _flows(parts: Sequence[Schedule], numbers: Sequence[IntArray], before: IntArray) -> Flows:
    tables = [part.flows for part in parts]
    shifts = np.cumsum([0, *(len(table.resource) for table in tables)])
    ptr = [table.ptr[:-1] + by for table, by in zip(tables, shifts, strict=False)]
    return Flows(
        np.concatenate(
            [table.op + by for table, by in zip(tables, before, strict=False)], dtype=np.int32
        ),
        np.concatenate([table.cap_bytes_per_s for table in tables]),
        np.concatenate([*ptr, shifts[-1:]]).astype(np.int64),
        np.concatenate(
            [_renumbered(t.resource, new) for t, new in zip(tables, numbers, strict=True)]
        ),
        np.concatenate([table.weight for table in tables]),
    )


def _label(columns: Sequence[Label]) -> Label:
    """Put columns one after the other; a column of names holds the names of all."""
    coded = [column for column in columns if isinstance(column, Codes)]
    if not coded:
        return np.concatenate([np.asarray(column) for column in columns])
    names = tuple(dict.fromkeys(name for column in coded for name in column.names))
    codes = [
        np.array([names.index(name) for name in column.names], np.uint8)[column.code]
        for column in coded
    ]
    return Codes(np.concatenate(codes), names)
