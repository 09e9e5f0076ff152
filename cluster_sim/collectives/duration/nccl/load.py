"""Load that one of NVIDIA's collectives puts on its ranks: bytes over each port, and steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives.call import CollectiveCall

Number = float | npt.NDArray[np.float64]
OPTIONAL = ("shard", "in_switch", "steps", "second_steps", "far_steps", "messages", "beside")
"""Fields of a load that are zero for some ways."""
SERVER = 8
"""Chips that share the adapters of a server at most; a domain may have many servers."""
Way = Literal["ring", "tree", "exchange"]
"""Round rings by a protocol that the tuner picks; up and down a tree over servers; all at once."""


@dataclass(frozen=True)
class Load:
    """Load of one collective, or arrays of the loads of many that go the same way.

    Attributes
    ----------
    way : str
    size, ranks, domains : float or array
        As in nccl-tests [B]; those of the group.
    inside, outside, shard, in_switch : float or array
        Sent by one rank over NVLink, over its adapter, copied in place; by reduction in the switch,
        0 where there is none [B].
    steps, second_steps, far_steps, messages : float or array
        One after the other over NVLink; those among them of the second half of an all-reduce round
        a ring, which only gathers; between domains; messages of one rank between domains.
    beside : float or array
        1 where the group has less than half of its servers' chips, whose other groups are taken to
        do the same at the same time, else 0.
    """

    way: Way
    size: Number
    ranks: Number
    domains: Number
    inside: Number
    outside: Number
    shard: Number
    in_switch: Number
    steps: Number
    second_steps: Number
    far_steps: Number
    messages: Number
    beside: Number


def load_of(call: CollectiveCall, *, rings: bool = False) -> Load:
    """Load of a call on the ports of its ranks; an all-reduce uses ``rings`` if it must.

    Examples
    --------
    >>> from cluster_sim.collectives.group import whole
    >>> from topologies.clusters.names import cluster
    >>> two = whole(cluster("p5.48xlarge:2"))
    >>> load = load_of(CollectiveCall("all-gather", two, 2**20))
    >>> load.way, load.steps, load.far_steps, load.inside / 2**20
    ('ring', 13, 2, 0.9375)
    """
    kind, group, size_bytes, ranks = call.kind, call.group, call.size_bytes, call.ranks
    domain = group.domain
    each = np.bincount(domain - domain.min())
    near, far = int(each.max()) * group.ranks_per_chip, int(np.count_nonzero(each))
    ring, shard = size_bytes * (ranks - 1) / ranks, size_bytes / ranks

    def load(way: Way, inside: float, outside: float, **other: float) -> Load:
        optional: dict[str, float] = dict.fromkeys(OPTIONAL, 0.0)
        few = 2 * int(each.max()) < min(group.cluster.chips_per_domain, SERVER)
        optional["beside"] = float(far > 1 and few)
        return Load(way, size_bytes, ranks, far, inside, outside, **{**optional, **other})

    crossings = 0 if far == 1 else far if near > 1 else far - 1
    if kind == "all-reduce" and (rings or far == 1):
        switch = 0.0 if rings or near < 3 else size_bytes * (1 + 1 / near)
        sides = {"shard": shard, "in_switch": switch, "far_steps": 2 * crossings}
        half = ranks - 1 - crossings
        outside = 2 * ring / near if far > 1 else 0
        return load("ring", 2 * ring, outside, steps=2 * half, second_steps=half, **sides)
    if kind == "all-reduce":
        switch = 0.0 if near < 3 else size_bytes * (1 + 1 / near)
        outside = min(2 * ring, (1 if far == 2 else 2) * size_bytes) / near
        climb = {"steps": 2 * (near - 1), "far_steps": 2 * math.ceil(math.log2(far))}
        return load("tree", 2 * ring, outside, shard=shard, in_switch=switch, **climb)
    if kind in ("all-gather", "reduce-scatter"):
        sides = {"shard": shard, "steps": ranks - 1 - crossings, "far_steps": crossings}
        return load("ring", ring, ring / near if far > 1 else 0, **sides)
    if kind == "broadcast":
        outside = size_bytes / near if far > 1 else 0
        return load("ring", size_bytes, outside, steps=ranks - far, far_steps=far - 1)
    if kind == "permute":
        crosses = int(far > 1)
        return load("exchange", size_bytes, size_bytes * crosses, steps=1, far_steps=crosses)
    outside = size_bytes * (ranks - near) / ranks
    counted = {"steps": 1 + math.log2(near), "far_steps": int(far > 1), "messages": ranks - near}
    return load("exchange", ring, outside, shard=shard, **counted)
