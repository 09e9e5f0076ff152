"""Hierarchical collectives over many domains, run on a few ranks that stand for all.

All domains do the same at the same time, so two of them have the same clock as thousands; and where
the chips of a domain fill a torus, one chip stands for all of it.
"""

from __future__ import annotations

import numpy as np

from cluster_sim.collectives.algorithms.domains import (
    drives_pairs_inside,
    inner_parts,
    over_domains,
    radices,
    rank_table,
)
from cluster_sim.collectives.algorithms.kangaring import sharing
from cluster_sim.collectives.algorithms.slices import stage_slices
from cluster_sim.collectives.algorithms.stages import Leg, staged_by_few
from cluster_sim.collectives.algorithms.torus import parts as shared_out
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.few_ranks import (
    FEW,
    MOST_OPS,
    after_rounds_ps,
    levelled,
    lowered,
    narrowed,
    spans_many_domains,
)
from cluster_sim.collectives.group import Group, box
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.schedule.table import Schedule
from cluster_sim.trace.trace import run
from topologies.arrays import IntArray
from topologies.routing.domain import routes

HOPS = 3
"""Ops of a message between domains: its issue, and the two adapters."""

Legs = list[tuple[list[Leg], int]]
"""Legs and weight of each part of the payload inside a domain."""


def hierarchical_ps(call: CollectiveCall, costs: CommunicationCosts) -> int | None:
    """Time of a hierarchical collective over equal domains [ps]; None where these are few."""
    if not spans_many_domains(call):
        return None
    return of_few_domains_ps(call, stage_slices(call, costs), costs)


def of_few_domains_ps(call: CollectiveCall, slices: int, costs: CommunicationCosts) -> int:
    """Time of a hierarchical collective cut into ``slices``, from two domains [ps]."""
    group = call.group
    table = rank_table(group)
    if table is None:
        raise ValueError("the group is not symmetric over its domains")
    chip = group.chip_of_rank[table]
    sizes = radices(group)
    ring = len(sizes) == 1
    level = levelled(group, chip[:, 0], call.ways * (len(table) - 1) if ring else 1)
    slowest = narrowed(costs, group.cluster, chip[:, :: group.ranks_per_chip])
    alike = _any_chip(group)
    local = chip[0] % level.chips_per_domain
    local = local[:1] if alike else local
    chips = (level.chips_per_domain * np.arange(FEW)[:, None] + local).ravel()
    ranks = np.arange(chips.size).reshape(FEW, -1)
    across = np.ascontiguousarray(ranks.T).astype(np.int32)
    inner = alike or _inner_legs(call, ranks)

    def after(last: list[Leg], slices: int) -> Schedule:
        parts = [([*legs, *last], weight) for legs, weight in inner]
        messages = staged_by_few(call, ranks.size, parts, slices)
        messages = sharing(messages) if drives_pairs_inside(call) else messages
        return lowered(messages, level, chips, slowest)

    if not ring:
        stages = [Leg(across, size, size - 1) for size in sizes]
        fewer = min(slices, max(1, MOST_OPS // len(after(stages, 1))))
        return run(after(stages, fewer)).total_ps
    ops = HOPS * call.ways * ranks.size * len(inner) * len(table)
    fewer = min(slices, max(1, MOST_OPS // ops))
    return after_rounds_ps(
        lambda rounds: after([Leg(across, len(table), rounds)], fewer), len(table) - 1
    )


def _inner_legs(call: CollectiveCall, ranks: IntArray) -> Legs:
    """Legs of all ranks of the few domains that are run."""
    return [
        ([_leg(over_domains(lines, ranks)) for lines in part.lines], part.weight)
        for part in inner_parts(call)
    ]


def _leg(lines: IntArray) -> Leg:
    return Leg(lines, lines.shape[1], lines.shape[1] - 1)


def _any_chip(group: Group) -> Legs:
    """Legs of the first chip of each domain, where any chip may stand for all; otherwise none.

    So it is where the chips of a domain fill a torus: shifted along an axis it is the same.
    """
    first = Group(group.cluster, group.chips[group.domain == group.domain[0]])
    filled = box(first)
    if group.ranks_per_chip > 1 or filled is None or not all(filled.wraps) or not filled.sizes:
        return []
    legs: dict[int, Leg] = {}
    parts = []
    for part in shared_out(filled):
        local_legs = [_to_itself(first, lines) for lines in part.lines]
        parts.append(([legs.setdefault(key, leg) for key, leg in local_legs], part.weight))
    return parts


def _to_itself(group: Group, lines: IntArray) -> tuple[int, Leg]:
    """Leg of a chip that stands for whole lines, over its link to the next chip."""
    line, place = (int(axis[0]) for axis in np.nonzero(lines == 0))
    local = group.chips % group.cluster.chips_per_domain
    there = lines[line, (place + 1) % lines.shape[1]]
    link = int(routes(group.cluster.shape, local[:1], local[[there]]).link[0])
    each = np.arange(FEW, dtype=np.int32)[:, None]
    return link, Leg(each, lines.shape[1], lines.shape[1] - 1, link)
