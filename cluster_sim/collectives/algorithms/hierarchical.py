"""Hierarchical collectives over several scale-up domains that have the same chips in each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple, TypeVar

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import (
    Algorithm,
    drives_pairs,
    each_byte_arrives_once,
    halves_and_doubles,
    is_trainium,
    pairs_share,
    stage_slices,
)
from cluster_sim.collectives.algorithms.cycles import both_ways, one_ring
from cluster_sim.collectives.algorithms.stages import (
    Part,
    Stage,
    cube_parts,
    fuse_pairs,
    is_cube,
    kangaring_parts,
    lengths_of,
    staged,
    staged_by_few,
    staged_count,
    staged_rounds,
)
from cluster_sim.collectives.algorithms.torus import parts as torus_parts
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.few_ranks import (
    FEW,
    FOLD_FROM,
    MOST_OPS,
    far_stages_ps,
    repeated_rounds_ps,
    schedule_of_few,
    spans_many_domains,
    stage_lines,
    with_latency_of_stages,
    with_one_latency,
    with_uplink_rate,
)
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts, communication_costs
from cluster_sim.schedule.table import Schedule
from cluster_sim.trace.trace import run
from topologies.clusters.cluster import Cluster
from topologies.routing import routes
from topologies.support.arrays import IntArray


def is_one_ring(call: CollectiveCall) -> bool:
    """Return whether a call goes round all domains in one ring, not in stages of a few domains."""
    group, fabric = call.group, call.group.cluster.scale_out
    table = rank_table(group)
    if fabric is None or table is None or not is_trainium(group.cluster):
        return True
    if fabric.oversubscription <= 1:
        return False
    # A ring crosses a thin uplink once, where half of all pairs would, but has a round for each
    # domain: below uplinks the faster of the two is taken.
    chip, costs = group.chip_of_rank[table], communication_costs(group.cluster)
    hop_ps = fabric.latency_ps + costs.step_ps
    ring_ps, stages_ps = (
        far_stages_ps(call, costs, chip, sizes)
        + call.ways * hop_ps * _rounds(sizes, doubles=sizes is stages)
        for stages in [_with_small_factors(_in_stages(len(chip)))]
        for sizes in ([len(chip)], stages)
    )
    return ring_ps <= stages_ps


def radices(call: CollectiveCall) -> list[int]:
    """Return the number of domains in a line of each stage between domains, in order."""
    domains = len(call.group.domains)
    return [domains] if is_one_ring(call) else _in_stages(domains)


def _in_stages(domains: int) -> list[int]:
    """Return the prime factors of a number of domains, or itself if that takes no more rounds."""
    # For a power of two that is halving and doubling; 7,812 takes 17 rounds in place of 7,811. One
    # stage of unlike distances waits less than several of as many rounds, up to 14 % of the time.
    factors = prime_factors(domains)
    if domains >= FOLD_FROM or domains.bit_count() == 1:
        return factors
    in_one = _rounds([domains], doubles=True) <= _rounds(factors, doubles=True)
    return [domains] if in_one else factors


def _rounds(sizes: Sequence[int], *, doubles: bool = False) -> int:
    """Count the rounds of stages of so many domains, in rings or by doubled distances."""
    return sum((size - 1).bit_length() if doubles else size - 1 for size in sizes)


def prime_factors(number: int) -> list[int]:
    """Return the prime factors of a number, ascending.

    >>> prime_factors(7812), prime_factors(1)
    ([2, 2, 3, 3, 7, 31], [])
    """
    factors, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1
    return [*factors, number] if number > 1 else factors


SMOOTH = 5
"""Largest prime factor of a number of domains that is timed as it is; others take the time of the
next smaller such number. No number then takes more rounds than both its neighbours."""


def timed_radices(call: CollectiveCall) -> list[int]:
    """Return :func:`radices`, without prime factors above ``SMOOTH`` in stages."""
    sizes = radices(call)
    return sizes if is_one_ring(call) else _with_small_factors(sizes)


def _with_small_factors(sizes: list[int]) -> list[int]:
    """Return the stages whose time those of so many domains take."""
    # An exchange in a logarithmic number of rounds exists for any number of domains (Bruck et al.
    # 1997): its time is that of the nearest smaller number with small factors.
    number = math.prod(sizes)
    while number > FOLD_FROM and max(sizes) > SMOOTH:
        number -= 1
        sizes = prime_factors(number)
    return sizes


def evened(group: Group) -> tuple[Group, Fraction] | None:
    """Return a group with all domains as full as the fullest, and its share of adapters' rates."""
    inside = group.cluster.chips_per_domain
    domains, counts = np.unique(group.domain, return_counts=True)
    full = counts.max()
    # An odd number of halves, such as one rank in the last domain, has no equal places: ranks of a
    # short domain share the places of all, and the others wait.
    if counts.min() == full:
        return None
    local = group.chips % inside
    places = np.sort(local[group.domain == domains[np.argmax(counts)]])
    whole = np.isin(group.domain, domains[counts == full])
    table = np.sort(local[whole].reshape(-1, full), axis=1) if whole.any() else places[None]
    if not (table == places).all() or not np.isin(local, places).all():
        return None
    chips = (domains[:, None] * inside + places).ravel()
    # What an adapter of the emptiest domain takes in, of each byte of the buffer.
    least, number = int(counts.min()), len(domains)
    outside = Fraction(len(group.chips) - least, len(group.chips) * least)
    share = Fraction(number - 1, number * int(full)) / outside
    return Group(group.cluster, chips, group.ranks_per_chip), share


