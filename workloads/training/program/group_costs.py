"""Time and memory traffic of the calls of groups, each geometry worked out once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cluster_sim.collectives import Group
from cluster_sim.collectives.duration.duration import canonical
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.expert_exchange import routed_ps
from workloads.training.program.group_times import group_bytes, group_of, group_ps


class _Place(NamedTuple):
    """A group, and what all its translations have in common: chips moved to the origin."""

    group: Group
    geometry: tuple[bytes, int]


class GroupCosts:
    """Costs of the calls of groups of one cluster, for the programs of one plan or of several.

    Groups that are translations of one another have the same. Programs that are built one after
    the other, as those of a search are, may share what is known here; results do not depend on it.

    Attributes
    ----------
    cluster : Cluster
    """

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self._places: dict[bytes, _Place] = {}
        self._time_ps: dict[tuple[object, ...], int] = {}
        self._drawn_bytes: dict[tuple[object, ...], int] = {}

    def times_ps(
        self, chips: IntArray, steps: Sequence[LayerOp], plan: ParallelPlan, per_token: int
    ) -> list[int]:
        """Time of each step on the group whose ranks are on these chips [ps].

        Groups that share the chips do the same meanwhile: they have one adapter and the same links,
        so each takes as long as one that moves all of their bytes. ``per_token`` is the number of
        experts of a token.
        """
        place = self._place(chips)
        beside = max(1, plan.ranks_per_chip // place.group.ranks_per_chip)
        times = []
        for step in steps:
            nodes = plan.routed_nodes if step.axis == "ep" else 0
            size_bytes = beside * step.size_bytes
            call = (step.collective, size_bytes, nodes, per_token * (nodes > 0))
            key = (*place.geometry, *call)
            if key not in self._time_ps:
                self._time_ps[key] = _time_ps(place.group, *call)
            times.append(self._time_ps[key])
        return times

    def drawn_bytes(self, chips: IntArray, steps: Sequence[LayerOp]) -> list[int]:
        """Bytes that one member of each collective reads and writes; see ``contending`` for sends.

        The members are the ranks on these chips.
        """
        place = self._place(chips)
        drawn = []
        for step in steps:
            key = (*place.geometry, step.collective, step.size_bytes)
            if key not in self._drawn_bytes:
                sends = step.collective == "send"
                self._drawn_bytes[key] = (
                    0 if sends else group_bytes(place.group, step.collective, step.size_bytes)
                )
            drawn.append(self._drawn_bytes[key])
        return drawn

    def place_key(self, chips: IntArray) -> bytes:
        """Return what groups have in common that are whole scale-up domains apart."""
        each = self.cluster.chips_per_domain
        return bytes((chips - chips[0] // each * each).tobytes())

    def _place(self, chips: IntArray) -> _Place:
        key = self.place_key(chips)
        if key not in self._places:
            group = group_of(self.cluster, chips)
            self._places[key] = _Place(group, (canonical(group).tobytes(), group.ranks_per_chip))
        return self._places[key]


def _time_ps(group: Group, op: str, size_bytes: int, nodes: int, per_token: int) -> int:
    if nodes:
        return routed_ps(group, nodes, per_token, size_bytes)
    return group_ps(group, op, size_bytes)
