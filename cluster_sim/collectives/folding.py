"""Rings in which every hop is alike, run on a few ranks that stand for all.

In a ring over one chip of each domain all ranks do the same at the same time, so a ring of three
ranks that runs as many rounds with the same blocks has the same clock as one of thousands.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_sim.collectives.chunks import EVERY, Chunks, cut
from cluster_sim.collectives.cycles import cycles
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.lower import lower
from cluster_sim.collectives.ring import RING_OPS, ring_rounds
from cluster_sim.fabric import fabric
from cluster_sim.trace import run
from cluster_sim.wire import wire
from topologies.scale_out import ScaleOut
from topologies.scale_out_routing import scale_out_paths

FOLD_FROM = 512
"""Ranks from which a ring between domains is folded; a smaller one is run as it is."""
STAND_FOR_ALL = 3
"""Ranks that are run; with two, a ring and its reverse would be the same."""


def folded_ring(
    op: str, group: Group, size_bytes: int, algorithm: str, *, ideal: bool = False
) -> int | None:
    """Time of a ring over the adapters of different domains [ps], or None where hops differ.

    Blocks that differ by a byte are all given the larger size, and hops that climb further up the
    scale-out fabric are charged as if no bandwidth hid their latency: exact where neither occurs.
    """
    ranks = group.ranks
    alike = len(np.unique(group.domain)) == ranks >= FOLD_FROM
    if op not in RING_OPS or algorithm != "ring" or not alike:
        return None
    cluster, scale_out = group.cluster, group.cluster.scale_out
    if scale_out is None:
        return None
    costs = wire(cluster, ideal=ideal)
    block = cut(int(cut(size_bytes, ranks).max()), costs.slices)
    chunks = Chunks.table(np.repeat(block, STAND_FOR_ALL), EVERY, EVERY)
    rounds = (ranks - 1) * (2 if op == "all-reduce" else 1)
    few = cycles(np.arange(STAND_FOR_ALL))
    sends = ring_rounds(few, costs.slices, chunks, rounds, reduces=op != "all-gather")
    flat = replace(cluster, scale_out=replace(scale_out, climb_ps=(0,)))
    picked = fabric(flat, group.domain[:STAND_FOR_ALL], ideal=ideal)
    made = lower(sends, group.chips[:STAND_FOR_ALL], picked, {})
    return run(made).total_ps + _climbs_ps(group, scale_out, rounds)


def _climbs_ps(group: Group, scale_out: ScaleOut, rounds: int) -> int:
    """Latency that the longest chain of rounds meets in the layers of the fabric [ps].

    Each block travels on from rank to rank, once round and on, so the chain that starts at the
    worst place sets the end.
    """
    paths = scale_out_paths(group.cluster, group.chips, np.roll(group.chips, -1))
    extra = paths.latency_ps - scale_out.latency_ps
    laps, rest = divmod(rounds, len(extra))
    before = np.concatenate([[0], np.cumsum(np.concatenate([extra, extra]))])
    windows = before[rest : rest + len(extra)] - before[: len(extra)]
    return int(laps * extra.sum() + windows.max())
