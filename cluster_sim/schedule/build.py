"""Checked schedules from columns of ops, and several merged into one that runs them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule.table import (
    FIXED,
    FLOW,
    HORIZON_PS,
    JOIN,
    LARGEST_CAPACITY,
    LARGEST_FLOW_BYTES,
    NO_RESOURCE,
    OP_COLUMNS,
    RESOURCE_COLUMNS,
    Codes,
    Edges,
    Flows,
    Label,
    Resources,
    Schedule,
    ScheduleError,
    transfer_ps,
)
from topologies.support.arrays import BoolArray, IntArray, distinct_rows
from topologies.support.errors import InputError

__all__ = ["OpColumns", "check", "schedule"]


@dataclass(frozen=True, eq=False)
class OpColumns:
    """Columns of the ops of a schedule: an array (ops,) each, or one value for all ops."""

    kind: npt.ArrayLike
    resource: npt.ArrayLike = NO_RESOURCE  # of which one slot is held
    duration_ps: npt.ArrayLike = 0  # of a fixed op
    size_bytes: npt.ArrayLike = 0  # that an op moves; the work of a flow
    priority: npt.ArrayLike = 0  # smallest first among ready ops (rule 4)


def schedule(
    columns: OpColumns,
    *,
    edges: Edges,
    resources: Resources,
    flows: Flows | None = None,
    labels: Mapping[str, Label] | None = None,
    facts: Mapping[str, str | int | float | bool] | None = None,
) -> Schedule:
    """Make a checked schedule; one value in place of a column holds for all ops.

    Two transfers on one link, the second after the first:

    >>> from cluster_sim.schedule.table import FIXED
    >>> link = Resources.table("link", [0], [1])
    >>> edges = Edges.from_pairs(2, [0], [1])
    >>> ops = OpColumns(kind=[FIXED, FIXED], resource=0, duration_ps=5)
    >>> schedule(ops, edges=edges, resources=link)
    Schedule(2 ops, 1 edges, 1 resources)
    """
    ops = len(edges.ptr) - 1
    built = Schedule(
        **{name: _spread(getattr(columns, name), dtype, ops) for name, dtype in OP_COLUMNS.items()},
        edges=edges,
        resources=resources,
        flows=flows or Flows.none(),
        labels=dict(labels or {}),
        facts=dict(facts or {}),
    )
    check(built)
    return built


def _spread(values: npt.ArrayLike, dtype: npt.DTypeLike, ops: int) -> IntArray:
    """Return a column (ops,) from an array of that shape, or from one value for all ops."""
    array = np.asarray(values, dtype)
    if array.shape == (ops,):
        return np.ascontiguousarray(array)
    # Pages of np.zeros take no memory until they are written; np.full writes them all.
    return np.full(ops, array, dtype) if array.any() else np.zeros(ops, dtype)


def check(schedule: Schedule) -> None:
    """Refuse a schedule whose columns do not fit together, or that breaks rules 1, 2, 5 or 6."""
    # Compiled code trusts its arrays: a bad index that passed here would crash the process.
    ops = len(schedule)
    for name, dtype in OP_COLUMNS.items():
        _check_column(name, getattr(schedule, name), dtype, ops)
    _check_resources(schedule.resources)
    _check_edges(schedule.edges, ops)
    for name, label in schedule.labels.items():
        if len(label) != ops:
            raise ScheduleError(f"label {name} has {len(label)} rows, there are {ops} ops")
    _check_ops(schedule)
    flowing = np.flatnonzero(schedule.kind == FLOW)
    if not np.array_equal(flowing, schedule.flows.op):
        rows = len(schedule.flows)
        raise ScheduleError(f"{rows} rows of flows, other than the {len(flowing)} FLOWs")
    if len(flowing):
        _check_flows(schedule)
    _check_start_edges(schedule)


def _check_column(name: str, column: IntArray, dtype: npt.DTypeLike, length: int) -> None:
    """Refuse a column of the wrong length, or whose values do not fit the engines' integers."""
    if column.ndim != 1:
        raise ScheduleError(f"{name} has {column.ndim} dimensions, expected one")
    if len(column) != length:
        raise ScheduleError(f"{name} has {len(column)} entries, expected {length}")
    if column.dtype == dtype or not length:
        return
    limits = np.iinfo(np.dtype(dtype))
    if column.dtype.kind not in "iu":
        raise ScheduleError(f"{name} holds {column.dtype}, expected {np.dtype(dtype)}")
    if column.min() < limits.min or column.max() > limits.max:
        raise ScheduleError(
            f"{name} reaches from {column.min()} to {column.max()}, beyond {np.dtype(dtype)}"
        )


