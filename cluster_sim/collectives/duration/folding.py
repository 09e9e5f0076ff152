"""Collectives between many scale-up domains, run on a few ranks that stand for all.

Where every domain does the same at the same time, two that send to each other as many rounds of
the same blocks have the same clock as thousands. Rounds that only repeat are counted, not run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from cluster_sim.collectives.algorithms.cube import sharing
from cluster_sim.collectives.algorithms.cycles import cycles
from cluster_sim.collectives.algorithms.hierarchical import (
    drives_pairs_inside,
    inner_parts,
    over_domains,
    radices,
    rank_table,
)
from cluster_sim.collectives.algorithms.registry import slices_for
from cluster_sim.collectives.algorithms.ring import RING_OPS, ring_rounds
from cluster_sim.collectives.algorithms.stages import Leg, staged_by_few
from cluster_sim.collectives.algorithms.torus import parts as shared_out
from cluster_sim.collectives.chunks import EVERY, Chunks, cut
from cluster_sim.collectives.group import Group, box
from cluster_sim.collectives.lowering.lower import lower
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts, wire
from cluster_sim.hardware.fabric import fabric
from cluster_sim.hardware.uplinks import uplinks
from cluster_sim.schedule.table import IntArray, Schedule
from cluster_sim.trace.trace import run
from topologies.clusters.cluster import Cluster
from topologies.routing.domain import routes
from topologies.routing.scale_out import scale_out_paths

FOLD_FROM = 16
"""Domains from which a collective between them is folded; over fewer it is run as it is."""
FEW = 2
"""Domains that are run."""
RING_OF_FEW = 3
"""Ranks of a ring that are run; with two, a ring and its reverse would be the same."""
MOST_OPS = 2_000_000
"""Ops of a run; where more would be needed, slices are fewer, and then rounds charged unseen."""
HOPS = 3
"""Ops of a send between domains: its issue, and the two adapters."""
ROUNDS = 8
"""Rounds that are run at first; what as many more cost is then looked at, twice."""


def folded_ps(
    op: str, group: Group, size_bytes: int, algorithm: str, *, ideal: bool = False
) -> int | None:
    """Time of a collective over many domains [ps], or None where these do not do the same.

    Blocks that differ by a byte are all given the larger size, and hops that climb further up the
    scale-out fabric than others all the mean latency of the chain of rounds that meets most of
    them: exact where neither occurs.
    """
    domains = len(np.unique(group.domain))
    if domains < FOLD_FROM or op not in RING_OPS or group.cluster.scale_out is None:
        return None
    costs = wire(group.cluster, ideal=ideal)
    if algorithm == "hierarchical":
        return hierarchical_ps(op, group, slices_for(group, size_bytes, costs), size_bytes, costs)
    if domains == group.ranks and algorithm == "ring":
        return _ring_ps(op, group, costs.slices, size_bytes, costs)
    if domains == group.ranks and algorithm == "rdh" and not _thin(group, costs):
        return _halving_doubling_ps(op, group, costs.slices, size_bytes, costs)
    return None


def _thin(group: Group, costs: CommunicationCosts) -> bool:
    return len(uplinks(group.cluster, group.chips, costs.scale_out_bytes_per_s)) > 0


def narrowed(costs: CommunicationCosts, cluster: Cluster, ring: IntArray) -> CommunicationCosts:
    """Costs with the rate at which chips send to the next ones of a ring when all do at once.

    Parameters
    ----------
    costs : CommunicationCosts
    cluster : Cluster
    ring : int array (domains, …)
        Chips; each sends to the one of the next row.
    """
    src, dst = ring.ravel(), np.roll(ring, -1, axis=0).ravel()
    shared = uplinks(cluster, src, costs.scale_out_bytes_per_s)
    if not len(shared):
        return costs
    _, row = shared.crossed(cluster, src, dst)
    flows = np.maximum(1, np.bincount(row, minlength=len(shared)))
    rates = np.concatenate([table.capacity for table in shared.tables]) // flows
    return replace(costs, scale_out_bytes_per_s=min(costs.scale_out_bytes_per_s, int(rates.min())))


def _ring_ps(op: str, group: Group, slices: int, size_bytes: int, costs: CommunicationCosts) -> int:
    ranks = group.ranks
    ways = 2 if op == "all-reduce" else 1
    blocks = cut(-(-size_bytes // ranks), slices)
    chunks = Chunks.table(np.repeat(blocks, RING_OF_FEW), EVERY, EVERY)
    few = cycles(np.arange(RING_OF_FEW))
    level = levelled(group, group.chips, ways * (ranks - 1))
    chips = level.chips_per_domain * np.arange(RING_OF_FEW)
    costs = narrowed(costs, group.cluster, group.chips)

    def after(rounds: int) -> Schedule:
        sends = ring_rounds(few, slices, chunks, ways * rounds, reduces=op != "all-gather")
        return _lowered(sends, level, chips, costs)

    return after_rounds_ps(after, ranks - 1)


def _halving_doubling_ps(
    op: str, group: Group, slices: int, size_bytes: int, costs: CommunicationCosts
) -> int:
    """All pairs of a dimension exchange at once; one pair stands for them."""
    dimensions = group.ranks.bit_length() - 1
    level = levelled(group, group.chips, 1)
    legs = [Leg(np.arange(FEW, dtype=np.int32)[None, :], 2, 1)] * dimensions
    sends = staged_by_few(op, FEW, [(legs, 1)] * dimensions, size_bytes, slices)
    return run(_lowered(sends, level, level.chips_per_domain * np.arange(FEW), costs)).total_ps


def hierarchical_ps(
    op: str, group: Group, slices: int, size_bytes: int, costs: CommunicationCosts
) -> int:
    """Time of a hierarchical collective over equal domains, from a few that stand for all [ps]."""
    table = rank_table(group)
    if table is None:
        raise ValueError("the group is not symmetric over its domains")
    chip = group.chip_of_rank[table]
    ways = 2 if op == "all-reduce" else 1
    sizes = radices(group)
    ring = len(sizes) == 1
    level = levelled(group, chip[:, 0], ways * (len(table) - 1) if ring else 1)
    costs = narrowed(costs, group.cluster, chip[:, :: group.ranks_per_chip])
    alike = _any_chip(group)
    local = chip[0] % level.chips_per_domain
    local = local[:1] if alike else local
    chips = (level.chips_per_domain * np.arange(FEW)[:, None] + local).ravel()
    ranks = np.arange(chips.size).reshape(FEW, -1)
    across = np.ascontiguousarray(ranks.T).astype(np.int32)
    inner = alike or [
        ([_leg(over_domains(lines, ranks)) for lines in part.lines], part.weight)
        for part in inner_parts(group, size_bytes)
    ]

    def after(last: list[Leg], slices: int) -> Schedule:
        parts = [([*legs, *last], weight) for legs, weight in inner]
        sends = staged_by_few(op, ranks.size, parts, size_bytes, slices)
        sends = sharing(sends) if drives_pairs_inside(group, size_bytes) else sends
        return _lowered(sends, level, chips, costs)

    if not ring:
        stages = [Leg(across, size, size - 1) for size in sizes]
        fewer = min(slices, max(1, MOST_OPS // len(after(stages, 1))))
        return run(after(stages, fewer)).total_ps
    ops = HOPS * ways * ranks.size * len(inner) * len(table)
    fewer = min(slices, max(1, MOST_OPS // ops))
    return after_rounds_ps(
        lambda rounds: after([Leg(across, len(table), rounds)], fewer), len(table) - 1
    )


def _leg(lines: IntArray) -> Leg:
    return Leg(lines, lines.shape[1], lines.shape[1] - 1)


def _any_chip(group: Group) -> list[tuple[list[Leg], int]]:
    """Legs of the first chip of each domain, where any chip may stand for all; else none.

    So it is where the chips of a domain fill a torus: shifted along an axis it is the same.
    """
    first = Group(group.cluster, group.chips[group.domain == group.domain[0]])
    found = box(first)
    if group.ranks_per_chip > 1 or found is None or not all(found.wraps) or not found.sizes:
        return []
    legs: dict[int, Leg] = {}
    made = []
    for part in shared_out(found):
        own = [_to_itself(first, lines) for lines in part.lines]
        made.append(([legs.setdefault(key, leg) for key, leg in own], part.weight))
    return made


def _to_itself(group: Group, lines: IntArray) -> tuple[int, Leg]:
    """Leg of a chip that stands for the whole lines, over its link to the next one."""
    line, place = (int(one[0]) for one in np.nonzero(lines == 0))
    local = group.chips % group.cluster.chips_per_domain
    there = lines[line, (place + 1) % lines.shape[1]]
    link = int(routes(group.cluster.shape, local[:1], local[[there]]).link[0])
    each = np.arange(FEW, dtype=np.int32)[:, None]
    return link, Leg(each, lines.shape[1], lines.shape[1] - 1, link)


def levelled(group: Group, ring: IntArray, rounds: int) -> Cluster:
    """The cluster with one latency for all steps between domains, from the hops of a ring.

    Each block travels on from chip to chip, so that the chain of rounds which starts at the worst
    place sets the end; its mean latency stands for all.
    """
    cluster, scale_out = group.cluster, group.cluster.scale_out
    if scale_out is None:
        raise ValueError(f"{cluster.name} has no scale-out fabric")
    paths = scale_out_paths(cluster, ring, np.roll(ring, -1))
    laps, rest = divmod(rounds, len(ring))
    before = np.concatenate([[0], np.cumsum(np.tile(paths.latency_ps, 2))])
    windows = before[rest : rest + len(ring)] - before[: len(ring)]
    longest = int(laps * paths.latency_ps.sum() + windows.max())
    level = replace(
        scale_out,
        latency_ps=-(-longest // rounds),
        climb_ps=(0,),
        oversubscription=Fraction(1),
    )
    return replace(cluster, scale_out=level)


def after_rounds_ps(after: Callable[[int], Schedule], rounds: int) -> int:
    """Time of a schedule of many equal rounds [ps], from runs of a few of them if these suffice.

    They do once as many rounds more take the same time more, twice in a row, and this no less
    than what they keep the busiest resource busy: nothing hides them any longer. Where that takes
    more than ``MOST_OPS`` ops, the rest is charged as if nothing hid it.
    """
    few = ROUNDS
    while 4 * few < rounds:
        (first, _, _), (second, busy, _), (third, busier, ops) = (
            _run(after(count * few)) for count in (1, 2, 3)
        )
        more, least = third - second, int((busier - busy).max())
        settled = more == second - first and more >= least
        if settled or (2 * ops > MOST_OPS and ops * rounds > 6 * few * MOST_OPS):
            left = rounds - 3 * few
            return third + -(-left * max(more, least) // few)
        few *= 2
    return run(after(rounds)).total_ps


def _run(made: Schedule) -> tuple[int, IntArray, int]:
    """Time that a schedule takes, and for which each resource's slots are held [ps]; its ops."""
    busy = np.bincount(made.resource + 1, made.duration_ps, len(made.resources) + 1)[1:]
    slots = np.maximum(1, made.resources.slots)
    return run(made).total_ps, busy.astype(np.int64) // slots, len(made)


def _lowered(
    sends: Messages, cluster: Cluster, chips: IntArray, costs: CommunicationCosts
) -> Schedule:
    domains = np.unique(chips // cluster.chips_per_domain)
    return lower(sends, chips, fabric(cluster, domains, costs=costs), {})
