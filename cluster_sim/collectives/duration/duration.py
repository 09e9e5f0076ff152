"""Duration of a collective, which one of four methods gives.

``nccl``
    NVIDIA's machines with ``auto``: the closed form of NCCL's measured behaviour
    (:mod:`cluster_sim.collectives.duration.nccl`).
``flows``
    An all-to-all of 512 ranks or more over several domains: all that one rack sends to another is
    one flow over the layers of the Clos (:mod:`~.clos_flows`). The exchange inside the fullest
    domain runs at the same time, and the longer of both counts.
``few-ranks``
    The algorithm's ``stands_for``. Where many domains do the same work, a few ranks stand for all
    (:mod:`cluster_sim.collectives.few_ranks`); where rings share no link, only the clocks of their
    links are computed (:mod:`cluster_sim.collectives.algorithms.ring_clocks`).
``simulated``
    Everything else: an engine runs every message as ops.

Groups of one geometry take the same time, so that each is computed only once
(:mod:`~.geometry`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.domains import evened, is_symmetric
from cluster_sim.collectives.algorithms.hierarchical import HIERARCHICAL
from cluster_sim.collectives.algorithms.registry import AUTO, choose_algorithm
from cluster_sim.collectives.builder import compose
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.duration.clos_flows import exchange_ps
from cluster_sim.collectives.duration.geometry import Geometry
from cluster_sim.collectives.duration.nccl import NAME as NCCL
from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.collectives.few_ranks import FOLD_FROM
from cluster_sim.collectives.group import Group, as_group
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.trace.trace import run
from topologies import display
from topologies.arguments import checked
from topologies.clusters.cluster import Cluster
from topologies.units import as_bytes, format_seconds

FLOWS_FROM = 512
"""Ranks from which an all-to-all between domains is run as flows, not message by message."""
FLOWS, FEW_RANKS, SIMULATED = "flows", "few-ranks", "simulated"
METHODS = (NCCL, FLOWS, FEW_RANKS, SIMULATED)


@display.by_facts("Collective")
@dataclass(frozen=True)
class CollectiveTime:
    """Time of a collective on an otherwise idle fabric.

    Attributes
    ----------
    time_ps : int
        Time from the launch to the last rank's end [ps].
    algorithm : str
        Algorithm that runs; ``nccl`` where NCCL chooses one itself.
    method : str
        Method that gave the time, one of ``METHODS``.
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


