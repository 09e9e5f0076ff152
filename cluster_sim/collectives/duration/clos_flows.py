"""Traffic between domains as flows over the adapters and the layers of the Clos, shared fairly.

EFA cuts messages into packets, spreads them over all equal paths and slows its senders down, so
that flows share every link that they cross. A NeuronLink, in contrast, has a single sender, which
sends one message at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives.algorithms.all_to_all import DIRECT
from cluster_sim.collectives.algorithms.footprint import check_op_count
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.group import Group
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FLOW, JOIN, Edges, Flows, Resources, Schedule
from cluster_sim.trace.trace import run
from topologies.arrays import BoolArray, IntArray
from topologies.clusters.cluster import Cluster
from topologies.routing.scale_out import SharedPaths, clos, scale_out_paths, shared_links

OPS_A_FLOW = 6
"""Memory that a flow takes with its arrival and the links that it shares, in multiples of an op."""


def traffic(
    cluster: Cluster, src: npt.ArrayLike, dst: npt.ArrayLike, size_bytes: npt.ArrayLike
) -> Schedule:
    """Schedule messages between chips of different domains, each as a flow and its arrival.

    Eight senders to one receiver take eight times as long as one.
    """
    paths = scale_out_paths(cluster, src, dst)
    return _flows(cluster, paths, np.asarray(size_bytes))


def exchange(call: CollectiveCall) -> Schedule:
    """Schedule the part of an all-to-all that crosses domains, with a flow for each pair of racks.

    All chips below one top-of-rack switch send equally much to the chips below another and share
    the same links, so one flow that carries all their bytes over all their adapters stands for
    them. The part for each rank is rounded up to whole bytes.
    """
    group, cluster = call.group, call.group.cluster
    _, layers = clos(cluster)
    rack_of_chip = group.chips // layers[0].chips
    _, first, chips = np.unique(rack_of_chip, return_index=True, return_counts=True)
    check_op_count(call.kind, DIRECT.name, group.ranks, OPS_A_FLOW * len(first) ** 2)
    chip_pair_bytes = -(-call.size_bytes // group.ranks) * group.ranks_per_chip**2
    # Pairs of chips of two racks; within a domain the scale-up links carry the bytes instead.
    pairs = np.outer(chips, chips) - np.diag(_pairs_inside(group, rack_of_chip))
    source, target = np.nonzero(pairs)
    first_chip = group.chips[first]
    # Within a rack two adapters are crossed; any other chip of it may be the receiver.
    neighbor = np.where(first_chip % layers[0].chips, first_chip - 1, first_chip + 1)
    receiver = np.where(source == target, neighbor[target], first_chip[target])
    paths = scale_out_paths(cluster, first_chip[source], receiver)
    members = np.zeros(layers[0].groups, np.int64)
    members[first_chip // layers[0].chips] = chips
    return _flows(cluster, paths, pairs[source, target] * chip_pair_bytes, members)


def exchange_ps(call: CollectiveCall) -> int:
    """Time of the part of an all-to-all that goes between domains [ps]."""
    return run(exchange(call)).total_ps


def _pairs_inside(group: Group, rack_of_chip: IntArray) -> IntArray:
    """Count for each rack the ordered pairs of chips of one domain, also of a chip with itself."""
    _, domain, counts = np.unique(group.domain, return_inverse=True, return_counts=True)
    _, rack = np.unique(rack_of_chip, return_inverse=True)
    return np.bincount(rack, counts[domain]).astype(np.int64)


def _flows(
    cluster: Cluster, paths: SharedPaths, work: IntArray, members: IntArray | None = None
) -> Schedule:
    """Schedule a flow and its arrival for each path.

    ``members`` counts the chips of the group below each top-of-rack switch. Where it is given, all
    adapters of a rack in one direction are one resource with the capacity of these chips.
    """
    links = shared_links(cluster)
    adapter: BoolArray = paths.link < 2 * cluster.chips
    crossed, capacity = paths.link.astype(np.int64), links.capacity_bytes_per_s.copy()
    capacity[: 2 * cluster.chips] = communication_costs(cluster).scale_out_bytes_per_s
    if members is not None:
        chips = clos(cluster)[1][0].chips
        direction, chip = np.divmod(crossed[adapter], cluster.chips)
        rack = chip // chips
        crossed[adapter] = direction * cluster.chips + rack * chips
        capacity[crossed[adapter]] = (
            communication_costs(cluster).scale_out_bytes_per_s * members[rack]
        )
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
        flows=Flows(op, cap, paths.ptr, resource.astype(np.int32), paths.weight),
    )
