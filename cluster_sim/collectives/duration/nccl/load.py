"""Load that one of NVIDIA's collectives puts on its ranks: bytes over each port, and steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.group import Group
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster

Number = float | npt.NDArray[np.float64]
OPTIONAL = ("shard", "in_switch", "steps", "second_steps", "far_steps", "messages", "beside")
"""Fields of a load that are zero for some of the ways in which NCCL moves data."""
SERVER = 8  # most chips that share the adapters of one server; a domain may have many servers
TREES = ("nccl-tuner", "trees")
"""Part and quantity of the catalogue: whether an all-reduce may go by trees and switches."""
Way = Literal["ring", "tree", "exchange"]
"""Ways in which data goes: round rings, by a protocol that the tuner picks; up and down a tree over
servers; or directly between all pairs at once."""


@dataclass(frozen=True)
class Load:
    """Load of one collective, or arrays of the loads of many that go the same way [B]."""

    way: Way
    size: Number  # of the buffer as nccl-tests counts it
    ranks: Number
    domains: Number  # scale-up domains over which the ranks are spread
    inside: Number  # bytes that one rank sends over NVLink …
    outside: Number  # … and over its network adapter
    shard: Number  # bytes of a rank's own shard, which it copies in place
    in_switch: Number  # bytes that one rank sends when the switch reduces, 0 where it cannot
    steps: Number  # over NVLink that follow one another …
    second_steps: Number  # … those in the second half of a ring's all-reduce, which only gathers …
    far_steps: Number  # … and steps between domains
    messages: Number  # that one rank sends to other domains
    # 1 where the group has less than half of its servers' chips, else 0: the server's other groups
    # are then taken to communicate in the same way at the same time.
    beside: Number


def has_trees(cluster: Cluster) -> bool:
    """Return whether all-reduces may go otherwise than round rings (no ``NCCL_ALGO=Ring``)."""
    return cluster.catalogue is None or cluster.catalogue.integer(*TREES) > 0


def load_of(call: CollectiveCall, *, rings: bool = False) -> Load:
    """Load of a call on the ports of its ranks.

    ``rings`` forces an all-reduce to go round rings, as does the catalogue's
    ``nccl-tuner.trees=none``.
    """
    kind, group, size_bytes, ranks = call.kind, call.group, call.size_bytes, call.ranks
    rings = rings or not has_trees(group.cluster)
    domain = group.domain
    chips = np.bincount(domain - domain.min())
    # near: ranks of the fullest domain; far: domains of the group.
    near, far = int(chips.max()) * group.ranks_per_chip, int(np.count_nonzero(chips))
    ring, shard = size_bytes * (ranks - 1) / ranks, size_bytes / ranks

    def load(way: Way, inside: float, outside: float, **other: float) -> Load:
        """Load of one way of this call, with the extra traffic that it has."""
        optional: dict[str, float] = dict.fromkeys(OPTIONAL, 0.0)
        few = 2 * int(chips.max()) < min(group.cluster.chips_per_domain, SERVER)
        optional["beside"] = float(far > 1 and few)
        return Load(way, size_bytes, ranks, far, inside, outside, **{**optional, **other})

    # Steps of a ring that cross between domains; with one rank a domain, every step does.
    crossings = 0 if far == 1 else far if near > 1 else far - 1
    if kind == "all-reduce" and (rings or far == 1):
        switch = 0.0 if rings or near < 3 else size_bytes * (1 + 1 / near)
        fields = {"shard": shard, "in_switch": switch, "far_steps": 2 * crossings}
        half = ranks - 1 - crossings
        outside = 2 * ring / near if far > 1 else 0
        return load("ring", 2 * ring, outside, steps=2 * half, second_steps=half, **fields)
    if kind == "all-reduce":
        switch = 0.0 if near < 3 else size_bytes * (1 + 1 / near)
        # A tree of two servers has a single edge, over which each sends its buffer once.
        outside = min(2 * ring, (1 if far == 2 else 2) * size_bytes) / near
        fields = {"steps": 2 * (near - 1), "far_steps": 2 * math.ceil(math.log2(far))}
        return load("tree", 2 * ring, outside, shard=shard, in_switch=switch, **fields)
    if kind in ("all-gather", "reduce-scatter"):
        fields = {"shard": shard, "steps": ranks - 1 - crossings, "far_steps": crossings}
        return load("ring", ring, ring / near if far > 1 else 0, **fields)
    if kind == "broadcast":
        outside = size_bytes / near if far > 1 else 0
        return load("ring", size_bytes, outside, steps=ranks - far, far_steps=far - 1)
    if kind == "permute":
        crosses = int(far > 1)
        return load("exchange", size_bytes, size_bytes * crosses, steps=1, far_steps=crosses)
    outside = size_bytes * (ranks - near) / ranks
    fields = {"steps": 1 + math.log2(near), "far_steps": int(far > 1), "messages": ranks - near}
    return load("exchange", ring, outside, shard=shard, **fields)


def uneven_load(group: Group, sent_bytes: IntArray) -> Load:
    """Load of an all-to-all by bytes (ranks, ranks): what its busiest port sends or receives.

    For equal parts over domains of equal size it is that of the all-to-all.
    """
    even = load_of(CollectiveCall("all-to-all", group, int(sent_bytes.sum()) // group.ranks))
    domain = group.domain.repeat(group.ranks_per_chip)
    kept, far = np.diag(sent_bytes), np.where(domain[:, None] == domain, 0, sent_bytes)
    sent, received = sent_bytes.sum(axis=1), sent_bytes.sum(axis=0)
    return replace(
        even,
        size=float(max(sent.max(), received.max())),
        inside=float(max((sent - kept).max(), (received - kept).max())),
        outside=float(max(far.sum(axis=1).max(), far.sum(axis=0).max())),
        shard=float(kept.max()),
    )
