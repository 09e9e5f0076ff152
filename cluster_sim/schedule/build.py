"""Checked schedules from columns of ops: every builder ends in :func:`schedule`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule.checks import check
from cluster_sim.schedule.table import NO_RESOURCE, Edges, Flows, Label, Resources, Schedule
from topologies.arrays import IntArray

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
        kind=_spread(columns.kind, np.uint8, ops),
        resource=_spread(columns.resource, np.int32, ops),
        duration_ps=_spread(columns.duration_ps, np.int64, ops),
        size_bytes=_spread(columns.size_bytes, np.int64, ops),
        priority=_spread(columns.priority, np.int32, ops),
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