def is_symmetric(group: Group) -> bool:
    """Return whether several domains have the same chips, and there may be several rounds."""
    # The Neuron runtime asks for the same local ranks on every node.
    table = rank_table(group)
    if table is None or len(table) == 1:
        return False
    return table.shape[1] > 1 or (len(table) > 3 and is_trainium(group.cluster))


def rank_table(group: Group) -> IntArray | None:
    """Return the ranks (domains, places in each); None where the domains differ in their chips."""
    domains, counts = np.unique(group.domain, return_counts=True)
    if counts.min() != counts.max():
        return None
    order = np.argsort(group.domain, kind="stable").reshape(len(domains), -1)
    place = group.chips % group.cluster.chips_per_domain
    if not (place[order] == place[order[0]]).all():  # each domain has an order of its own
        order = np.lexsort((place, group.domain)).reshape(len(domains), -1)
    if not (place[order] == place[order[0]]).all():
        return None
    cores = np.arange(group.ranks_per_chip)
    return (order[:, :, None] * group.ranks_per_chip + cores).reshape(len(domains), -1)


def inside_first(group: Group) -> Group:
    """Return the group's chips in its first domain, in the order of its places, as a group."""
    table, first = rank_table(group), group.chips[group.domain == group.domain[0]]
    if table is not None:
        first = group.chip_of_rank[table[0, :: group.ranks_per_chip]]
    return Group(group.cluster, first, group.ranks_per_chip)


class Inside(NamedTuple):
    """Messages that run inside every domain."""

    parts: list[Part]  # of the payload, with their stages inside the first domain
    cycles: int = 1  # directed cycles that run at once
    pairs: bool = False  # pairs of ranks share what one of them received, as in KangaRing

    def marked(self, messages: Messages) -> Messages:
        """Return messages that run in these cycles, and among such pairs."""
        messages = replace(messages, cycles=self.cycles)
        return fuse_pairs(messages) if self.pairs else messages


def runs_inside(call: CollectiveCall) -> Inside:
    """Return what runs inside a domain: stages along a torus's axes, or the runtime's."""
    inside = inside_first(call.group)
    if inside.ranks == 1:
        return Inside([Part(())])
    filled = inside.filled_box if inside.ranks_per_chip == 1 else None
    if filled is not None and filled.sizes:
        return Inside(torus_parts(filled))
    if is_cube(inside) and halves_and_doubles(inside, call.size_bytes):
        return Inside(cube_parts(inside))
    if drives_pairs(inside):
        kangaring = kangaring_parts(inside, call.size_bytes)
        return Inside(kangaring, len(kangaring), pairs=True)
    rings = [Part((order[None, :],)) for order in both_ways(one_ring(inside))]
    return Inside(rings, 1 if inside.ranks_per_chip == 1 else len(rings))


def over_domains(lines: IntArray, ranks: IntArray) -> IntArray:
    """Repeat the lines of the first domain in all domains, with the ranks of each."""
    return np.concatenate([ranks[domain][lines] for domain in range(len(ranks))]).astype(np.int32)


HOPS = 3  # ops of a message between domains: its issue, and the two adapters

