"""Time and memory traffic of the calls of groups, computed once for each geometry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cluster_sim.collectives import Group
from cluster_sim.collectives.duration.expert_library import MERGING, WAYS, library_s
from cluster_sim.collectives.duration.geometry import Geometry
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.routing.scale_out import period
from workloads.training.layers.experts import merged_exchange
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.expert_exchange import routed_ps
from workloads.training.program.group_times import group_bytes, group_of, group_ps


class _Place(NamedTuple):
    """A group of ranks, and the geometry that it shares with others.

    ``geometry``: number of the geometry.
    """

    group: Group
    geometry: int


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
            way = self._way(step)
            call = (step.collective, size_bytes, nodes, per_token * (nodes > 0 or bool(way)))
            key = (place.geometry, *call, way)
            if key not in self._time_ps:
                self._time_ps[key] = _time_ps(place.group, *call, way)
            times.append(self._time_ps[key])
        return times

    def _way(self, step: LayerOp) -> str:
        """Direction of an exchange by DeepEP's kernels; empty for all other steps."""
        if step.axis != "ep" or not merged_exchange(self.cluster.catalogue, self.cluster.chip):
            return ""
        return next((way for way in WAYS if step.name.endswith(way)), "")

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


def _time_ps(group: Group, op: str, size_bytes: int, nodes: int, per_token: int, way: str) -> int:
    """Time of a call [ps]; with ``nodes``, that of an all-to-all that routes tokens by server.

    ``way``: direction of an exchange that DeepEP's kernels do.
    """
    if way and group.cluster.catalogue is not None:
        call = (group, size_bytes / per_token, per_token)
        return round(
            PS_PER_S * library_s(group.cluster.catalogue, MERGING, way, *call, nodes=nodes)
        )
    if nodes:
        return routed_ps(group, nodes, per_token, size_bytes)
    return group_ps(group, op, size_bytes)
