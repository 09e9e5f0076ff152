"""Making a checked Schedule: every builder of ops ends in :func:`schedule`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule import (
    FIXED,
    FLOW,
    HORIZON_PS,
    JOIN,
    LARGEST_CAPACITY,
    LARGEST_FLOW_BYTES,
    NO_RESOURCE,
    BoolArray,
    Edges,
    Flows,
    IntArray,
    Label,
    Resources,
    Schedule,
    ScheduleError,
)


def schedule(
    *,
    kind: npt.ArrayLike,
    edges: Edges,
    resources: Resources,
    resource: npt.ArrayLike = NO_RESOURCE,
    duration_ps: npt.ArrayLike = 0,
    size_bytes: npt.ArrayLike = 0,
    priority: npt.ArrayLike = 0,
    flows: Flows | None = None,
    labels: Mapping[str, Label] | None = None,
    facts: Mapping[str, str | int | float | bool] | None = None,
) -> Schedule:
    """Make a checked schedule; scalars are spread over all ops.

    Raises
    ------
    ScheduleError
        When a column breaks a rule of time; the message names the op and the value.

    Examples
    --------
    Two transfers on one link, the second after the first:

    >>> link = Resources.table("link", [0], [1])
    >>> edges = Edges.from_pairs(2, [0], [1])
    >>> schedule(kind=[FIXED, FIXED], resource=0, duration_ps=5, edges=edges, resources=link)
    Schedule(2 ops, 1 edges, 1 resources)
    """
    ops = len(edges.ptr) - 1

    def column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> IntArray:
        array = np.asarray(values, dtype)
        return np.ascontiguousarray(array if array.shape == (ops,) else np.full(ops, array, dtype))

    made = Schedule(
        kind=column(kind, np.uint8),
        resource=column(resource, np.int32),
        duration_ps=column(duration_ps, np.int64),
        size_bytes=column(size_bytes, np.int64),
        priority=column(priority, np.int32),
        edges=edges,
        resources=resources,
        flows=flows or Flows.none(),
        labels=dict(labels or {}),
        facts=dict(facts or {}),
    )
    check(made)
    return made


def check(made: Schedule) -> None:
    """Refuse a schedule that breaks rules 1, 2 or 5, naming the first op at fault.

    Raises
    ------
    ScheduleError
    """
    ops, resources, edges = len(made), len(made.resources), made.edges
    fixed = made.kind == FIXED
    _refuse(made.kind > JOIN, made.kind, "kind", "is not FIXED, FLOW or JOIN")
    _refuse(fixed & (made.duration_ps < 1), made.duration_ps, "duration_ps", "is below 1")
    _refuse(made.duration_ps > HORIZON_PS, made.duration_ps, "duration_ps", "is above 2**62")
    _refuse(~fixed & (made.duration_ps != 0), made.duration_ps, "duration_ps", "of a flow or join")
    _refuse(
        (made.resource < NO_RESOURCE) | (made.resource >= resources),
        made.resource,
        "resource",
        f"is not one of {resources}",
    )
    _refuse((made.kind == JOIN) & (made.resource >= 0), made.resource, "resource", "held by a join")
    if len(edges.ptr) != ops + 1 or edges.ptr[-1] != len(edges.dst):
        raise ScheduleError(f"edges.ptr has {len(edges.ptr)} entries, {ops} ops need {ops + 1}")
    if len(edges) and (edges.dst.min() < 0 or edges.dst.max() >= ops):
        raise ScheduleError(f"an edge leads to op {edges.dst.max()}, there are {ops}")
    if len(edges) and edges.lag_ps.min() < 0:
        raise ScheduleError(f"an edge has a lag of {edges.lag_ps.min()} ps, the least is 0")
    if len(edges) and edges.lag_ps.max() > HORIZON_PS:
        raise ScheduleError(f"an edge has a lag of {edges.lag_ps.max()} ps, the most is 2**62")
    for name, label in made.labels.items():
        if len(label) != ops:
            raise ScheduleError(f"label {name} has {len(label)} rows, there are {ops} ops")
    _check_slots(made)
    _check_start_edges(made)
    _check_flows(made)


def _refuse(bad: BoolArray, values: IntArray, column: str, why: str) -> None:
    if bad.any():
        op = int(np.argmax(bad))
        raise ScheduleError(f"op {op}: {column} {values[op]} {why}")


def _check_slots(made: Schedule) -> None:
    holds = made.resource >= 0
    if made.resources.slots.min(initial=1) < 1 and holds.any():
        slots = np.where(holds, made.resources.slots[made.resource], 1)
        _refuse(slots < 1, made.resource, "resource", "has no slots, it can only be shared")


def _check_start_edges(made: Schedule) -> None:
    edges = made.edges
    if edges.from_start is None:
        return
    picked = np.flatnonzero(edges.from_start)
    src, dst = edges.sources()[picked], edges.dst[picked]
    least = np.maximum(1, made.duration_ps[src] - made.duration_ps[dst])
    fixed = (made.kind[src] == FIXED) & (made.kind[dst] == FIXED)
    bad = ~fixed | (edges.lag_ps[picked] < least)
    if bad.any():
        k = int(np.argmax(bad))
        raise ScheduleError(
            f"start-edge {src[k]} → {dst[k]}: lag {edges.lag_ps[picked][k]} ps; it needs two fixed "
            f"ops and at least {least[k]} ps, or something would leave before it arrived (rule 2)"
        )


def _check_flows(made: Schedule) -> None:
    flows = made.flows
    if not np.array_equal(np.flatnonzero(made.kind == FLOW), flows.op):
        raise ScheduleError(f"{len(flows)} rows of flows for other ops than those of kind FLOW")
    if not len(flows):
        return
    if made.size_bytes[flows.op].min() < 1:
        raise ScheduleError("a flow has no work; a transfer of zero bytes is a join (rule 5)")
    if made.size_bytes[flows.op].max() > LARGEST_FLOW_BYTES:
        raise ScheduleError(
            f"a flow of {made.size_bytes[flows.op].max()} bytes; the most is {LARGEST_FLOW_BYTES}. "
            f"Split it into several."
        )
    if flows.cap_bytes_per_s.min() < 1 or flows.weight.min(initial=1) < 1:
        raise ScheduleError("a flow's rate cap and weights must be at least 1")
    if np.diff(flows.ptr).min() < 1 or flows.ptr[-1] != len(flows.resource):
        raise ScheduleError("every flow crosses at least one shared resource")
    if made.resources.capacity[flows.resource].min() < 1:
        raise ScheduleError("a flow crosses a resource without capacity")
    if made.resources.capacity[flows.resource].max() > LARGEST_CAPACITY:
        raise ScheduleError(f"a flow crosses a resource of more than {LARGEST_CAPACITY} B/s")