InnerStages = list[tuple[list[Stage], int]]
"""Stages inside a domain, and weight, of each part of the payload."""


def hierarchical_ps(call: CollectiveCall, costs: CommunicationCosts) -> int | None:
    """Return the time of a hierarchical collective over many domains [ps]; None over few."""
    # Few domains are run whole where that is quick, to the picosecond.
    few = HOPS * _message_count(call, costs) <= MOST_OPS or len(call.group.domains) <= FEW
    if not spans_many_domains(call) and (few or call.group.cluster.scale_out is None):
        return None
    return time_from_two_domains_ps(call, stage_slices(call), costs)


def time_from_two_domains_ps(call: CollectiveCall, slices: int, costs: CommunicationCosts) -> int:
    """Simulate a hierarchical collective on two domains, which stand for all [ps]."""
    group = call.group
    table = rank_table(group)
    if table is None:
        raise ValueError("the group is not symmetric over its domains")
    chip = group.chip_of_rank[table]
    sizes, doubles = timed_radices(call), not is_one_ring(call)
    rounds = 1 if doubles else call.ways * (len(table) - 1)
    cores = slice(None, None, group.ranks_per_chip)
    far_ps, in_places, fabric = 0, None, group.cluster.scale_out
    if not doubles:
        costs = with_uplink_rate(costs, group.cluster, chip[:, cores])
    elif fabric and (fabric.places or fabric.oversubscription > 1):
        far_ps = far_stages_ps(call, costs, chip[:, cores], sizes)
        in_places = with_latency_of_stages(group, chip[:, 0], sizes)
    alike = _Alike(
        call.kind,
        call.size_bytes,
        slices,
        group.ranks_per_chip,
        tuple((chip[0, cores] % group.cluster.chips_per_domain).tolist()),
        tuple(sizes),
        doubles,
        in_places or with_one_latency(group, chip[:, 0], rounds),
        costs,
    )
    return _simulated_ps(alike) + far_ps


class _Alike(NamedTuple):
    """Values that the time on many domains follows from; groups with equal hops share them."""

    kind: str
    size_bytes: int
    slices: int
    ranks_per_chip: int
    local: tuple[int, ...]  # chips of each domain, counted from its first
    radices: tuple[int, ...]  # domains in a line of each stage between domains
    doubles: bool  # whether these lines are crossed by doubled distances, not as rings
    cluster: Cluster  # with one latency for all hops between domains
    costs: CommunicationCosts  # with the rate of adapters that shared uplinks leave

    def chips(self, domains: int) -> IntArray:
        """Return chips of the first domains, int64 (domains, chips of each)."""
        return np.add.outer(self.cluster.chips_per_domain * np.arange(domains), self.local)


