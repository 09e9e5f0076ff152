"""Duration of a collective, by one of the four methods of ``docs/background/collectives.md``.

Groups of one geometry are computed once. They differ by a symmetry of the fabric: a shift on a
torus that keeps the way round between opposite chips; any other chips of a switch, a tier or a
domain without other ranks; other domains whose chips meet at the same switches. The order of ranks,
and whether they ascend, stays.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives.algorithms.algorithm import Algorithm, check_op_count
from cluster_sim.collectives.algorithms.direct import DIRECT
from cluster_sim.collectives.algorithms.hierarchical import HIERARCHICAL, evened, is_symmetric
from cluster_sim.collectives.algorithms.registry import AUTO, choose_algorithm
from cluster_sim.collectives.builder import compose
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.duration.nccl import NAME as NCCL
from cluster_sim.collectives.duration.nccl import covers, knows, nccl_ps
from cluster_sim.collectives.group import Group
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FLOW, JOIN, PS_PER_S, Edges, Flows, Resources, Schedule
from cluster_sim.trace.trace import run
from topologies.clusters.cluster import Cluster
from topologies.routing import (
    SharedPaths,
    clos,
    period,
    scale_out_paths,
    shared_links,
    switch_chips,
)
from topologies.shapes.basic import Clos, Shape, Torus
from topologies.shapes.links import coordinates
from topologies.support import display
from topologies.support.arrays import BoolArray, IntArray, distinct_rows
from topologies.support.units import format_seconds


class Geometry:
    """A group that is equal to every group of its geometry, so that one stands for all."""

    __slots__ = ("_key", "group")

    def __init__(self, group: Group):
        self.group = group
        where = places(group.cluster, group.chips[None]).tobytes()
        self._key = group.cluster, group.ranks_per_chip, where

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Geometry) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def geometries(cluster: Cluster, chips: IntArray) -> tuple[IntArray, IntArray]:
    """Number groups (groups, members) by geometry; returns the first of each, and all numbers."""
    offsets = chips - chips[:, :1]
    if not (offsets == offsets[:1]).all():
        return distinct_rows(places(cluster, chips))
    # Groups with equal offsets differ only by where in a period they begin: one of each is enough.
    _, begins, which = np.unique(
        chips[:, 0] % period(cluster), return_index=True, return_inverse=True
    )
    geometry = distinct_rows(places(cluster, chips[begins]))[1]
    first = np.full(int(geometry.max(initial=-1)) + 1, len(chips), np.int64)
    np.minimum.at(first, geometry, begins)
    return first, geometry[which]


def places(cluster: Cluster, chips: IntArray) -> IntArray:
    """Describe groups (groups, members) in rows that are equal for groups of one geometry."""
    domain, local = np.divmod(chips, cluster.chips_per_domain)
    in_one_domain: BoolArray = np.all(domain == domain[:, :1], axis=1)
    ascends: BoolArray = np.all(chips[:, 1:] > chips[:, :-1], axis=1)
    ranked = [_ranked(chips // size) for size in switch_chips(cluster)]
    inside = _inside(cluster.shape, local, in_one_domain)
    # Groups of several chips, a single one in each of their domains.
    members = chips.shape[1]
    each_alone = (ranked[0].max(axis=1) == members - 1) & (members > 1)
    inside = np.where(each_alone[:, None], 0, inside)
    columns = [np.where(in_one_domain[:, None], 0, ranks) for ranks in ranked]
    return np.concatenate([ascends[:, None], inside, *columns], axis=1)


def _inside(shape: Shape, local: IntArray, in_one_domain: BoolArray) -> IntArray:
    """Return places in the domains that are equal for groups that a symmetry moves there."""
    if isinstance(shape, Torus):
        at = np.stack(coordinates(shape, local))
        size = np.array(shape.sizes)[:, None, None]
        moved = (at - _shift(shape, at[:, :, 0])[:, :, None]) % size
        return np.asarray(np.ravel_multi_index(tuple(moved), shape.sizes))
    if isinstance(shape, Clos) or any(tier.ring for tier in getattr(shape, "tiers", ())):
        return local
    named = tuple(_ranked(along) for along in coordinates(shape, local))
    return np.where(in_one_domain[:, None], np.ravel_multi_index(named, shape.sizes), local)


def _shift(shape: Torus, first: IntArray) -> IntArray:
    """Return the steps by which groups are shifted to the origin, or beside it, (axes, groups)."""
    wraps = np.array([axis.wrap for axis in shape.axes])
    even = wraps & (np.array(shape.sizes) % 2 == 0)
    if not even.any():
        return np.where(wraps[:, None], first, 0)
    # Opposite chips of a ring are as near both ways, and routes go up from chips whose coordinates
    # have an even sum: so the sum of the steps is even, and rings of an odd length are not shifted.
    steps = np.where(even[:, None], first, 0)
    steps[np.flatnonzero(even)[-1]] -= steps.sum(axis=0) % 2
    return steps


def _ranked(values: IntArray) -> IntArray:
    """Number the values of each row 0, 1, … in ascending order, equal ones alike."""
    order = None
    if not (values[:, 1:] >= values[:, :-1]).all():
        order = np.argsort(values, axis=1, kind="stable")
        values = np.take_along_axis(values, order, axis=1)
    ranks = np.zeros(values.shape, np.int64)
    np.cumsum(values[:, 1:] > values[:, :-1], axis=1, out=ranks[:, 1:])
    if order is None:
        return ranks
    by_place = np.empty_like(ranks)
    np.put_along_axis(by_place, order, ranks, axis=1)
    return by_place


OPS_A_FLOW = 6
"""Memory that a flow takes with its arrival and the links that it shares, in multiples of an op."""


def exchange(call: CollectiveCall) -> Schedule:
    """Schedule an all-to-all's part between domains, with a flow for each pair of racks."""
    group, cluster = call.group, call.group.cluster
    _, layers = clos(cluster)
    # Chips below one top-of-rack switch send equally much to those below another over the same
    # links, so one flow with all their bytes stands for them; a rank's part is rounded up to whole
    # bytes.
    rack_of_chip = group.chips // layers[0].chips
    _, first, chips = np.unique(rack_of_chip, return_index=True, return_counts=True)
    check_op_count(call.kind, DIRECT.name, group.ranks, OPS_A_FLOW * len(first) ** 2)
    chip_pair_bytes = -(-call.size_bytes // group.ranks) * group.ranks_per_chip**2
    # Pairs of chips of two racks; within a domain the scale-up links carry the bytes instead.
    pairs = np.outer(chips, chips) - _pairs_inside(group, rack_of_chip)
    source, target = np.nonzero(pairs)
    first_chip = group.chips[first]
    # Within a rack two adapters are crossed; any other chip of it may be the receiver.
    neighbor = np.where(first_chip % layers[0].chips, first_chip - 1, first_chip + 1)
    receiver = np.where(source == target, neighbor[target], first_chip[target])
    paths = scale_out_paths(cluster, first_chip[source], receiver)
    members = np.zeros(layers[0].groups, np.int64)
    members[first_chip // layers[0].chips] = chips
    return flows_over(cluster, paths, pairs[source, target] * chip_pair_bytes, members)


def _pairs_inside(group: Group, rack_of_chip: IntArray) -> IntArray:
    """Count for each two racks the ordered pairs of chips of one domain, also of a chip itself."""
    racks, rack = np.unique(rack_of_chip, return_inverse=True)
    inside = np.zeros((len(racks), len(racks)), np.int64)
    # A domain may be larger than a rack: 144 chips of Trn3 are below three switches of 64.
    both = group.domain * len(racks) + rack
    part, chips = np.unique(both, return_counts=True)
    domain, rack = np.divmod(part, len(racks))
    for apart in range(len(part)):
        same = domain[apart:] == domain[: len(part) - apart]
        if not same.any():
            break
        ends = rack[: len(part) - apart][same], rack[apart:][same]
        joint = chips[: len(part) - apart][same] * chips[apart:][same]
        np.add.at(inside, ends, joint)
        if apart:
            np.add.at(inside, ends[::-1], joint)
    return inside


def flows_over(
    cluster: Cluster, paths: SharedPaths, work: npt.ArrayLike, members: IntArray | None = None
) -> Schedule:
    """Schedule a flow of some bytes (work), and its arrival, for each path between domains."""
    links, rate = shared_links(cluster), communication_costs(cluster).scale_out_bytes_per_s
    adapter: BoolArray = paths.link < 2 * cluster.chips
    crossed, capacity = paths.link.astype(np.int64), links.capacity_bytes_per_s.copy()
    capacity[: 2 * cluster.chips] = rate
    # Chips of the group below each switch: a rack's adapters in one direction are one resource.
    if members is not None:
        chips = clos(cluster)[1][0].chips
        direction, chip = np.divmod(crossed[adapter], cluster.chips)
        rack = chip // chips
        crossed[adapter] = direction * cluster.chips + rack * chips
        capacity[crossed[adapter]] = rate * members[rack]
    used, resource = np.unique(crossed, return_inverse=True)
    count = len(paths)
    resources = Resources.concat(
        [
            Resources.table(name, links.owner[used][mine], slots=0, capacity=capacity[used][mine])
            for code, name in enumerate(links.kinds)
            if (mine := links.kind[used] == code).any()
        ]
    )
    op = np.arange(count, dtype=np.int32)
    cap = np.minimum.reduceat(capacity[crossed], paths.ptr[:-1])
    return schedule(
        OpColumns(
            kind=np.repeat(np.array([FLOW, JOIN], np.uint8), count),
            size_bytes=np.append(np.broadcast_to(work, count), np.zeros(count, np.int64)),
        ),
        edges=Edges.from_pairs(2 * count, op, op + count, paths.latency_ps),
        resources=resources,
        flows=Flows(op, cap, paths.ptr, resource.astype(np.int32), np.ones_like(paths.link)),
    )


FLOWS_FROM = 512
"""Ranks from which an all-to-all between domains is run as flows, not message by message."""
FLOWS, FEW_RANKS, SIMULATED = "flows", "few-ranks", "simulated"


class Ends(Protocol):
    """Low and high end of a time [s]."""

    @property
    def low(self) -> float:
        """Low end [s]."""

    @property
    def high(self) -> float:
        """High end [s]."""


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
        Method that gave the time: ``nccl``, ``flows``, ``few-ranks`` or ``simulated``.
    interval : Ends or None
        Ends between which 80 % of measured times should lie [s]; None where nothing gave them.
    """

    time_ps: int
    algorithm: str
    method: str
    interval: Ends | None = None

    @property
    def time_s(self) -> float:
        """Time [s]."""
        return self.time_ps / PS_PER_S

    @property
    def _facts(self) -> dict[str, object]:
        seconds, ends = format_seconds(self.time_s), self.interval
        if ends is not None and ends.low < ends.high:
            seconds += f" (80 %: {format_seconds(ends.low)} – {format_seconds(ends.high)})"
        return {"time": seconds, "algorithm": self.algorithm, "method": self.method}


def duration_ps(
    call: CollectiveCall, algorithm: str | Algorithm = AUTO, *, ideal: bool = False
) -> int:
    """Time that a call takes on an otherwise idle fabric [ps]."""
    return time_of(call, algorithm, ideal=ideal).time_ps


def time_of(
    call: CollectiveCall, algorithm: str | Algorithm = AUTO, *, ideal: bool = False
) -> CollectiveTime:
    """Time of a call, and the method that answers."""
    if algorithm != AUTO or ideal or not knows(call.group.cluster):
        return _of_messages(call, algorithm, ideal)
    return CollectiveTime(nccl_ps(call) + _at_uplinks_ps(call), NCCL, NCCL)


def _at_uplinks_ps(call: CollectiveCall) -> int:
    """Time by which thin uplinks of racks lengthen the messages of a call [ps]."""
    cluster, chips, ranks_per_chip = call.group.cluster, call.group.chips, call.group.ranks_per_chip
    if covers(cluster) or cluster.scale_out is None:
        return 0
    # NCCL was measured on fabrics that do not block.
    fabric = replace(cluster.scale_out, oversubscription=Fraction(1))
    full = Group(replace(cluster, scale_out=fabric), chips, ranks_per_chip)
    thin, free = (
        _of_messages(each, AUTO, ideal=False).time_ps for each in (call, replace(call, group=full))
    )
    return max(0, thin - free)


def _of_messages(call: CollectiveCall, algorithm: str | Algorithm, ideal: bool) -> CollectiveTime:
    """Time of a call by the messages of its algorithm."""
    chosen, geometry = choose_algorithm(call, algorithm), Geometry(call.group)
    if algorithm == AUTO and call.kind in RING_KINDS and chosen is not HIERARCHICAL:
        # The runtime's groups have the same local ranks on every node, so no flat algorithm runs
        # where a domain is less full; it would save rounds that full domains are not spared.
        even = _evened(call.kind, geometry, call.size_bytes, ideal)
        if even is not None:
            return CollectiveTime(even[0], HIERARCHICAL.name, even[1])
    time_ps, method = _timed(call.kind, geometry, call.size_bytes, chosen, ideal)
    return CollectiveTime(time_ps, chosen.name, method)


def _evened(kind: str, geometry: Geometry, size_bytes: int, ideal: bool) -> tuple[int, str] | None:
    """Time [ps] and method of a group of which some domains are less full; None for others."""
    group, fabric = geometry.group, geometry.group.cluster.scale_out
    even = evened(group) if fabric is not None and len(group.domains) > 1 else None
    if even is None or fabric is None or not is_symmetric(even[0]):
        return None
    # Ranks of a short domain share the places of all, and all wait; a ring would take more rounds.
    rate = max(1, int(fabric.bandwidth_bytes_per_s * even[1]))
    slower = replace(group.cluster, scale_out=replace(fabric, bandwidth_bytes_per_s=rate))
    full = Geometry(Group(slower, even[0].chips, group.ranks_per_chip))
    return _timed(kind, full, size_bytes, HIERARCHICAL, ideal)


@functools.lru_cache(maxsize=4096)
def _timed(
    kind: str, geometry: Geometry, size_bytes: int, algorithm: Algorithm, ideal: bool
) -> tuple[int, str]:
    """Time [ps] and method for all groups of one geometry."""
    group = geometry.group
    call = CollectiveCall(kind, group, size_bytes)
    if is_run_as_flows(call):
        return _exchange_ps(call, ideal=ideal), FLOWS
    few_ranks_ps = algorithm.stands_for(call, communication_costs(group.cluster, ideal=ideal))
    if few_ranks_ps is not None:
        return few_ranks_ps, FEW_RANKS
    return run(compose(call, algorithm, ideal=ideal).schedule).total_ps, SIMULATED


def is_run_as_flows(call: CollectiveCall) -> bool:
    """Return whether a call is an all-to-all of so many ranks that racks' flows stand for them."""
    several = call.group.ranks >= FLOWS_FROM and len(call.group.domains) > 1
    return call.kind == "all-to-all" and several


def _exchange_ps(call: CollectiveCall, *, ideal: bool) -> int:
    """Time of an all-to-all inside and between domains, the longer of which counts [ps]."""
    group = call.group
    domain, chips = np.unique(group.domain, return_counts=True)
    fullest = group.chips[group.domain == domain[np.argmax(chips)]]
    inside = Group(group.cluster, fullest, group.ranks_per_chip)
    part = -(-call.size_bytes // group.ranks) * inside.ranks
    costs = communication_costs(group.cluster, ideal=ideal)
    # Messages between domains are flows, of which the last leaves when CC-Cores have issued all.
    issue = costs.issue_ps * (group.ranks - 1) * group.ranks_per_chip // costs.cc_slots
    last = issue + (group.cluster.scale_out.latency_ps if group.cluster.scale_out else 0)
    across = max(last, run(exchange(call)).total_ps if call.size_bytes else 0)
    start = costs.launch_ps + costs.handshake_ps + costs.step_ps
    within = duration_ps(CollectiveCall("all-to-all", inside, part), ideal=ideal)
    return max(start + across, within)


def hbm_bytes(call: CollectiveCall, algorithm: str | Algorithm = AUTO) -> int:
    """Bytes read and written in the memories of all chips of a group [B]; 0 where not known."""
    cluster = call.group.cluster
    costs = communication_costs(cluster)
    if not costs.hbm_bytes_per_s or (algorithm == AUTO and covers(cluster)):
        return 0
    # A byte of an all-gather is read and written once at each of the other ranks.
    return int(choose_algorithm(call, algorithm).memory_accesses(call, costs) * call.size_bytes)


def hbm_bytes_per_s(call: CollectiveCall, algorithm: str | Algorithm = AUTO) -> int:
    """Mean rate at which a collective draws on the memory of each chip while it runs [B/s]."""
    moved = hbm_bytes(call, algorithm)
    if not moved:
        return 0
    return moved * PS_PER_S // (duration_ps(call, algorithm) * len(call.group.chips))
