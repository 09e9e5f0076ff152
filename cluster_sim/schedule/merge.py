"""Merge schedules into one that runs them at once, on the resources that they have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import Codes, Edges, Flows, Label, Resources, Schedule
from topologies.arrays import IntArray
from topologies.errors import InputError


def merge(*parts: Schedule) -> Schedule:
    """Merge schedules that start together; resources of the same name become one resource.

    The ops come one schedule after the other. Label ``stream`` is the number of the schedule that
    an op is from; other labels are kept if all schedules have them.
    """
    resources, new_numbers = unite_resources([part.resources for part in parts])
    first_op = np.cumsum([0, *(len(part) for part in parts)])
    # By type too: a column of numbers and a column of names do not go into one.
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
                [
                    _renumbered(part.resource, numbers)
                    for part, numbers in zip(parts, new_numbers, strict=True)
                ]
            ),
        ),
        edges=Edges.concat([part.edges for part in parts]),
        flows=_flows(parts, new_numbers, first_op),
        resources=resources,
        labels={**labels, "stream": stream},
        facts={"streams": len(parts)},
    )


def unite_resources(tables: Sequence[Resources]) -> tuple[Resources, list[IntArray]]:
    """Unite tables of resources, in the order in which names first occur.

    Returns with them, for each table, the rows of its resources. Refuses a resource of different
    slots or capacities.
    """
    stacked = Resources.concat(tables)
    first, distinct = _distinct_rows(stacked)
    for column in ("slots", "capacity"):
        values = getattr(stacked, column)
        expected = values[first][distinct]
        differs = values != expected
        if differs.any():
            k = int(np.argmax(differs))
            raise InputError(
                f"{stacked.names(np.array([k]))[0]} has {column} {expected[k]} in one "
                f"schedule and {values[k]} in another; build both for the same cluster"
            )
    # _distinct_rows numbers resources in sorted order; bring them back into order of occurrence.
    order = np.argsort(first)
    number = np.empty(len(first), np.int64)
    number[order] = np.arange(len(first))
    ends = np.cumsum([len(table) for table in tables])[:-1]
    return stacked.picked(first[order]), np.split(number[distinct], ends)


def _distinct_rows(table: Resources) -> tuple[IntArray, IntArray]:
    """Return the first row of each distinct resource, and which of these each row is."""
    columns = (table.lane, table.peer, table.owner, table.kind)
    order = np.lexsort(columns)  # stable, so that the first of equal rows stays first
    is_new = np.zeros(len(table), np.bool_)
    is_new[:1] = True
    for column in columns:
        is_new[1:] |= np.diff(column[order]) != 0
    distinct = np.empty(len(table), np.int64)
    distinct[order] = np.cumsum(is_new) - 1
    return order[is_new], distinct


def _renumbered(resource: IntArray, new_numbers: IntArray) -> IntArray:
    """Replace resource numbers by new ones; -1, for none, picks the -1 that is appended."""
    return np.append(new_numbers, -1)[resource].astype(np.int32)


def _flows(parts: Sequence[Schedule], new_numbers: Sequence[IntArray], first_op: IntArray) -> Flows:
    tables = [part.flows for part in parts]
    first_share = np.cumsum([0, *(len(table.resource) for table in tables)])
    ptr = [table.ptr[:-1] + offset for table, offset in zip(tables, first_share, strict=False)]
    return Flows(
        np.concatenate(
            [table.op + offset for table, offset in zip(tables, first_op, strict=False)],
            dtype=np.int32,
        ),
        np.concatenate([table.cap_bytes_per_s for table in tables]),
        np.concatenate([*ptr, first_share[-1:]]).astype(np.int64),
        np.concatenate(
            [
                _renumbered(table.resource, numbers)
                for table, numbers in zip(tables, new_numbers, strict=True)
            ]
        ),
        np.concatenate([table.weight for table in tables]),
    )


def _label(columns: Sequence[Label]) -> Label:
    """Concatenate the columns of a label; names get one list that holds those of all columns."""
    coded = [column for column in columns if isinstance(column, Codes)]
    if not coded:
        return np.concatenate([np.asarray(column) for column in columns])
    names = tuple(dict.fromkeys(name for column in coded for name in column.names))
    codes = [
        np.array([names.index(name) for name in column.names], np.uint8)[column.code]
        for column in coded
    ]
    return Codes(np.concatenate(codes), names)