@checked()
def collective_time(
    kind: str,
    group: Group | Cluster | str,
    *,
    size_bytes: float | str,
    algorithm: str | Algorithm = AUTO,
    ideal: bool = False,
) -> CollectiveTime:
    """Time of a collective operation on one group of an otherwise idle cluster.

    Parameters
    ----------
    kind : str
        ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all``, ``broadcast`` or
        ``permute``.
    group : Group, Cluster or str
        Ranks that take part, in one scale-up domain or several; a cluster or its name stands for
        all its chips.
    size_bytes : int or str
        Size of the buffer as nccl-tests counts it, such as ``2**30`` or ``"1GiB"`` [B]; see
        :class:`~cluster_sim.collectives.call.CollectiveCall`.
    algorithm : str or Algorithm, default "auto"
        A name that ``cluster-sim list algorithms`` shows, or an algorithm of your own; ``auto``
        takes what the runtime would.
    ideal : bool, default False
        Count link rates and latencies only, without efficiencies, launches and memory.

    Returns
    -------
    CollectiveTime
        ``time_s`` [s], the ``algorithm`` that runs, and the ``method`` that gave the time.

    Raises
    ------
    InputError
        If there is no such operation, or the algorithm does not suit the operation or the group.

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
    """Time that a call takes on an otherwise idle fabric [ps]; see :func:`collective_time`."""
    return time_of(call, algorithm, ideal=ideal).time_ps


def time_of(
    call: CollectiveCall, algorithm: str | Algorithm = AUTO, *, ideal: bool = False
) -> CollectiveTime:
    """Time of a call, and the method that answers; see :func:`collective_time`."""
    if algorithm == AUTO and not ideal and covers(call.group.cluster):
        from cluster_sim.collectives.duration.nccl.times import nccl_ps

        return CollectiveTime(nccl_ps(call), NCCL, NCCL)
    chosen = choose_algorithm(call, algorithm)
    geometry = Geometry(call.group)
    if algorithm == AUTO and call.kind in RING_KINDS and chosen is not HIERARCHICAL:
        evened_ps = _evened_ps(call.kind, geometry, call.size_bytes, ideal)
        if evened_ps is not None:
            return CollectiveTime(evened_ps, HIERARCHICAL.name, FEW_RANKS)
    time_ps, method = _timed(call.kind, geometry, call.size_bytes, chosen, ideal)
    return CollectiveTime(time_ps, chosen.name, method)


@functools.lru_cache(maxsize=4096)
def _evened_ps(kind: str, geometry: Geometry, size_bytes: int, ideal: bool) -> int | None:
    """Time of a group over many domains of which some are less full [ps]; None for others.

    A rank of a short domain takes the places of several, one after the other, and all wait for it:
    every rank has that share of its adapters' rate. A ring would take a round for each rank.
    """
    group = geometry.group
    even = evened(group) if len(group.domains) >= FOLD_FROM else None
    if even is None or not is_symmetric(even[0]):
        return None
    costs = communication_costs(group.cluster, ideal=ideal)
    shared = replace(costs, scale_out_bytes_per_s=max(1, costs.scale_out_bytes_per_s // even[1]))
    return HIERARCHICAL.stands_for(CollectiveCall(kind, even[0], size_bytes), shared)


@functools.lru_cache(maxsize=4096)
def _timed(
    kind: str, geometry: Geometry, size_bytes: int, algorithm: Algorithm, ideal: bool
) -> tuple[int, str]:
    """Time [ps] and method for all groups of one geometry."""
    group = geometry.group
    call = CollectiveCall(kind, group, size_bytes)
    crosses_domains = len(group.domains) > 1
    if kind == "all-to-all" and crosses_domains and group.ranks >= FLOWS_FROM:
        return _exchange_ps(call, ideal=ideal), FLOWS
    few_ranks_ps = algorithm.stands_for(call, communication_costs(group.cluster, ideal=ideal))
    if few_ranks_ps is not None:
        return few_ranks_ps, FEW_RANKS
    return run(compose(call, algorithm, ideal=ideal).schedule).total_ps, SIMULATED


def _exchange_ps(call: CollectiveCall, *, ideal: bool) -> int:
    """Time of an all-to-all inside and between domains, the longer of which counts [ps].

    Between domains messages are flows, but take at least the time in which CC-Cores issue them.
    """
    group = call.group
    domain, chips = np.unique(group.domain, return_counts=True)
    fullest = group.chips[group.domain == domain[np.argmax(chips)]]
    inside = Group(group.cluster, fullest, group.ranks_per_chip)
    part = -(-call.size_bytes // group.ranks) * inside.ranks
    costs = communication_costs(group.cluster, ideal=ideal)
    issue = costs.issue_ps * (group.ranks - 1) * group.ranks_per_chip // costs.cc_slots
    across = max(issue, exchange_ps(call) if call.size_bytes else 0)
    start = costs.launch_ps + costs.handshake_ps + costs.step_ps
    within = duration_ps(CollectiveCall("all-to-all", inside, part), ideal=ideal)
    return max(start + across, within)


def hbm_bytes(call: CollectiveCall, algorithm: str | Algorithm = AUTO) -> int:
    """Bytes read and written in the memories of all chips of a group [B]; 0 where not known.

    A byte of an all-gather is read and written once at each of the other ranks.
    """
    cluster = call.group.cluster
    costs = communication_costs(cluster)
    if not costs.hbm_bytes_per_s or (algorithm == AUTO and covers(cluster)):
        return 0
    return int(choose_algorithm(call, algorithm).memory_accesses(call, costs) * call.size_bytes)


def hbm_bytes_per_s(call: CollectiveCall, algorithm: str | Algorithm = AUTO) -> int:
    """Mean rate at which a collective draws on the memory of each chip while it runs [B/s]."""
    moved = hbm_bytes(call, algorithm)
    if not moved:
        return 0
    return moved * PS_PER_S // (duration_ps(call, algorithm) * len(call.group.chips))
