"""A torus too large to hold whole: ring stages built, run and dropped one after the other.

On a torus in which every rank has the same to do, all ranks end a stage at the same instant, so
the stages' times add up to the time of the whole, and only one stage is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.algorithms.stages import ring_stage
from cluster_sim.collectives.algorithms.torus import axis_lines
from cluster_sim.collectives.call import RING_KINDS
from cluster_sim.collectives.chunks import EVERY, Chunks, cut
from cluster_sim.collectives.group import Box, Group, box
from cluster_sim.collectives.lowering.collective import Collective
from cluster_sim.collectives.lowering.lower import Facts, lower
from cluster_sim.hardware.fabric import Fabric, fabric
from cluster_sim.trace.trace import run
from topologies.errors import InputError


@dataclass(frozen=True)
class Phased:
    """What a run in phases gives.

    Attributes
    ----------
    total_ps : int
        Of all phases [ps].
    ops : int
        Of all phases.
    """

    total_ps: int
    ops: int


def phases(
    op: str, group: Group, size_bytes: int, *, ideal: bool = False, both_ways: bool = True
) -> Iterator[Collective]:
    """Ring stages along one axis after the other, fastest axis first.

    Each is a reduce-scatter or all-gather in all rings of its axis and can be proven by itself.

    Parameters
    ----------
    op : str
        Of rings.
    group : Group
        One rank a chip.
    size_bytes : int
        As in nccl-tests [B].
    ideal : bool
        Link rates and latencies only.
    both_ways : bool
        Half the payload each way round the rings at once, or all of it one way.

    Raises
    ------
    InputError
        When the group does not fill a box, or the operation is none of rings.
    """
    found = box(group)
    if op not in RING_KINDS or found is None or group.ranks_per_chip > 1:
        raise InputError(f"{op} on {group.cluster.name} cannot be run in phases along axes")
    made = fabric(group.cluster, np.unique(group.domain), ideal=ideal)
    for name, axis, size in _plan(op, found.sizes, size_bytes):
        yield _phase(name, group, found, axis, size, made, both_ways=both_ways)


def _plan(op: str, sizes: tuple[int, ...], size_bytes: int) -> list[tuple[str, int, int]]:
    """Operation, axis and buffer [B] of each phase."""
    down, left = [], size_bytes
    for axis in range(len(sizes))[::-1]:
        down.append(("reduce-scatter", axis, left))
        left = int(cut(left, sizes[axis]).max())
    up = [("all-gather", axis, size) for _, axis, size in down[::-1]]
    return {"reduce-scatter": down, "all-gather": up, "all-reduce": down + up}[op]


def _phase(
    op: str,
    group: Group,
    found: Box,
    axis: int,
    size_bytes: int,
    made: Fabric,
    *,
    both_ways: bool,
) -> Collective:
    lines = axis_lines(found, axis)
    count, size = lines.shape
    turned = [lines[:, ::-1]] if both_ways and found.wraps[axis] else []
    ways = np.stack([lines, *turned])
    blocks = cut(cut(size_bytes, size), len(ways)).T
    reduces, every = op == "reduce-scatter", np.full(ways.size, EVERY, np.int32)
    chunks = Chunks(
        size_bytes=np.repeat(blocks[:, None, :], count, axis=1).ravel(),
        source=every if reduces else ways.ravel(),
        target=ways.ravel() if reduces else every,
        group=np.tile(np.repeat(np.arange(count, dtype=np.int32), size), len(ways)),
    )
    ring_of_rank = np.empty(group.ranks, np.int32)
    ring_of_rank[lines] = np.arange(count, dtype=np.int32)[:, None]
    facts: Facts = {"collective": op, "algorithm": "torus", "axis": axis, "size_bytes": size_bytes}
    sends = ring_stage(ways, chunks, reduces=reduces)
    schedule = lower(sends, group.chip_of_rank, made, facts)
    return Collective(op, "torus", schedule, chunks, group.chip_of_rank, ring_of_rank, size - 1)


def run_phases(
    op: str, group: Group, size_bytes: int, *, ideal: bool = False, both_ways: bool = True
) -> Phased:
    """Build, run and drop one phase after the other; their times add up.

    Examples
    --------
    >>> from cluster_sim.collectives import whole
    >>> from topologies.clusters.names import cluster
    >>> torus = whole(cluster("torus:4x4", bandwidth="1GB/s", latency="0ns"))
    >>> run_phases("all-reduce", torus, 16_000).total_ps
    15000000
    """
    total = ops = 0
    for phase in phases(op, group, size_bytes, ideal=ideal, both_ways=both_ways):
        total += run(phase.schedule).total_ps
        ops += len(phase.schedule)
        del phase
    return Phased(total, ops)
