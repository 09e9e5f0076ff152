"""How long a collective takes: a chunk-level run, remembered for groups of equal geometry.

Training iterations run the same collective on hundreds of groups that are translations of one
another; each geometry is simulated once.
"""

from __future__ import annotations

import functools

import numpy as np

from cluster_sim.collectives.algorithms.hierarchical import inner_parts, radices
from cluster_sim.collectives.algorithms.registry import check_op, chosen
from cluster_sim.collectives.duration.clos_flows import exchange_ps
from cluster_sim.collectives.duration.folding import folded_ps
from cluster_sim.collectives.duration.nccl.times import covers, nccl_ps
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.lowering.build import compose
from cluster_sim.hardware.communication_costs import wire
from cluster_sim.schedule.table import IntArray
from cluster_sim.trace.trace import run
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Torus
from topologies.shapes.links import coordinates

FLOWS_FROM = 512
"""Ranks from which an all-to-all between domains is run as flows, not message by message."""


def duration_ps(
    op: str, group: Group, size_bytes: int, algorithm: str = "auto", *, ideal: bool = False
) -> int:
    """Time that a collective takes on an otherwise idle fabric [ps].

    Parameters
    ----------
    op : str
        One of ``OPS``.
    group : Group
        Also across scale-up domains.
    size_bytes : int
        As in nccl-tests [B].
    algorithm : str
        ``auto`` or a name from :func:`cluster_sim.collectives.algorithms`. On NVIDIA's machines
        ``auto`` is NCCL's measured behaviour, :mod:`cluster_sim.collectives.duration.nccl`.
    ideal : bool
        Link rates and latencies only.

    Raises
    ------
    InputError
        When there is no such operation, or the algorithm makes no sense for it there.

    Examples
    --------
    >>> from cluster_sim.collectives import whole
    >>> from topologies.clusters.names import cluster
    >>> eight = whole(cluster("ring:8", bandwidth="100GB/s", latency="1us"))
    >>> duration_ps("all-reduce", eight, 2**30, "ring") == 14 * (1_000_000 + 1_342_177_280)
    True
    """
    check_op(op)
    if algorithm == "auto" and not ideal and covers(group.cluster):
        return nccl_ps(op, group, size_bytes)
    name = chosen(op, group, size_bytes, algorithm)
    chips = canonical(group)
    return _duration_ps(
        op, group.cluster, chips.tobytes(), group.ranks_per_chip, int(size_bytes), name, ideal
    )


@functools.lru_cache(maxsize=4096)
def _duration_ps(
    op: str,
    cluster: Cluster,
    chips: bytes,
    ranks_per_chip: int,
    size_bytes: int,
    algorithm: str,
    ideal: bool,
) -> int:
    group = Group(cluster, np.frombuffer(chips, np.int64), ranks_per_chip)
    several = len(np.unique(group.domain)) > 1
    if op == "all-to-all" and several and group.ranks >= FLOWS_FROM:
        return _all_to_all_ps(group, size_bytes, ideal=ideal)
    folded = folded_ps(op, group, size_bytes, algorithm, ideal=ideal)
    if folded is not None:
        return folded
    return run(compose(op, group, size_bytes, algorithm, ideal=ideal).schedule).total_ps


def _all_to_all_ps(group: Group, size_bytes: int, *, ideal: bool) -> int:
    """All messages at once: inside the fullest domain, and between domains by shared flows [ps].

    The CC-Cores of a chip issue its messages one after the other.
    """
    domain, chips = np.unique(group.domain, return_counts=True)
    fullest = group.chips[group.domain == domain[np.argmax(chips)]]
    inside = Group(group.cluster, fullest, group.ranks_per_chip)
    part = -(-size_bytes // group.ranks) * inside.ranks
    costs = wire(group.cluster, ideal=ideal)
    issue = costs.issue_ps * (group.ranks - 1) * group.ranks_per_chip // costs.cc_slots
    across = max(issue, exchange_ps(group, size_bytes) if size_bytes else 0)
    start = costs.launch_ps + costs.handshake_ps + costs.step_ps
    return max(start + across, duration_ps("all-to-all", inside, part, ideal=ideal))


def rounds(op: str, group: Group, size_bytes: int, algorithm: str) -> int:
    """Rounds, one after the other, of what is timed without all its ops.

    Examples
    --------
    >>> from cluster_sim.collectives import whole
    >>> from topologies.clusters.names import cluster
    >>> rounds("all-reduce", whole(cluster("rainier")), 2**30, "hierarchical")
    102
    """
    ways = 2 if op == "all-reduce" else 1
    if algorithm == "hierarchical":
        parts = inner_parts(group, size_bytes)
        stages = [[lines.shape[1] for lines in part.lines] for part in parts]
        inside = max(sum(sizes) - len(sizes) for sizes in stages)
        between = radices(group)
        return int(ways * (inside + sum(between) - len(between)))
    if algorithm == "rdh":
        return ways * (group.ranks.bit_length() - 1)
    return ways * (group.ranks - 1)


def canonical(group: Group) -> IntArray:
    """Chips of the translated group that stands for all groups of the same geometry.

    Domains are renumbered in the order in which the group meets them, and on a torus the chips are
    shifted along the wrapping axes so that the first one is at the origin. The order of the ranks
    stays; a group that ascends is shifted as a set, so that its image ascends too.
    """
    cluster, shape = group.cluster, group.cluster.shape
    domain, local = np.divmod(group.chips, cluster.chips_per_domain)
    _, first, where = np.unique(domain, return_index=True, return_inverse=True)
    domain = np.argsort(np.argsort(first))[where]
    if isinstance(shape, Torus):
        at = np.stack(coordinates(shape, local))
        wraps = np.array([axis.wrap for axis in shape.axes])[:, None]
        size = np.array(shape.sizes)[:, None]
        moved = np.where(wraps, (at - at[:, :1]) % size, at)
        image = np.ravel_multi_index(tuple(moved), shape.sizes)
        chips = domain * cluster.chips_per_domain + image
        if not group.ascending or np.all(np.diff(chips) > 0):
            return np.asarray(chips, np.int64)
    return np.asarray(domain * cluster.chips_per_domain + local, np.int64)
