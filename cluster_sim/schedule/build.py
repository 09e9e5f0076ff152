"""Making a checked Schedule: every builder of ops ends in :func:`schedule`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule.checks import check
from cluster_sim.schedule.table import (
    NO_RESOURCE,
    Edges,
    Flows,
    IntArray,
    Label,
    Resources,
    Schedule,
)

__all__ = ["check", "schedule"]


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

    >>> from cluster_sim.schedule.table import FIXED
    >>> link = Resources.table("link", [0], [1])
    >>> edges = Edges.from_pairs(2, [0], [1])
    >>> schedule(kind=[FIXED, FIXED], resource=0, duration_ps=5, edges=edges, resources=link)
    Schedule(2 ops, 1 edges, 1 resources)
    """
    ops = len(edges.ptr) - 1

    def column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> IntArray:
        array = np.asarray(values, dtype)
        if array.shape == (ops,):
            return np.ascontiguousarray(array)
        return np.full(ops, array, dtype) if array.any() else np.zeros(ops, dtype)  # no page of it

    built = Schedule(
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
    check(built)
    return built
