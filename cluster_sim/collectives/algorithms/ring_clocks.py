"""Rings on links that nobody else uses: the clock of each link in place of every message.

Where each step of a ring crosses one link that no other step crosses, and nothing else is shared,
links carry messages in the order of rounds and slices: the block that arrives in one round leaves
in the next, no sooner than the link has carried what came before it. So the ends of all messages
of a round follow from those of the round before by one array expression, and the time is that of
all messages, op by op, to the picosecond.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives.algorithms.cycles import Cycles
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.chunks import shards
from cluster_sim.collectives.group import Group
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.hardware.fabric import fabric
from cluster_sim.schedule.picoseconds import transfer_ps
from cluster_sim.schedule.table import HORIZON_PS
from topologies.arrays import IntArray, distinct
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Torus

REMEMBERED = 16  # groups whose links are remembered: a step calls each with many sizes


class Steps(NamedTuple):
    """A step of rings whose links are all alike: rate [B/s] and latency [ps]."""

    rate_bytes_per_s: int
    latency_ps: int


def rings_alone_ps(
    call: CollectiveCall, costs: CommunicationCosts, rings_of: Callable[[Group], Cycles]
) -> int | None:
    """Time of an all-reduce, all-gather or reduce-scatter over the rings of a group [ps].

    None where rings share anything, links differ, or the run might pass the engine's horizon.
    """
    group = call.group
    if call.kind not in RING_KINDS or group.ranks == 1 or _shares_more_than_links(group, costs):
        return None
    rings = rings_of(group)
    steps = _steps(group.cluster, costs, group.chips.tobytes(), rings.order.tobytes())
    blocks_bytes = shards(call.size_bytes, group.ranks, np.repeat(rings.weight, costs.slices))
    if steps is None:
        return None
    by_ring = blocks_bytes.reshape(len(rings.order), costs.slices, group.ranks)
    in_order = np.take_along_axis(by_ring, rings.order[:, None], axis=2)
    wire_ps = transfer_ps(in_order, np.array(steps.rate_bytes_per_s)) * (in_order > 0)
    rounds = call.ways * (group.ranks - 1)
    return last_end_ps(wire_ps, steps.latency_ps, rounds)


def _shares_more_than_links(group: Group, costs: CommunicationCosts) -> bool:
    """Return whether messages take turns at more than links, or may leave the torus."""
    torus = isinstance(group.cluster.shape, Torus) and len(group.domains) == 1
    alone = group.ranks_per_chip == 1 and not costs.issue_ps and not costs.hbm_bytes_per_s
    return not (torus and alone)


@functools.lru_cache(REMEMBERED)
def _steps(cluster: Cluster, costs: CommunicationCosts, chips: bytes, order: bytes) -> Steps | None:
    """Return what all steps of rings have in common; None where they differ or share links."""
    chip = np.frombuffer(chips, np.int64)
    here = chip[np.frombuffer(order, np.int32).reshape(-1, len(chip))]
    domain = distinct(chip // cluster.chips_per_domain)
    links = fabric(cluster, domain, costs=costs)
    paths = links.route(here.ravel(), np.roll(here, -1, axis=1).ravel())
    rates, latencies = distinct(links.rate[paths.resource]), distinct(paths.latency_ps)
    crosses_one = len(paths.resource) == here.size and bool((np.diff(paths.ptr) == 1).all())
    alone = crosses_one and len(distinct(paths.resource)) == here.size
    if not alone or len(rates) > 1 or len(latencies) > 1:
        return None
    return Steps(int(rates[0]), int(latencies[0]))


def last_end_ps(wire_ps: IntArray, latency_ps: int, rounds: int) -> int | None:
    """Time at which the last message of the last round has arrived [ps]; None past the horizon.

    ``wire_ps`` (rings, slices, blocks): time of each block on a link, which meets the blocks in
    falling order [ps]. An empty one takes none and waits for nobody.
    """
    slices = wire_ps.shape[1]
    if rounds * (slices * int(wire_ps.max()) + latency_ps) > HORIZON_PS:
        return None
    each = [np.ascontiguousarray(wire_ps[:, number]) for number in range(slices)]
    some_empty = [bool((wire == 0).any()) for wire in each]
    arrived = [np.zeros_like(wire) for wire in each]
    free = np.zeros_like(each[0])
    for _ in range(rounds):
        for number, wire in enumerate(each):
            sent = np.maximum(arrived[number], free) + wire
            if some_empty[number]:
                free = np.where(wire == 0, free, sent)
                sent = np.where(wire == 0, arrived[number], sent)
            else:
                free = sent
            arrived[number] = sent + latency_ps
        free = np.roll(free, -1, axis=1)  # the link that a block comes to next has carried the next
    return max(int(last.max()) for last in arrived)
