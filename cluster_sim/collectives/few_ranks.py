"""Simulation of a few ranks in place of many that do the same at the same time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.lowering import lower
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.hardware.fabric import fabric, uplinks
from cluster_sim.schedule.table import PS_PER_S, Schedule
from cluster_sim.trace.trace import run
from topologies.clusters.cluster import Cluster
from topologies.routing import scale_out_paths
from topologies.support.arrays import IntArray, distinct, pointers

FOLD_FROM = 16
"""Domains from which a collective is run on a few of them; over fewer it is run on all."""
FEW = 2  # domains that stand for all
MOST_OPS = 2_000_000
"""Most ops of a run; where it would have more, it is cut into fewer slices, or has fewer rounds and
the rest is charged by formula."""
ROUNDS = 8
"""Rounds of the first run. Runs of two and three times as many show what further rounds cost."""


def spans_many_domains(call: CollectiveCall) -> bool:
    """Return whether a call runs between so many domains that a few are run in place of all."""
    # Exact for blocks of one size and hops of one latency; else blocks get the largest size, and
    # hops the mean latency of the slowest chain of rounds.
    group = call.group
    many = len(group.domains) >= FOLD_FROM
    return many and call.kind in RING_KINDS and group.cluster.scale_out is not None


def with_uplink_rate(
    costs: CommunicationCosts, cluster: Cluster, ring: IntArray
) -> CommunicationCosts:
    """Lower the adapters' rate to what uplinks leave when each chip sends to the next row's."""
    rate = uplink_rate(costs, cluster, ring.ravel(), np.roll(ring, -1, axis=0).ravel())
    return replace(costs, scale_out_bytes_per_s=rate)


def uplink_rate(
    costs: CommunicationCosts, cluster: Cluster, src: IntArray, dst: IntArray, each: int = 1
) -> int:
    """Return the rate that uplinks leave to chips that all send at once [B/s]."""
    shared = uplinks(cluster, src, costs.scale_out_bytes_per_s)
    if not len(shared):
        return costs.scale_out_bytes_per_s
    _, row = shared.crossed(cluster, src, dst)
    flows = each * np.bincount(row, minlength=len(shared))
    capacity = np.concatenate([table.capacity for table in shared.tables])
    rates = capacity[flows > 0] // flows[flows > 0]
    return int(rates.min(initial=costs.scale_out_bytes_per_s))


def far_stages_ps(
    call: CollectiveCall, costs: CommunicationCosts, chip: IntArray, sizes: Sequence[int]
) -> int:
    """Time that stages between domains take longer below thin uplinks [ps]."""
    cluster, first = call.group.cluster, chip[:, 0]
    left_bytes, longer_s = call.size_bytes / chip.shape[1], 0.0
    # From near to far, each with the bytes that the ones before left. All chips of a domain are
    # taken to send, as groups of a plan run side by side.
    for size, line in zip(sizes, stage_lines(sizes), strict=True):
        ends = first[line.ravel()], first[np.roll(line, -1, axis=1).ravel()]
        rate = uplink_rate(costs, cluster, *ends, cluster.chips_per_domain)
        moved_bytes = left_bytes * (size - 1) / size
        longer_s += moved_bytes * (1 / rate - 1 / costs.scale_out_bytes_per_s)
        left_bytes /= size
    return round(call.ways * longer_s * PS_PER_S)


def stage_lines(sizes: Sequence[int]) -> list[IntArray]:
    """Return the lines of each stage between domains, (lines, domains of a line) each."""
    # Domains of a line differ in one digit alone, in radices of which the first is the lowest
    # digit.
    digits = np.arange(math.prod(sizes)).reshape(sizes[::-1])
    return [
        np.moveaxis(digits, axis, -1).reshape(-1, digits.shape[axis])
        for axis in reversed(range(len(sizes)))
    ]


def with_one_latency(group: Group, ring: IntArray, rounds: int) -> Cluster:
    """Return the cluster with the same latency for all hops of a ``ring`` between domains."""
    paths = scale_out_paths(group.cluster, ring, np.roll(ring, -1))
    # Blocks travel from chip to chip, so the chain of rounds from the worst place on ends last.
    # Latency of ``rounds`` consecutive hops from each place on: whole laps, and a part of one.
    laps, rest = divmod(rounds, len(ring))
    upto = pointers(np.tile(paths.latency_ps, 2))
    partial = upto[rest : rest + len(ring)] - upto[: len(ring)]
    longest = int(laps * paths.latency_ps.sum() + partial.max())
    return _with_latency(group.cluster, longest, rounds)


def with_latency_of_stages(group: Group, first: IntArray, sizes: Sequence[int]) -> Cluster:
    """Return the cluster with the mean latency of the hops of the slowest lines of all stages."""
    # Only far stages pay the way to another building or site, many times as long as the others.
    longest = 0
    for line in stage_lines(sizes):
        ends = first[line.ravel()], first[np.roll(line, -1, axis=1).ravel()]
        hop_ps = scale_out_paths(group.cluster, *ends).latency_ps.reshape(line.shape)
        longest += int((hop_ps.sum(axis=1) - hop_ps.min(axis=1)).max())
    return _with_latency(group.cluster, longest, sum(sizes) - len(sizes))


def _with_latency(cluster: Cluster, longest_ps: int, hops: int) -> Cluster:
    """Return the cluster with one latency, of which so many hops take ``longest_ps`` together."""
    if cluster.scale_out is None:
        raise ValueError(f"{cluster.name} has no scale-out fabric")
    level = replace(
        cluster.scale_out,
        latency_ps=-(-longest_ps // hops),
        climb_ps=(0,),
        oversubscription=Fraction(1),
        places=(),
    )
    return replace(cluster, scale_out=level)


def repeated_rounds_ps(schedule_of: Callable[[int], Schedule], rounds: int) -> int:
    """Return the time of a schedule of many equal rounds [ps], from runs of a few rounds."""
    # Runs of n, 2 n and 3 n rounds show what n more cost. If both differences are the same, and no
    # less than n rounds keep the busiest resource busy, so that nothing hides them any longer, all
    # further rounds cost as much; else n is doubled. Beyond ``MOST_OPS`` nothing is taken to hide.
    few = ROUNDS
    while 4 * few < rounds:
        (first, _, _), (second, busy, _), (third, busier, ops) = (
            _run(schedule_of(count * few)) for count in (1, 2, 3)
        )
        more, least = third - second, int((busier - busy).max())
        settled = more == second - first and more >= least
        if settled or (2 * ops > MOST_OPS and ops * rounds > 6 * few * MOST_OPS):
            left = rounds - 3 * few
            return third + -(-left * max(more, least) // few)
        few *= 2
    return run(schedule_of(rounds)).total_ps


def _run(schedule: Schedule) -> tuple[int, IntArray, int]:
    """Return the time of a schedule and the busy time of each resource [ps], and its ops."""
    busy = np.bincount(schedule.resource + 1, schedule.duration_ps, len(schedule.resources) + 1)[1:]
    slots = np.maximum(1, schedule.resources.slots)
    return run(schedule).total_ps, busy.astype(np.int64) // slots, len(schedule)


def schedule_of_few(
    messages: Messages, cluster: Cluster, chips: IntArray, costs: CommunicationCosts
) -> Schedule:
    """Return the schedule of messages between a few ranks, on the domains of their chips."""
    domains = distinct(chips // cluster.chips_per_domain)
    return lower(messages, chips, fabric(cluster, domains, costs=costs), {})
