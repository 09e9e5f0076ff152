"""Time and memory traffic of the calls of groups, computed once for each geometry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cluster_sim.collectives import Group
from cluster_sim.collectives.duration.geometry import Geometry
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.routing.scale_out import period
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.expert_exchange import routed_ps
from workloads.training.program.group_times import group_bytes, group_of, group_ps


class _Place(NamedTuple):
    """A group of ranks, and the geometry that it shares with others."""

    group: Group
    geometry: int  # number of the geometry


class GroupCosts:
    """Cache of the costs of calls of groups of ranks on one cluster.

    Groups of one geometry have the same costs. Several programs, such as those
    of a search, may share one cache; results do not depend on that.
    """

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self._period = period(cluster)
        self._places: dict[bytes, _Place] = {}
        self._geometries: dict[Geometry, int] = {}
        self._time_ps: dict[tuple[object, ...], int] = {}
        self._drawn_bytes: dict[tuple[object, ...], int] = {}

    def times_ps(
        self, chips: IntArray, steps: Sequence[LayerOp], plan: ParallelPlan, per_token: int
    ) -> list[int]:
        """Return the time of each step on the group whose ranks are on these chips [ps].

        Where a chip has several ranks, its other ranks' groups do the same at the same time, with
        the same adapter and links. So each call takes as long as one that moves the bytes of all.

        ``chips`` (ranks,). ``per_token``: experts of a token.
        """
        place = self._place(chips)
        groups_of_chip = max(1, plan.ranks_per_chip // place.group.ranks_per_chip)
        times = []
        for step in steps:
            nodes = plan.routed_nodes if step.axis == "ep" else 0
            size_bytes = groups_of_chip * step.size_bytes
            call = (step.collective, size_bytes, nodes, per_token * (nodes > 0))
            key = (place.geometry, *call)
            if key not in self._time_ps:
                self._time_ps[key] = _time_ps(place.group, *call)
            times.append(self._time_ps[key])
        return times

    def drawn_bytes(self, chips: IntArray, steps: Sequence[LayerOp]) -> list[int]:
        """Return the bytes that one member of each collective reads and writes [B].

        The members are the ranks on ``chips``. Sends count as 0, see
        :func:`~workloads.training.program.shared_memory.contending`.
        """
        place = self._place(chips)
        drawn = []
        for step in steps:
            key = (place.geometry, step.collective, step.size_bytes)
            if key not in self._drawn_bytes:
                sends = step.collective == "send"
                self._drawn_bytes[key] = (
                    0 if sends else group_bytes(place.group, step.collective, step.size_bytes)
                )
            drawn.append(self._drawn_bytes[key])
        return drawn

    def place_key(self, chips: IntArray) -> bytes:
        """Return a key that is equal for groups that lie whole periods of the fabric apart."""
        return bytes((chips - chips[0] // self._period * self._period).tobytes())

    def _place(self, chips: IntArray) -> _Place:
        key = self.place_key(chips)
        if key not in self._places:
            group = group_of(self.cluster, chips)
            number = self._geometries.setdefault(Geometry(group), len(self._geometries))
            self._places[key] = _Place(group, number)
        return self._places[key]


def _time_ps(group: Group, op: str, size_bytes: int, nodes: int, per_token: int) -> int:
    """Time of a call [ps]; with ``nodes``, that of an all-to-all that routes tokens by server."""
    if nodes:
        return routed_ps(group, nodes, per_token, size_bytes)
    return group_ps(group, op, size_bytes)