def _check_pointers(name: str, ptr: IntArray, parts: int, entries: int) -> None:
    """Refuse pointers that do not cut a table of ``entries`` rows into consecutive parts."""
    _check_column(name, ptr, np.int64, parts + 1)
    if ptr[0] != 0 or ptr[-1] != entries or (ptr[1:] < ptr[:-1]).any():
        raise ScheduleError(f"{name} does not cut {entries} entries into {parts} parts")


def _check_resources(resources: Resources) -> None:
    for name, dtype in RESOURCE_COLUMNS.items():
        _check_column(f"resources.{name}", getattr(resources, name), dtype, len(resources))
    if len(resources) and resources.kind.max() >= len(resources.kinds):
        raise ScheduleError(f"a resource of kind {resources.kind.max()}: {resources.kinds}")
    for name in ("slots", "capacity"):
        if getattr(resources, name).min(initial=0) < 0:
            raise ScheduleError(f"resources.{name} is {getattr(resources, name).min()} somewhere")


def _check_edges(edges: Edges, ops: int) -> None:
    _check_pointers("edges.ptr", edges.ptr, ops, len(edges.dst))
    _check_column("edges.dst", edges.dst, np.int32, len(edges))
    _check_column("edges.lag_ps", edges.lag_ps, np.int64, len(edges))
    if edges.from_start is not None and (
        edges.from_start.shape != (len(edges),) or edges.from_start.dtype != np.bool_
    ):
        raise ScheduleError(f"edges.from_start is not a mask of {len(edges)} edges")
    if not len(edges):
        return
    if edges.dst.min() < 0 or edges.dst.max() >= ops:
        raise ScheduleError(f"an edge leads to op {edges.dst.max()}, there are {ops}")
    if edges.lag_ps.min() < 0:
        raise ScheduleError(f"an edge has a lag of {edges.lag_ps.min()} ps, the least is 0")
    if edges.lag_ps.max() > HORIZON_PS:
        raise ScheduleError(f"an edge has a lag of {edges.lag_ps.max()} ps, the most is 2**62")


def _check_ops(schedule: Schedule) -> None:
    resources, fixed, holds = schedule.resources, schedule.kind == FIXED, schedule.resource >= 0
    duration_ps = schedule.duration_ps
    _refuse_any(schedule.kind > JOIN, schedule.kind, "kind", "is not FIXED, FLOW or JOIN")
    _refuse_any(fixed & (duration_ps < 1), duration_ps, "duration_ps", "is below 1")
    _refuse_any(duration_ps > HORIZON_PS, duration_ps, "duration_ps", "is above 2**62")
    _refuse_any(~fixed & (duration_ps != 0), duration_ps, "duration_ps", "of a flow or join")
    unknown = (schedule.resource < NO_RESOURCE) | (schedule.resource >= len(resources))
    _refuse_any(unknown, schedule.resource, "resource", f"is not one of {len(resources)}")
    _refuse_any((schedule.kind == JOIN) & holds, schedule.resource, "resource", "held by a join")
    if resources.slots.min(initial=1) < 1 and holds.any():
        # NO_RESOURCE is -1, which picks the False that is appended.
        shared_only = np.append(resources.slots < 1, False)[schedule.resource]
        _refuse_any(
            shared_only, schedule.resource, "resource", "has no slots, it can only be shared"
        )


def _refuse_any(bad: BoolArray, values: IntArray, column: str, why: str) -> None:
    """Refuse the schedule if any op is bad, naming the first and its value in a column."""
    if bad.any():
        op = int(np.argmax(bad))
        raise ScheduleError(f"op {op}: {column} {values[op]} {why}")


def _check_start_edges(schedule: Schedule) -> None:
    """Refuse edges from a start whose second op could end before the first one does."""
    # Such an edge models cut-through: a link forwards the first bytes of a message while the rest
    # still arrives. The lag must keep the last byte from leaving before it has come.
    edges = schedule.edges
    if edges.from_start is None:
        return
    rows = np.flatnonzero(edges.from_start)
    src, dst = edges.sources()[rows], edges.dst[rows]
    least = np.maximum(1, schedule.duration_ps[src] - _shortest_ps(schedule, dst))
    allowed = (schedule.kind[src] == FIXED) & (schedule.kind[dst] != JOIN)
    bad = ~allowed | (edges.lag_ps[rows] < least)
    if bad.any():
        k = int(np.argmax(bad))
        raise ScheduleError(
            f"start-edge {src[k]} → {dst[k]}: lag {edges.lag_ps[rows][k]} ps; it leads from a "
            f"fixed op to one that is no join, and needs at least {least[k]} ps, or something "
            "would leave before it arrived (rule 2)"
        )


