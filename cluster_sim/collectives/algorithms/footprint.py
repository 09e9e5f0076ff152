"""How much memory a schedule would take, before it is built: what would not fit is refused."""

from __future__ import annotations

import os
import resource

import numpy as np

from cluster_sim.collectives.group import Group, box
from cluster_sim.hardware.communication_costs import CommunicationCosts
from topologies.errors import InputError
from topologies.routing.domain import routes
from topologies.shapes.basic import Torus
from topologies.units import format_bytes

BYTES_AN_OP = 115
"""Peak of building and running a schedule: 113 B an op for the 154 M ops of a ring of 4,096 chips
of Trn2, 102 B on plain wire."""
SAMPLED_PAIRS = 1024
"""Pairs of chips whose mean distance stands for that of all."""


def check_op_count(op: str, algorithm: str, ranks: int, ops: int) -> None:
    """Refuse a collective whose schedule would take more memory than the machine has."""
    if not fits(ops):
        raise InputError(
            f"{op} by {algorithm} on {ranks:,} ranks is about {ops:.1e} ops and needs "
            f"{format_bytes(ops * BYTES_AN_OP)}; this machine has {format_bytes(machine_bytes())}. "
            "Use fewer ranks or another algorithm"
        )


def fits(ops: int) -> bool:
    """Whether so many ops can be built and run in the memory of this machine."""
    return ops * BYTES_AN_OP <= machine_bytes()


def machine_bytes() -> int:
    """Memory that this process may use [B]: the machine's, or less where it was limited."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return physical if soft == resource.RLIM_INFINITY else min(physical, soft)


def ops_of(op: str, group: Group, algorithm: str, costs: CommunicationCosts, slices: int) -> int:
    """Roughly how many ops a collective has, within a factor of two.

    Parameters
    ----------
    op : str
    group : Group
    algorithm : str
    costs : CommunicationCosts
    slices : int
        Of an algorithm in stages, or of a broadcast along a chain.

    Examples
    --------
    >>> from cluster_sim.collectives import build, whole
    >>> from cluster_sim.hardware.communication_costs import wire
    >>> from topologies.clusters.names import cluster
    >>> node = whole(cluster("trn2.48xlarge"))
    >>> ops_of("all-reduce", node, "mesh", wire(node.cluster), 1)
    1568
    >>> len(build("all-reduce", node, 2**20, "mesh"))
    1536
    """
    hops = _hops(group) if algorithm in FAR else 1.0
    issued = 1 if costs.issue_ps else 0
    return int(_messages(op, group, algorithm, costs, slices) * (issued + hops))


FAR = ("mesh", "single-step-mesh", "direct", "dimension-ordered")
"""Algorithms whose messages cross several links."""
STAGED = ("torus", "hierarchical")


def _messages(
    op: str, group: Group, algorithm: str, costs: CommunicationCosts, slices: int
) -> float:
    """Messages, and the joins between stages."""
    ranks, ways = group.ranks, 2 if op == "all-reduce" else 1
    found = box(group)
    sizes = [size for size in found.sizes if size > 1] if found is not None else []
    axes, around = max(1, len(sizes)), sum(size - 1 for size in sizes)
    paths = {"ring": 1, "bidirectional-ring": 2}.get(algorithm, _rings(group, axes))
    if op == "broadcast":
        return ranks if algorithm in ("mesh", "rdh") else paths * ranks * slices
    if algorithm in FAR:
        parts = 1.4 * axes if algorithm == "dimension-ordered" else 1
        each = 1 if op == "permute" else ranks
        return parts * ranks * each * (1 if algorithm == "single-step-mesh" else ways)
    if algorithm == "rdh":
        return float(ways * ranks * np.log2(ranks) ** 2 * costs.slices)
    if op == "all-to-all":
        return axes * ranks * (around + axes)
    if algorithm in STAGED:
        domains = len(np.unique(group.domain))
        inside = around or ranks // domains
        return 1.6 * axes * slices * ways * ranks * (inside + domains)
    rounds = ranks / 2 if algorithm == "kangaring" else ranks
    return paths * ways * ranks * rounds * costs.slices


def _rings(group: Group, axes: int) -> int:
    """Directed rings that share out all cables: two a Hamiltonian cycle."""
    return {2: 4, 3: 10}.get(axes, 2) if isinstance(group.cluster.shape, Torus) else 2


def _hops(group: Group) -> float:
    """Mean links between two chips of a group, over some pairs."""
    step = max(1, len(group.chips) ** 2 // SAMPLED_PAIRS)
    pair = np.arange(0, len(group.chips) ** 2, step)
    src, dst = group.chips[pair // len(group.chips)], group.chips[pair % len(group.chips)]
    each = group.cluster.chips_per_domain
    inside = src // each == dst // each
    found = routes(group.cluster.shape, src[inside] % each, dst[inside] % each)
    return float(np.maximum(1, found.hops).sum() + 2 * (~inside).sum()) / len(pair)
