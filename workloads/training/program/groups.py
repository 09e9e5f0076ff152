"""Groups of ranks, the costs of their communication, and caches of what programs share of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from math import ceil
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group, hbm_bytes
from cluster_sim.collectives.duration.duration import Geometry, duration_ps
from cluster_sim.collectives.duration.expert_library import MERGING, WAYS, library_s, visited
from cluster_sim.schedule.table import PS_PER_S
from topologies.clusters.cluster import Cluster
from topologies.routing import period
from topologies.support.arrays import IntArray, first_places, present
from workloads.training.layers.feed_forward import merged_exchange
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.placement import Joined, Placement, place
from workloads.training.plan.plan import ParallelPlan

LOCAL_ACCESSES = 2
"""Memory accesses for each byte that ranks of one chip send each other: a write and a read."""


def group_ps(group: Group, op: str, size_bytes: int) -> int:
    """Time of one communication of a group [ps], simulated by itself on an idle fabric."""
    # A send from one chip to another takes as long as a permutation of the same size.
    catalogue, chip = group.cluster.catalogue, group.cluster.chip
    # Whether the catalogue says how fast ranks of one chip receive from each other.
    copies = catalogue is not None and catalogue.has(chip, "collective_copy") and group.ranks > 1
    if len(group.chips) == 1 and not copies:
        return _local_ps(group.cluster, size_bytes)
    kind = "permute" if op == "send" else op
    return max(1, duration_ps(CollectiveCall(kind, group, size_bytes)))


def group_of(cluster: Cluster, chips: IntArray) -> Group:
    """Return the group of ranks on these chips; a chip is listed once for each of its ranks."""
    if len(chips) == 1 or (np.diff(chips) > 0).all():
        return Group(cluster, chips, 1)
    _, first, per_chip = np.unique(chips, return_index=True, return_counts=True)
    return Group(cluster, chips[np.sort(first)], int(per_chip.max()))


@cache
def _local_ps(cluster: Cluster, size_bytes: int) -> int:
    """Time of a communication between ranks of one chip: a write to its memory and a read [ps]."""
    if cluster.catalogue is None:
        return 1
    rate = cluster.catalogue.value(cluster.chip, "hbm_bandwidth")
    return max(1, round(LOCAL_ACCESSES * size_bytes / rate * 10**12))


# All-to-alls between experts that send a token once to each server, which distributes it there.
# A token whose experts lie on few servers crosses the network once for each of them and reaches the
# ranks of its experts there by the server's own links, while further tokens arrive (DeepSeek-V3,
# arXiv 2412.19437, section 3.2.2). Results come back the same way, summed on each server.


def routed_ps(
    group: Group,
    nodes: int,
    per_token: int,
    size_bytes: int,
    *,
    at: int = 0,
    timed: Callable[[CollectiveCall], int] = duration_ps,
) -> int:
    """Time of an all-to-all that sends each token once to each server [ps]."""
    # It is the longer one of two all-to-alls that run at once: of tokens over the network, between
    # ranks at the same place on their servers, and of copies over the links within a server.
    # ``size_bytes``: size of the copies of a rank's tokens, one for each of their experts [B].
    # ``at``: place in the group of the chip whose peers and neighbours are timed; by default all
    # are alike. ``timed``: returns the time of a call [ps].
    cluster, chips = group.cluster, np.asarray(group.chips)
    server, place = np.divmod(chips, cluster.chips_per_domain)
    peers, near = chips[place == place[at]], chips[server == server[at]]
    crossing = round(visited(nodes, per_token) * size_bytes / per_token)
    calls = ((peers, crossing), (near, size_bytes))
    return max(
        timed(CollectiveCall("all-to-all", Group(cluster, ranks, group.ranks_per_chip), size))
        for ranks, size in calls
        if len(ranks) > 1
    )


def routing_mistake(plan: ParallelPlan, cluster: Cluster, chips: IntArray | None = None) -> str:
    """Return the reason why experts cannot be reached by one copy a server; empty if they can."""
    if not plan.routed_nodes:
        return ""
    placed = place(plan, cluster, chips)
    limit = f"routed nodes {plan.routed_nodes} limits the servers of a token's experts"
    for ranks in placed.groups("ep"):
        server, spot = np.divmod(placed.chip[ranks], cluster.chips_per_domain)
        servers, spots = len(np.unique(server)), len(np.unique(spot))
        if servers == 1:
            return f"{limit}, but ep {plan.ep} lies within one. Use --routed-nodes 0."
        if plan.routed_nodes > servers:
            return f"{limit}, but ep {plan.ep} lies on {servers}. Use at most {servers}."
        if spots * servers * plan.ranks_per_chip != len(ranks):
            return (
                f"{limit}, which must have the same chips of each, but ep {plan.ep} does not fill "
                f"{servers} servers alike. Use another --ep or --routed-nodes 0."
            )
    return ""


class GroupCosts:
    """Cache of the costs of calls of groups of ranks on one cluster."""

    # Groups of one geometry have the same costs. Several programs, such as those of a search, may
    # share one cache; results do not depend on that.

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self._period = period(cluster)
        self._places: dict[bytes, tuple[Group, int]] = {}
        self._geometries: dict[Geometry, int] = {}
        self._time_ps: dict[tuple[object, ...], int] = {}
        self._drawn_bytes: dict[tuple[object, ...], int] = {}

    def times_ps(
        self, chips: IntArray, steps: Sequence[LayerOp], plan: ParallelPlan, per_token: int
    ) -> list[int]:
        """Return the time of each step on the group whose ranks are on these chips [ps]."""
        # Where a chip has several ranks, its other ranks' groups do the same at the same time, with
        # the same adapter and links. So each call takes as long as one that moves the bytes of all.
        # ``chips`` (ranks,). ``per_token``: experts of a token.
        group, geometry = self._place(chips)
        groups_of_chip = max(1, plan.ranks_of_chip // group.ranks_per_chip)
        times = []
        for step in steps:
            nodes = plan.routed_nodes if step.axis == "ep" else 0
            size_bytes = groups_of_chip * step.size_bytes
            way = self._way(step)
            call = (step.collective, size_bytes, nodes, per_token * (nodes > 0 or bool(way)))
            key = (geometry, *call, way)
            if key not in self._time_ps:
                self._time_ps[key] = _time_ps(group, *call, way)
            times.append(self._time_ps[key])
        return times

    def _way(self, step: LayerOp) -> str:
        """Direction of an exchange by DeepEP's kernels; empty for all other steps."""
        if step.axis != "ep" or not merged_exchange(self.cluster.catalogue, self.cluster.chip):
            return ""
        return next((way for way in WAYS if step.name.endswith(way)), "")

    def drawn_bytes(self, chips: IntArray, steps: Sequence[LayerOp]) -> list[int]:
        """Return the bytes that one member of each collective reads and writes [B]."""
        # The members are the ranks on ``chips``. Sends count as 0, see
        # :func:`~workloads.training.program.program.contending`.
        group, geometry = self._place(chips)
        drawn = []
        for step in steps:
            op, size_bytes = step.collective, step.size_bytes
            key = (geometry, op, size_bytes)
            if key not in self._drawn_bytes:
                part = LOCAL_ACCESSES * size_bytes * (op != "send")
                if op != "send" and len(group.chips) > 1:
                    part = hbm_bytes(CollectiveCall(op, group, size_bytes)) // group.ranks
                self._drawn_bytes[key] = part
            drawn.append(self._drawn_bytes[key])
        return drawn

    def place_key(self, chips: IntArray) -> bytes:
        """Return a key that is equal for groups that lie whole periods of the fabric apart."""
        return bytes((chips - chips[0] // self._period * self._period).tobytes())

    def _place(self, chips: IntArray) -> tuple[Group, int]:
        """Group of the ranks on these chips, and the number of the geometry that it shares."""
        key = self.place_key(chips)
        if key not in self._places:
            group = group_of(self.cluster, chips)
            number = self._geometries.setdefault(Geometry(group), len(self._geometries))
            self._places[key] = group, number
        return self._places[key]


class JoinedCosts:
    """Cache of the costs of calls of groups of ranks on one cluster or several."""

    # Within a cluster they are those of :class:`GroupCosts`. No provider states what joins two
    # clusters: a transfer is assumed to take as long as the slower side's adapters need for it
    # between two of its own domains, and the other fabric's latency and the way to another building
    # more, as between prefill and decode on unlike chips. A collective over several clusters is
    # reduced on each by itself, then the sums are exchanged; those of a step are small.

    def __init__(self, joined: Joined):
        self.joined, self.each = joined, [GroupCosts(cluster) for cluster in joined.clusters]

    @cached_property
    def _leaving(self) -> list[GroupCosts]:
        """Costs of each cluster, with a second domain where it has only one."""
        wider = (replace(item, domains=max(2, item.domains)) for item in self.joined.clusters)
        return [GroupCosts(cluster) for cluster in wider]

    def place_key(self, chips: IntArray) -> bytes:
        """Return a key that is equal for groups that lie alike."""
        sides = self.joined.sides(chips[None])
        keys = ((side.number, self.each[side.number].place_key(side.chips[0])) for side in sides)
        return b"".join(bytes([number]) + key for number, key in keys)

    def times_ps(
        self, chips: IntArray, steps: Sequence[LayerOp], plan: ParallelPlan, per_token: int
    ) -> list[int]:
        """Return the time of each step on the group whose ranks are on these chips [ps]."""
        how, sides = (steps, plan, per_token), list(self.joined.sides(chips[None]))
        within = [
            self.each[side.number].times_ps(side.chips[0], *how)
            for side in sides
            if len(sides) == 1 or side.chips.shape[1] > 1
        ]
        most = [max(times) for times in zip(*within, strict=True)] or [0] * len(steps)
        if len(sides) == 1:
            return most
        across = self._across_ps([side.number for side in sides], steps, plan)
        return [inside + between for inside, between in zip(most, across, strict=True)]

    def _across_ps(
        self, numbers: Sequence[int], steps: Sequence[LayerOp], plan: ParallelPlan
    ) -> list[int]:
        """Time for which each step's bytes cross from one cluster to another [ps]."""
        thinned = self.joined.oversubscription
        sends = [
            step._replace(collective="send", axis="pp", size_bytes=ceil(step.size_bytes * thinned))
            for step in steps
        ]
        times, latencies_ps, away_ps = [], [], 0
        for number in numbers:
            costs, fabric = self._leaving[number], self.joined.clusters[number].scale_out
            pair = np.array([0, costs.cluster.chips_per_domain])
            times.append(costs.times_ps(pair, sends, plan, 1))
            latencies_ps.append(fabric.latency_ps if fabric else 0)
            away_ps = max(away_ps, fabric.climb_ps[-1] if fabric else 0)
        return [
            max(each) + sum(latencies_ps) - max(latencies_ps) + away_ps
            for each in zip(*times, strict=True)
        ]

    def drawn_bytes(self, chips: IntArray, steps: Sequence[LayerOp]) -> list[int]:
        """Return the bytes that one member of each collective reads and writes [B]."""
        sides = self.joined.sides(chips[None])
        drawn = [self.each[side.number].drawn_bytes(side.chips[0], steps) for side in sides]
        return [max(each) for each in zip(*drawn, strict=True)]


def _time_ps(group: Group, op: str, size_bytes: int, nodes: int, per_token: int, way: str) -> int:
    """Time of a call [ps]; with ``nodes``, that of an all-to-all that routes tokens by server."""
    if way and group.cluster.catalogue is not None:  # by DeepEP's kernels
        call = (group, size_bytes / per_token, per_token)
        return round(
            PS_PER_S * library_s(group.cluster.catalogue, MERGING, way, *call, nodes=nodes)
        )
    if nodes:
        return routed_ps(group, nodes, per_token, size_bytes)
    return group_ps(group, op, size_bytes)


# Groups of the ranks of a placement, and which of them take equally long.


class Groups(NamedTuple):
    """Groups of ranks that make the same calls."""

    ranks: IntArray  # (groups, members)
    # (groups,): kind of each group; groups of one kind have the same geometry and take equally long
    kind: IntArray
    chips: IntArray  # (kinds, members): chips of the first group of each kind


class PlacedGroups:
    """Groups of a placement along each axis, computed once."""

    # They depend on degrees and places of ranks alone, so plans of any model and batch share them.

    def __init__(self, placement: Placement):
        self.placement = placement
        self._within: dict[str, list[Groups]] = {}

    def within(self, axis: str) -> list[Groups]:
        """Return the groups along an axis that lie within one stage, for each stage."""
        if axis not in self._within:
            ranks = self.placement.groups(axis)
            stage, geometry = self.placement.stage[ranks[:, 0]], self._geometry(ranks)
            self._within[axis] = [
                self._of_kinds(ranks[stage == s], geometry[stage == s])
                for s in range(self.placement.plan.pp)
            ]
        return self._within[axis]

    @cached_property
    def ahead(self) -> list[Groups]:
        """Pairs of ranks of each stage and of the next; the last stage pairs with the first."""
        pipes = self.placement.groups("pp")
        pairs = np.stack([pipes, np.roll(pipes, -1, axis=1)], axis=2)
        return self._of_stages(pairs)

    @cached_property
    def back(self) -> list[Groups]:
        """Pairs of ``ahead`` the other way round."""
        return self._of_stages(np.stack([pairs.ranks[:, ::-1] for pairs in self.ahead], axis=1))

    @cached_property
    def ends(self) -> Groups:
        """Pairs of the first and the last stage's ranks."""
        return self._groups(self.placement.groups("pp")[:, [0, -1]])

    @cached_property
    def norm(self) -> Groups:
        """Groups that add up the norm of the gradients."""
        return self._groups(self.placement.groups("norm"))

    def _of_stages(self, pairs: IntArray) -> list[Groups]:
        """Return the groups of each stage from pairs of ranks, int64 (pipelines, stages, 2)."""
        # Geometries are found for all stages at once, apart from the last, whose pairs lead back
        # over the whole pipeline: groups with equal distances are told apart faster.
        count = len(pairs)
        by_stage = np.ascontiguousarray(pairs.transpose(1, 0, 2))
        onward = self._geometry(by_stage[:-1].reshape(-1, 2))
        last = self._geometry(by_stage[-1])
        geometry = [*onward.reshape(-1, count), last]
        return [self._of_kinds(*stage) for stage in zip(by_stage, geometry, strict=True)]

    def _groups(self, ranks: IntArray) -> Groups:
        return self._of_kinds(ranks, self._geometry(ranks))

    def _geometry(self, ranks: IntArray) -> IntArray:
        return self.placement.joined.geometry(self.placement.chip[ranks])

    def _of_kinds(self, ranks: IntArray, geometry: IntArray) -> Groups:
        _, kind = present(geometry)
        return Groups(ranks, kind, self.placement.chip[ranks[first_places(kind)]])


# Parts that programs on one cluster share: costs and groups.

MOST_PLACED = 1_000_000
"""Ranks of the placements that are kept: two orders of half a million ranks, of which a search
simulates plans by turns."""


class SharedParts:
    """Cache of parts that programs on one cluster share."""

    # Code that builds several programs, such as a search or the two runs of a long step, passes the
    # same cache to all of them and drops it at the end. Results do not depend on it.

    def __init__(self) -> None:
        self._costs: dict[Joined, JoinedCosts] = {}
        self._placed: OrderedDict[Hashable, PlacedGroups] = OrderedDict()

    def costs(self, joined: Joined) -> JoinedCosts:
        """Return the costs of the calls of groups on clusters with a framework's numbers."""
        if joined not in self._costs:
            self._costs[joined] = JoinedCosts(joined)
        return self._costs[joined]

    def placed(self, placement: Placement) -> PlacedGroups:
        """Return the groups that placements share whose ranks are in the same places."""
        plan, stages = placement.plan, placement.joined.stages
        degrees = plan.tp, plan.cp, plan.pp, plan.dp, plan.ep, plan.expert_tp
        key = degrees, plan.order, plan.norm_axes, stages, placement.chip.tobytes()
        kept = self._placed.pop(key, None) or PlacedGroups(placement)
        self._placed[key] = kept
        while len(self._placed) > 1 and self._ranks() > MOST_PLACED:
            self._placed.popitem(last=False)
        return kept

    def _ranks(self) -> int:
        return sum(kept.placement.plan.ranks for kept in self._placed.values())