def _shortest_ps(schedule: Schedule, op: IntArray) -> IntArray:
    """Shortest time that ops can take [ps]: a flow's at its rate cap, a fixed op's duration."""
    flows, shortest = schedule.flows, schedule.duration_ps[op]
    at = np.flatnonzero(schedule.kind[op] == FLOW)
    row = np.searchsorted(flows.op, op[at])
    shortest[at] = transfer_ps(schedule.size_bytes[op[at]], flows.cap_bytes_per_s[row])
    return shortest


def _check_flows(schedule: Schedule) -> None:
    flows, size = schedule.flows, schedule.size_bytes[schedule.flows.op]
    _check_column("flows.cap_bytes_per_s", flows.cap_bytes_per_s, np.int64, len(flows))
    _check_pointers("flows.ptr", flows.ptr, len(flows), len(flows.resource))
    _check_column("flows.resource", flows.resource, np.int32, len(flows.resource))
    _check_column("flows.weight", flows.weight, np.int32, len(flows.resource))
    if size.min() < 1:
        raise ScheduleError("a flow has no work; a transfer of zero bytes is a join (rule 5)")
    if size.max() > LARGEST_FLOW_BYTES:
        raise ScheduleError(
            f"a flow of {size.max()} bytes; the most is {LARGEST_FLOW_BYTES}. Split it into more."
        )
    if flows.cap_bytes_per_s.min() < 1 or flows.weight.min(initial=1) < 1:
        raise ScheduleError("a flow's rate cap and weights must be at least 1")
    if np.diff(flows.ptr).min() < 1:
        raise ScheduleError("every flow crosses at least one shared resource")
    resources = schedule.resources
    if flows.resource.min() < 0 or flows.resource.max() >= len(resources):
        raise ScheduleError(f"a flow crosses a resource that is not one of {len(resources)}")
    capacity = resources.capacity[flows.resource]
    if capacity.min() < 1:
        raise ScheduleError("a flow crosses a resource without capacity")
    if capacity.max() > LARGEST_CAPACITY:
        raise ScheduleError(f"a flow crosses a resource of more than {LARGEST_CAPACITY} B/s")


def merge(*parts: Schedule) -> Schedule:
    """Merge schedules that start together, by ``stream``; equal names are one resource."""
    # By type too: a column of numbers and a column of names do not go into one.
    kinds = [{(name, type(value)) for name, value in part.labels.items()} for part in parts]
    shared = {name for name, _ in set.intersection(*kinds)}
    labels = {name: _label([part.labels[name] for part in parts]) for name in sorted(shared)}
    stream = np.repeat(np.arange(len(parts), dtype=np.int16), [len(part) for part in parts])
    return replace(
        one_behind_another(parts, *unite_resources([part.resources for part in parts])),
        labels={**labels, "stream": stream},
        facts={"streams": len(parts)},
    )


def one_behind_another(
    parts: Sequence[Schedule], resources: Resources, numbers: Sequence[IntArray]
) -> Schedule:
    """Return the ops of schedules as one; ``numbers`` are those of each one's resources now."""
    return schedule(
        OpColumns(
            **{
                name: np.concatenate([getattr(part, name) for part in parts])
                for name in ("kind", "duration_ps", "size_bytes", "priority")
            },
            resource=np.concatenate(
                [
                    _renumbered(part.resource, new_numbers)
                    for part, new_numbers in zip(parts, numbers, strict=True)
                ]
            ),
        ),
        edges=Edges.concat([part.edges for part in parts]),
        flows=_flows(parts, numbers, np.cumsum([0, *map(len, parts)])),
        resources=resources,
    )


def unite_resources(tables: Sequence[Resources]) -> tuple[Resources, list[IntArray]]:
    """Unite tables by name, as first met; returns the rows of each table's resources."""
    each = {id(table): table for table in tables}  # most parts of one fabric share a table
    stacked = Resources.concat(list(each.values()))
    columns = (stacked.kind, stacked.owner, stacked.peer, stacked.lane)
    first, distinct = distinct_rows(np.stack(columns, axis=1).astype(np.int64))
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
    ends = np.cumsum([len(table) for table in each.values()])[:-1]
    numbers = dict(zip(each, np.split(distinct, ends), strict=True))
    return stacked.picked(first), [numbers[id(table)] for table in tables]


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
