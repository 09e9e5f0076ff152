"""Collectives along one axis after the other, with a barrier of all ranks between axes.

A reduce-scatter runs a ring along each axis in turn, the last axis of the box first, an all-gather
the other way round, an all-reduce both; an all-to-all exchanges along each axis in turn. No rank
begins an axis before all ranks have finished the one before, which other simulators call a ring
per dimension. ``torus`` runs the same stages without barriers and with all axes busy at once.

A stage along an axis consists of one ring for each line of chips. On plain tori these rings share
nothing, so the clocks of their links give the time of all messages (:mod:`~.ring_clocks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.axis_exchange import axis_exchange
from cluster_sim.collectives.algorithms.ring_clocks import last_end_ps
from cluster_sim.collectives.algorithms.stages import (
    Part,
    staged,
    staged_count,
)
from cluster_sim.collectives.algorithms.torus import (
    accesses_along_axes,
    axis_lines,
    filled_box,
    has_axes,
    rounds_along_axes,
)
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.chunks import cut
from cluster_sim.collectives.group import Box
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.schedule.picoseconds import transfer_ps
from cluster_sim.schedule.table import Edges
from topologies.shapes.basic import Torus


def _box(call: CollectiveCall) -> Box:
    return filled_box(call, "per-axis")


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

    ``stages``: messages of each stage, without the joins between them. ``held``: how many of them,
    the first ones, wait for the barrier; the rest of the stage waits for these.
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
    """Return the time of a call from the clocks of the links of every ring [ps].

    None where rings share more than links, and where the run might pass the horizon.
    """
    shape, filled = call.group.cluster.shape, _box(call)
    if not (isinstance(shape, Torus) and _rings_share_nothing(call)):
        return None
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


PER_AXIS = Algorithm(
    name="per-axis",
    summary="a ring, or an exchange, along one axis after the other, all ranks in step",
    kinds=(*RING_KINDS, "all-to-all"),
    suits=has_axes,
    messages=lambda call, costs: per_axis(call),
    message_count=_message_count,
    rounds=lambda call, costs: rounds_along_axes(call, "per-axis"),
    memory_accesses=lambda call, costs: accesses_along_axes(call, costs, "per-axis"),
    stands_for=ring_by_ring_ps,
    streamed_ops=_streamed_ops,
    streams_watched=True,
)
