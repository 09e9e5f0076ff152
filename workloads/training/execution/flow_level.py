"""The flow level: a collective as one flow on all the links and adapters that it uses.

At the collective level every collective runs as if it were alone; at the chunk level every message
is an op. The flow level lies between the two: a collective is one flow whose work is the time that
it takes alone. On each link it uses the share of capacity that equals the share of this time for
which the link is busy in a chunk-level run. A flow that is alone takes the time of the collective
level to the picosecond. Collectives that exceed a link's capacity together slow each other by
max-min fairness, and a fault of a link or adapter affects all collectives that cross it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.schedule.table import (
    FIXED,
    FLOW,
    JOIN,
    LARGEST_FLOW_BYTES,
    NO_RESOURCE,
    Edges,
    Flows,
    Resources,
    Schedule,
)
from cluster_sim.trace.trace import run
from topologies.arrays import IntArray
from topologies.errors import InputError

PACE = 10**12
"""Rate of an undisturbed flow [B/s], so that a byte of its work is a picosecond of its time."""
PARTS = 1000  # parts into which the capacity of a link is divided; shares are whole numbers of them
LEAST = 10
"""Smallest share that is kept, in such parts. A use of 1 % of a link slows other flows by no more
than that."""


def as_flow(chunks: Schedule, duration_ps: int) -> Schedule:
    """Return a collective as a single op that uses the links and adapters that its chunks use.

    ``duration_ps``: time of the collective alone, from the collective level [ps].
    """
    if duration_ps > LARGEST_FLOW_BYTES:
        raise InputError(
            f"--level flow follows collectives of up to {LARGEST_FLOW_BYTES / PS_PER_S:.1f} s; one "
            f"here takes {duration_ps / PS_PER_S:.1f} s. Use --level collective."
        )
    no_edges = Edges.from_pairs(1, np.empty(0, np.int64), np.empty(0, np.int64))
    if duration_ps == 0:
        columns = OpColumns(kind=[JOIN], resource=NO_RESOURCE, duration_ps=0)
        return schedule(columns, edges=no_edges, resources=_shared(chunks.resources, []))
    busy = busy_ps(chunks)
    parts = np.minimum(PARTS, -(-PARTS * busy // duration_ps))
    used = np.flatnonzero(parts >= LEAST)
    resources = _shared(chunks.resources, used)
    if not len(used):
        columns = OpColumns(kind=[FIXED], resource=NO_RESOURCE, duration_ps=duration_ps)
        return schedule(columns, edges=no_edges, resources=resources)
    flows = Flows(
        np.zeros(1, np.int32),
        np.array([PACE]),
        np.array([0, len(used)]),
        np.arange(len(used), dtype=np.int32),
        parts[used].astype(np.int32),
    )
    columns = OpColumns(kind=[FLOW], resource=NO_RESOURCE, duration_ps=0, size_bytes=[duration_ps])
    return schedule(columns, edges=no_edges, resources=resources, flows=flows)


def busy_ps(chunks: Schedule) -> IntArray:
    """Return the time for which each resource of a schedule is busy at its full rate [ps]."""
    busy = np.zeros(len(chunks.resources), np.int64)
    held = chunks.resource != NO_RESOURCE
    times = run(chunks).times
    lasts = (times.end_ps - times.start_ps)[held]
    np.add.at(busy, chunks.resource[held], lasts)
    busy //= np.maximum(1, chunks.resources.slots)
    flows = chunks.flows
    if len(flows.op):
        flow = np.repeat(np.arange(len(flows.op)), np.diff(flows.ptr))
        drawn = chunks.size_bytes[flows.op[flow]].astype(float) * flows.weight
        capacity = chunks.resources.capacity[flows.resource]
        spent_ps = np.ceil(drawn / capacity * PS_PER_S).astype(np.int64)
        np.add.at(busy, flows.resource, spent_ps)
    return busy


def _shared(resources: Resources, kept: IntArray | list[int]) -> Resources:
    """Return some of the resources as shared ones, whose capacity is divided among flows."""
    rows = np.asarray(kept, np.int64)
    columns = {name: getattr(resources, name)[rows] for name in ("kind", "owner", "peer", "lane")}
    return replace(
        resources,
        **columns,
        slots=np.zeros(len(rows), np.int32),
        capacity=np.full(len(rows), PARTS * PACE, np.int64),
    )
