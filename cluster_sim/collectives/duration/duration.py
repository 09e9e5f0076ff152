"""Duration of a collective, and which of four methods gives it.

``nccl``
    NVIDIA's machines with ``auto``: the closed form of NCCL's measured behaviour
    (:mod:`cluster_sim.collectives.duration.nccl`).
``flows``
    An all-to-all between domains of 512 ranks or more: what each rack sends to each other as one
    flow over the layers of the Clos (:mod:`~.clos_flows`), beside what stays inside the fullest
    domain.
``few-ranks``
    The algorithm's ``stands_for``: of the same work in many domains a few ranks that stand for all
    (:mod:`cluster_sim.collectives.few_ranks`), of rings that share nothing the clocks of their
    links (:mod:`cluster_sim.collectives.algorithms.ring_clocks`).
``simulated``
    Everything else: every message, op by op.

Groups that are translations of one another have one time, so each geometry is worked out once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.registry import AUTO, choose_algorithm
from cluster_sim.collectives.builder import compose
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration.clos_flows import exchange_ps
from cluster_sim.collectives.duration.nccl import NAME as NCCL
from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.collectives.group import Group, as_group
from cluster_sim.hardware.communication_costs import wire
from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.trace.trace import run
from topologies import display
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Torus
from topologies.shapes.links import coordinates
from topologies.units import as_bytes, format_seconds

FLOWS_FROM = 512
"""Ranks from which an all-to-all between domains is run as flows, not message by message."""
FLOWS, FEW_RANKS, SIMULATED = "flows", "few-ranks", "simulated"
METHODS = (NCCL, FLOWS, FEW_RANKS, SIMULATED)


@dataclass(frozen=True)
class CollectiveTime:
    """Time of a collective on an otherwise idle fabric.

    Attributes
    ----------
    time_ps : int
    algorithm : str
        The one that runs; ``nccl`` where NCCL's own choice does.
    method : str
        One of ``METHODS``: what worked the time out.
    """

    time_ps: int
    algorithm: str
    method: str

    @property
    def time_s(self) -> float:
        """Time [s]."""
        return self.time_ps / PS_PER_S

    @property
    def _facts(self) -> dict[str, object]:
        seconds = format_seconds(self.time_s)
        return {"time": seconds, "algorithm": self.algorithm, "method": self.method}

    def __repr__(self) -> str:
        return display.line("CollectiveTime", self._facts)

    def _repr_html_(self) -> str:
        return display.table("Collective", self._facts)


def collective_time(
    kind: str,
    group: Group | Cluster | str,
    *,
    size_bytes: int | str,
    algorithm: str = AUTO,
    ideal: bool = False,
) -> CollectiveTime:
    """Time of a collective operation on one group, and the method that answers.

    Parameters
    ----------
    kind : str
        ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all``, ``broadcast`` or
        ``permute``.
    group : Group, Cluster or str
        Also across scale-up domains; a cluster or its name stands for all its chips.
    size_bytes : int or str
        Size of the buffer as nccl-tests counts it, such as ``2**30`` or ``"1GiB"`` [B]; see
        :class:`~cluster_sim.collectives.call.CollectiveCall`.
    algorithm : str, default "auto"
        A name that ``cluster-sim list algorithms`` shows; ``auto`` takes what the runtime would.
    ideal : bool, default False
        Count link rates and latencies only, without efficiencies, launches and memory.

    Returns
    -------
    CollectiveTime
        ``time_s`` [s], the ``algorithm`` that runs, and the ``method`` that gave the time.

    Raises
    ------
    InputError
        When there is no such operation, or the algorithm makes no sense for it there.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> eight = Group(cluster("dgx-h100"), range(8))
    >>> collective_time("all-reduce", eight, size_bytes=2**30).method
    'nccl'
    >>> collective_time("all-reduce", eight, size_bytes=2**30, algorithm="ring").method
    'simulated'
    """
    call = CollectiveCall(kind, as_group(group), as_bytes(size_bytes))
    return time_of(call, algorithm, ideal=ideal)


def duration_ps(
    call: CollectiveCall, algorithm: str | Algorithm = AUTO, *, ideal: bool = False
) -> int:
    """Time that a call takes on an otherwise idle fabric [ps]; see :func:`collective_time`.

    Examples
    --------
    >>> from cluster_sim.collectives import whole
    >>> from topologies.clusters.names import cluster
    >>> eight = whole(cluster("ring:8", bandwidth="100GB/s", latency="1us"))
    >>> call = CollectiveCall("all-reduce", eight, 2**30)
    >>> duration_ps(call, "ring") == 14 * (1_000_000 + 1_342_177_280)
    True
    """
    return time_of(call, algorithm, ideal=ideal).time_ps


def time_of(
    call: CollectiveCall, algorithm: str | Algorithm = AUTO, *, ideal: bool = False
) -> CollectiveTime:
    """Time of a call, and the method that answers; see :func:`collective_time`."""
    if algorithm == AUTO and not ideal and covers(call.group.cluster):
        from cluster_sim.collectives.duration.nccl.times import nccl_ps

        return CollectiveTime(nccl_ps(call), NCCL, NCCL)
    picked = choose_algorithm(call, algorithm)
    geometry = canonical(call.group).tobytes()
    time_ps, method = _timed(
        call.kind,
        call.group.cluster,
        geometry,
        call.group.ranks_per_chip,
        call.size_bytes,
        picked,
        ideal,
    )
    return CollectiveTime(time_ps, picked.name, method)


@functools.lru_cache(maxsize=4096)
def _timed(
    kind: str,
    cluster: Cluster,
    chips: bytes,
    ranks_per_chip: int,
    size_bytes: int,
    algorithm: Algorithm,
    ideal: bool,
) -> tuple[int, str]:
    """Time [ps] and method for all groups of one geometry."""
    group = Group(cluster, np.frombuffer(chips, np.int64), ranks_per_chip)
    call = CollectiveCall(kind, group, size_bytes)
    several = len(group.domains) > 1
    if kind == "all-to-all" and several and group.ranks >= FLOWS_FROM:
        return _exchange_ps(call, ideal=ideal), FLOWS
    few = algorithm.stands_for(call, wire(cluster, ideal=ideal))
    if few is not None:
        return few, FEW_RANKS
    return run(compose(call, algorithm, ideal=ideal).schedule).total_ps, SIMULATED


def _exchange_ps(call: CollectiveCall, *, ideal: bool) -> int:
    """Time of an all-to-all, inside the fullest domain and between domains by shared flows [ps].

    The CC-Cores of a chip issue its messages one after the other.
    """
    group = call.group
    domain, chips = np.unique(group.domain, return_counts=True)
    fullest = group.chips[group.domain == domain[np.argmax(chips)]]
    inside = Group(group.cluster, fullest, group.ranks_per_chip)
    part = -(-call.size_bytes // group.ranks) * inside.ranks
    costs = wire(group.cluster, ideal=ideal)
    issue = costs.issue_ps * (group.ranks - 1) * group.ranks_per_chip // costs.cc_slots
    across = max(issue, exchange_ps(call) if call.size_bytes else 0)
    start = costs.launch_ps + costs.handshake_ps + costs.step_ps
    within = duration_ps(CollectiveCall("all-to-all", inside, part), ideal=ideal)
    return max(start + across, within)


def canonical(group: Group) -> IntArray:
    """Chips of the translated group that stands for all groups of the same geometry.

    Domains are renumbered in the order in which the group meets them, and on a torus the chips are
    shifted along the wrapping axes so that the first one is at the origin. The order of the ranks
    stays; a group that ascends is shifted as a set, so that its image ascends too.
    """
    cluster, shape = group.cluster, group.cluster.shape
    domain, local = np.divmod(group.chips, cluster.chips_per_domain)
    domain = _renumbered(domain)
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


def _renumbered(values: IntArray) -> IntArray:
    """Values as 0, 1, … in the order in which they come first."""
    if (values[1:] >= values[:-1]).all():  # as of a group in order, which most are
        return np.append(0, np.cumsum(values[1:] > values[:-1]))
    _, first, where = np.unique(values, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[where])