@functools.lru_cache(maxsize=4096)
def _simulated_ps(alike: _Alike) -> int:
    """Simulated time of two domains in place of all [ps]."""
    domains, cores = math.prod(alike.radices), alike.ranks_per_chip
    group = Group(alike.cluster, alike.chips(domains).ravel(), cores)
    call = CollectiveCall(alike.kind, group, alike.size_bytes)
    one_chip_stages = _stages_of_one_chip(group)
    chips = alike.chips(FEW)[:, :1] if one_chip_stages else alike.chips(FEW)
    chips = np.repeat(chips.ravel(), cores)
    ranks = np.arange(chips.size).reshape(FEW, -1)
    across = np.ascontiguousarray(ranks.T).astype(np.int32)
    inside = runs_inside(call)
    inner = one_chip_stages or _inner_stages(inside.parts, ranks)

    def schedule_of(outer: list[Stage], slices: int) -> Schedule:
        """Schedule of few messages with these steps between groups."""
        parts = [([*stages, *outer], weight) for stages, weight in inner]
        messages = inside.marked(staged_by_few(call, ranks.size, parts, slices))
        return schedule_of_few(messages, alike.cluster, chips, alike.costs)

    if alike.doubles:
        stages = [Stage(across, size, size - 1, doubles=True) for size in alike.radices]
        fewer = min(alike.slices, max(1, MOST_OPS // len(schedule_of(stages, 1))))
        return run(schedule_of(stages, fewer)).total_ps
    ops = HOPS * call.ways * ranks.size * len(inner) * domains
    fewer = min(alike.slices, max(1, MOST_OPS // ops))
    return repeated_rounds_ps(
        lambda rounds: schedule_of([Stage(across, domains, rounds)], fewer), domains - 1
    )


def _inner_stages(parts: Sequence[Part], ranks: IntArray) -> InnerStages:
    """Return the stages inside the domains that are simulated, with all their ranks."""
    return [
        (
            [
                Stage(over_domains(lines, ranks), lines.shape[1], lines.shape[1] - 1)
                for lines in part.lines
            ],
            part.weight,
        )
        for part in parts
    ]


def _stages_of_one_chip(group: Group) -> InnerStages:
    """Return stages for one chip of each domain where all fill a torus and are alike; else none."""
    first = inside_first(group)
    filled = first.filled_box
    if group.ranks_per_chip > 1 or filled is None or not all(filled.wraps) or not filled.sizes:
        return []
    by_link: dict[int, Stage] = {}
    parts = []
    for part in torus_parts(filled):
        local_stages = [_stage_to_itself(first, lines) for lines in part.lines]
        # Parts that use the same link share a stage, and so its channels.
        shared = [by_link.setdefault(link, stage) for link, stage in local_stages]
        parts.append((shared, part.weight))
    return parts


def _stage_to_itself(group: Group, lines: IntArray) -> tuple[int, Stage]:
    """Return the link from the first chip to the next of its line, and a stage over that link."""
    line, place = (int(axis[0]) for axis in np.nonzero(lines == 0))
    local = group.chips % group.cluster.chips_per_domain
    next_chip = lines[line, (place + 1) % lines.shape[1]]
    link = int(routes(group.cluster.shape, local[:1], local[[next_chip]]).link[0])
    # The chip stands for the whole line: it sends to itself what the next chip would receive.
    one_rank_lines = np.arange(FEW, dtype=np.int32)[:, None]
    return link, Stage(one_rank_lines, lines.shape[1], lines.shape[1] - 1, link)


def hierarchical(call: CollectiveCall, slices: int) -> Messages:
    """Write a collective of a group symmetric over its domains, between them in :func:`radices`."""
    ranks = rank_table(call.group)
    if ranks is None:
        raise ValueError("the group is not symmetric over its domains")
    inside = runs_inside(call)
    across = [
        ranks[line].swapaxes(1, 2).reshape(-1, line.shape[1]).astype(np.int32)
        for line in stage_lines(radices(call))
    ]
    doubles = 0 if is_one_ring(call) else len(across)
    parts = [
        Part((*(over_domains(lines, ranks) for lines in part.lines), *across), part.weight, doubles)
        for part in inside.parts
    ]
    return inside.marked(staged(call, parts, slices))


def _lengths(call: CollectiveCall) -> list[list[int]]:
    """Return the ranks in a line of each stage of each part, inside and then between domains."""
    across = radices(call)
    return [[*inside, *across] for inside in lengths_of(runs_inside(call).parts)]


def _steps(call: CollectiveCall, costs: CommunicationCosts) -> int:
    across = call.ways * _rounds(radices(call), doubles=not is_one_ring(call))
    return staged_rounds(call, lengths_of(runs_inside(call).parts)) + across


def _message_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    return staged_count(call, _lengths(call), stage_slices(call))


def _memory_accesses(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    count = pairs_share if runs_inside(call).pairs else each_byte_arrives_once
    return count(call, costs)


T = TypeVar("T")


def _as_sum(
    of_call: Callable[[CollectiveCall, CommunicationCosts], T],
) -> Callable[[CollectiveCall, CommunicationCosts], T]:
    """Answer for a broadcast as for a sum to which all ranks but one add zeros, as torch-xla's."""

    def of_sum(call: CollectiveCall, costs: CommunicationCosts) -> T:
        summed = replace(call, kind="all-reduce") if call.kind == "broadcast" else call
        return of_call(summed, costs)

    return of_sum


HIERARCHICAL = Algorithm(
    name="hierarchical",
    summary="reduce-scatter inside each domain, all-reduce between equal places, all-gather inside",
    kinds=(*RING_KINDS, "broadcast"),
    suits=lambda call: is_symmetric(call.group),
    messages=_as_sum(lambda call, costs: hierarchical(call, stage_slices(call))),
    message_count=_as_sum(_message_count),
    rounds=_as_sum(_steps),
    memory_accesses=_as_sum(_memory_accesses),
    stands_for=_as_sum(hierarchical_ps),
)
