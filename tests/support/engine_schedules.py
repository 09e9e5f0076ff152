"""Small schedules written op by op, and the decorator that runs a test on both engines."""

import numpy as np
import pytest

from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, FLOW, Edges, Flows, Resources
from tests.support.schedules import BYTES_PER_PS, from_columns

ENGINES = pytest.mark.parametrize("engine", ["reference", "fast"])
PS = BYTES_PER_PS
"""Short name of one byte a picosecond [B/s], for cases that repeat it."""


def fixed(duration, resource=0, edges=None, slots=1, priority=0):
    """Fixed ops; by default on one engine with one slot, without edges."""
    resources = 1 if isinstance(resource, int) else max(resource) + 1
    return schedule(
        OpColumns(
            kind=[FIXED] * len(duration), duration_ps=duration, resource=resource, priority=priority
        ),
        edges=edges or no_edges(len(duration)),
        resources=Resources.table("engine", np.arange(resources), slots=slots),
    )


def no_edges(ops):
    """Edges of ops that wait for none."""
    return Edges.from_pairs(ops, np.empty(0, np.int64), np.empty(0, np.int32))


def times_of(times):
    """Instants at which each op is ready, starts and ends [ps]."""
    columns = (times.ready_ps, times.start_ps, times.end_ps)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def flow_schedule(size, path, capacity, **columns):
    """Flows that hold no slot; the work in bytes, the path of each."""
    ops = len(size)
    cap = columns.pop("cap", [2**62] * ops)
    weight = columns.pop("weight", [[1] * len(crossed) for crossed in path])
    return from_columns(
        kind=[FLOW] * ops,
        size_bytes=size,
        edges=columns.pop("edges", no_edges(ops)),
        resources=Resources.table("hbm", np.arange(len(capacity)), slots=1, capacity=capacity),
        flows=Flows(
            np.arange(ops, dtype=np.int32), np.array(cap, np.int64),
            np.cumsum([0, *map(len, path)]), np.concatenate(path).astype(np.int32),
            np.concatenate(weight).astype(np.int32),
        ),
        **columns,
    )  # fmt: skip
