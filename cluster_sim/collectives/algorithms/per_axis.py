"""Collectives along one axis after the other, with a barrier of all ranks between axes.

A reduce-scatter runs a ring along each axis in turn, the last axis of the box first, an all-gather
the other way round, an all-reduce both; an all-to-all exchanges along each axis in turn. No rank
begins an axis before all ranks have finished the one before, which other simulators call a ring
per dimension. ``torus`` runs the same stages without barriers and with all axes busy at once.

A stage along an axis consists of one ring for each line of chips. These rings share nothing, so a
torus too large to hold is run ring by ring (:func:`cluster_sim.engine.copies.simulate_copies`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cluster_sim.collectives.algorithms import along_axes
from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.axis_exchange import axis_exchange
from cluster_sim.collectives.algorithms.ring_clocks import last_end_ps
from cluster_sim.collectives.algorithms.stages import (
    Part,
    ring_stage,
    staged,
    staged_count,
)
from cluster_sim.collectives.algorithms.torus import axis_lines
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.chunks import EVERY, Chunks, cut
from cluster_sim.collectives.group import Box, whole
from cluster_sim.collectives.lowering.lower import lower
from cluster_sim.collectives.messages import Messages
from cluster_sim.engine.copies import simulate_copies
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.hardware.fabric import fabric
from cluster_sim.schedule.picoseconds import transfer_ps
from cluster_sim.schedule.table import NO_RESOURCE, Edges, Schedule
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Axis, Torus


def _box(call: CollectiveCall) -> Box:
    return along_axes.filled_box(call, "per-axis")


def per_axis(call: CollectiveCall) -> Messages:
    """Write a collective axis by axis on the box of a group, with barriers."""
    filled, ranks = _box(call), call.ranks
    axes = range(len(filled.sizes))[::-1]
    if call.kind == "all-to-all":
        messages = axis_exchange(call.group, filled, call.size_bytes, [list(axes)])
        stages = [(filled.sizes[axis] - 1) * ranks for axis in axes]
        return with_barriers(messages, stages, held=stages)
    messages = staged(call, [Part(tuple(axis_lines(filled, axis) for axis in axes))], 1)
    one_way = [(filled.sizes[axis] - 1) * ranks for axis in axes]
    stages = one_way * call.reduces + one_way[::-1] * call.gathers
    return with_barriers(messages, stages, held=[ranks] * len(stages))


def with_barriers(messages: Messages, stages: Sequence[int], held: Sequence[int]) -> Messages:
    """Add barriers, so that each stage begins when all ranks have finished the one before.

    ``messages``: the stages one after the other, with a join for each rank between two. ``stages``:
    number of messages of each stage, without joins. ``held``: number of messages of each stage,
    from its first, that wait for the barrier; the rest of the stage waits for these.
    """
    ranks, rows, barriers = messages.ranks, len(messages), len(stages) - 1
    if rows == 0 or barriers < 1:
        return messages
    ends = np.cumsum(np.array(stages) + ranks)[:-1]
    joins = ends[:, None] - ranks + np.arange(ranks)
    barrier = rows + np.arange(barriers)
    waiting = [end + np.arange(count) for end, count in zip(ends, held[1:], strict=True)]
    edges = messages.edges
    waits = Edges.from_pairs(
        rows + barriers,
        np.concatenate([edges.sources(), joins.ravel(), np.repeat(barrier, held[1:])]),
        np.concatenate([edges.dst, np.repeat(barrier, ranks), *waiting]),
    )

    def column(name: str, value: int) -> np.ndarray:
        values = np.asarray(getattr(messages, name))
        return np.append(values, np.full(barriers, value, values.dtype))

    return replace(
        messages,
        channel=column("channel", 0),
        first=column("first", 0),
        count=column("count", 0),
        reduce=column("reduce", 0),
        step=np.append(messages.step, messages.step[ends - 1]),
        priority=column("priority", 0),
        edges=waits,
    )


def _message_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    sizes = _box(call).sizes
    if call.kind == "all-to-all":
        return call.ranks * (sum(sizes) - 1) + len(sizes) - 1
    return staged_count(call, [sizes], 1) + call.ways * len(sizes) - 1


def _streamed_ops(call: CollectiveCall, costs: CommunicationCosts) -> int:
    return _message_count(call, costs) + call.ranks if _rings_share_nothing(call) else 0


def _rings_share_nothing(call: CollectiveCall) -> bool:
    """Return whether the rings along an axis are apart, and every step crosses one link."""
    cluster = call.group.cluster
    torus = cluster.plain and isinstance(cluster.shape, Torus) and all(_box(call).wraps)
    return torus and call.kind in RING_KINDS


def ring_by_ring_ps(call: CollectiveCall, costs: CommunicationCosts) -> int | None:
    """Return the time of a call from runs of every ring by itself, one axis after the other.

    All messages are simulated, in the memory of a few rings. Where blocks differ by a byte, clocks
    of links give the time of each ring (:mod:`~.ring_clocks`). Returns the time [ps]; None where
    rings share more than links, or where messages cross several links.
    """
    shape, filled = call.group.cluster.shape, _box(call)
    if not (isinstance(shape, Torus) and _rings_share_nothing(call)):
        return None
    if call.size_bytes % call.ranks:
        return _clocked_ps(call, filled, shape, costs)
    total_ps = 0
    for kind, place, size_bytes in _stages(call.kind, filled.sizes, call.size_bytes):
        axis = shape.axes[filled.axes[place]]
        pattern = _one_ring(kind, axis, size_bytes, costs)
        rings = math.prod(filled.sizes) // axis.size
        kinds = np.zeros((rings, len(pattern.resources)), np.int32)  # all links are equal
        rate = int(costs.scale_up(np.array([axis.bandwidth_bytes_per_s]))[0])
        total_ps += int(simulate_copies(pattern, kinds, [rate], [axis.latency_ps]).max())
    return total_ps


def _clocked_ps(
    call: CollectiveCall, filled: Box, shape: Torus, costs: CommunicationCosts
) -> int | None:
    """Return the time of a call from the clocks of links, one axis after the other [ps]."""
    owner = filled.chip_at.reshape(filled.sizes).T.ravel()  # of shards; the last axis comes first
    held_bytes = cut(call.size_bytes, call.ranks)[owner]
    total_ps, lines = 0, 1
    for place in reversed(range(len(filled.sizes))):
        axis = shape.axes[filled.axes[place]]
        rate = int(costs.scale_up(np.array([axis.bandwidth_bytes_per_s]))[0])
        blocks_bytes = held_bytes.reshape(lines, axis.size, -1).sum(axis=2)
        wire_ps = transfer_ps(blocks_bytes, np.array(rate)) * (blocks_bytes > 0)
        axis_ps = last_end_ps(wire_ps[:, None], axis.latency_ps, axis.size - 1)
        if axis_ps is None:
            return None
        total_ps += axis_ps
        lines *= axis.size
    return call.ways * total_ps


def _stages(kind: str, sizes: tuple[int, ...], size_bytes: int) -> list[tuple[str, int, int]]:
    """Return the operation, the number of the axis, and the buffer [B] of each stage."""
    down, left = [], size_bytes
    for place in reversed(range(len(sizes))):
        down.append(("reduce-scatter", place, left))
        left = int(cut(left, sizes[place]).max())
    up = [("all-gather", place, size) for _, place, size in reversed(down)]
    return {"reduce-scatter": down, "all-gather": up, "all-reduce": down + up}[kind]


def _one_ring(kind: str, axis: Axis, size_bytes: int, costs: CommunicationCosts) -> Schedule:
    """Build the schedule of a stage on one line of chips, on the links that it uses."""
    ring = whole(_ring_cluster(axis))
    every, rank = np.full(axis.size, EVERY, np.int32), np.arange(axis.size, dtype=np.int32)
    reduces = kind == "reduce-scatter"
    blocks = cut(size_bytes, axis.size)
    chunks = Chunks(
        size_bytes=np.full(axis.size, blocks.max()),
        source=every if reduces else rank,
        target=rank if reduces else every,
        group=np.zeros(axis.size, np.int32),
    )
    messages = ring_stage(rank[None, None, :], chunks, reduces=reduces)
    schedule = lower(messages, ring.chip_of_rank, fabric(ring.cluster, costs=costs), {})
    # Number the links in use from 0; NO_RESOURCE, the smallest number if it occurs, stays -1.
    used, place = np.unique(schedule.resource, return_inverse=True)
    links = used[used != NO_RESOURCE]
    number = place.astype(np.int32) - (len(used) - len(links))
    return replace(schedule, resource=number, resources=schedule.resources.picked(links))


def _ring_cluster(axis: Axis) -> Cluster:
    """Return the chips along one axis as a cluster."""
    return Cluster(f"ring:{axis.size}", Torus((axis,)), chips_per_server=axis.size, plain=True)


PER_AXIS = Algorithm(
    name="per-axis",
    summary="a ring, or an exchange, along one axis after the other, all ranks in step",
    kinds=(*RING_KINDS, "all-to-all"),
    suits=along_axes.has_axes,
    messages=lambda call, costs: per_axis(call),
    message_count=_message_count,
    rounds=lambda call, costs: along_axes.rounds(call, "per-axis"),
    memory_accesses=lambda call, costs: along_axes.memory_accesses(call, costs, "per-axis"),
    stands_for=ring_by_ring_ps,
    streamed_ops=_streamed_ops,
    streams_watched=True,
)
