"""Groups that have the same chips in each of several scale-up domains, and their stages."""

from __future__ import annotations

import numpy as np

from cluster_sim.collectives.algorithms.cycles import one_ring
from cluster_sim.collectives.algorithms.kangaring import kangaring_parts
from cluster_sim.collectives.algorithms.neuron_runtime import (
    drives_pairs,
    halves_and_doubles,
    is_trainium,
)
from cluster_sim.collectives.algorithms.rdh import cube_parts, is_cube
from cluster_sim.collectives.algorithms.stages import Part
from cluster_sim.collectives.algorithms.torus import parts
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.group import Group
from topologies.arrays import IntArray


def radices(group: Group) -> list[int]:
    """Return the number of domains in a ring of each stage between domains, in order.

    Their product is the number of domains. On Trainium they are its prime factors, which for a
    power of two is halving and doubling, and for 7,812 takes 42 rounds in place of 7,811. On other
    chips, and where uplinks are oversubscribed, all domains form one ring: a ring crosses an uplink
    once, but half of all pairs cross it.
    """
    domains, fabric = len(group.domains), group.cluster.scale_out
    wide = fabric is not None and fabric.oversubscription <= 1
    return prime_factors(domains) if wide and is_trainium(group.cluster) else [domains]


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


LARGEST_RING = 64  # domains of a stage above which a time is that of fewer domains in more stages
FEW_DOMAINS, SMOOTH = 256, 5
"""Domains above which the largest stage is 5. From 81 on no two numbers in a row have all their
factors up to 5, so that none takes more rounds than the numbers on both sides of it."""


def timed_radices(group: Group) -> list[int]:
    """Return the stages between domains whose time stands for that of a group.

    They are :func:`radices`, unless one of these is a long ring: a number of domains with a large
    prime factor. An exchange in a logarithmic number of rounds exists for any number of domains
    (Bruck et al. 1997), so its time is that of the nearest smaller number with small factors.
    """
    sizes = radices(group)
    if len(sizes) == 1 and prime_factors(sizes[0]) != sizes:
        return sizes  # one ring by choice, as below oversubscribed uplinks
    number = len(group.domains)
    largest = LARGEST_RING if number <= FEW_DOMAINS else SMOOTH
    while max(sizes, default=1) > largest:
        number -= 1
        sizes = prime_factors(number)
    return sizes


def evened(group: Group) -> tuple[Group, int] | None:
    """Return a group with all domains as full as the fullest, and how many ranks one stands for.

    A group over an odd number of halves, such as two ranks of every domain and one of the last, has
    no equal places. Ranks of a short domain then take the places of several. None where full
    domains differ in their chips, or where the group is even already.
    """
    inside = group.cluster.chips_per_domain
    domains, counts = np.unique(group.domain, return_counts=True)
    full = counts.max()
    if counts.min() == full:
        return None
    local = group.chips % inside
    places = np.sort(local[group.domain == domains[np.argmax(counts)]])
    whole = np.isin(group.domain, domains[counts == full])
    table = np.sort(local[whole].reshape(-1, full), axis=1) if whole.any() else places[None]
    if not (table == places).all() or not np.isin(local, places).all():
        return None
    chips = (domains[:, None] * inside + places).ravel()
    return Group(group.cluster, chips, group.ranks_per_chip), int(-(-full // counts.min()))


def is_symmetric(group: Group) -> bool:
    """Return whether the group has the same chips in each of several domains, and several stages.

    The Neuron runtime asks for the same local ranks on every node. One rank in each domain and a
    single stage between them is a ring.
    """
    table = rank_table(group)
    if table is None or len(table) == 1:
        return False
    return table.shape[1] > 1 or len(radices(group)) > 1


def rank_table(group: Group) -> IntArray | None:
    """Return the ranks (domains, places in each); None where the domains differ in their chips."""
    domains, counts = np.unique(group.domain, return_counts=True)
    if counts.min() != counts.max():
        return None
    order = np.argsort(group.domain, kind="stable").reshape(len(domains), -1)
    local = group.chips[order] % group.cluster.chips_per_domain
    if not (local == local[0]).all():
        return None
    cores = np.arange(group.ranks_per_chip)
    return (order[:, :, None] * group.ranks_per_chip + cores).reshape(len(domains), -1)


def inside_first(group: Group) -> Group:
    """Return the group's chips in its first domain, as a group."""
    first = group.chips[group.domain == group.domain[0]]
    return Group(group.cluster, first, group.ranks_per_chip)


def inner_parts(call: CollectiveCall) -> list[Part]:
    """Return the parts of the payload with their stages inside a domain, for the first domain.

    With one rank a chip they go along the axes of a torus; with several, they are what the runtime
    runs inside one domain: halving and doubling, for longer buffers KangaRing, or a ring.
    """
    inside = inside_first(call.group)
    if inside.ranks == 1:
        return [Part(())]
    filled = inside.filled_box if inside.ranks_per_chip == 1 else None
    if filled is not None and filled.sizes:
        return parts(filled)
    if is_cube(inside) and halves_and_doubles(inside, call.size_bytes):
        return cube_parts(inside)
    if drives_pairs(inside):
        return kangaring_parts(inside)
    return [Part((order[None, :],)) for order in one_ring(inside).both_ways.order]


def drives_pairs_inside(call: CollectiveCall) -> bool:
    """Return whether pairs of ranks share what one of them received, as in KangaRing."""
    inside = inside_first(call.group)
    halved = is_cube(inside) and halves_and_doubles(inside, call.size_bytes)
    return drives_pairs(inside) and not halved


def cycles_inside(call: CollectiveCall) -> int:
    """Return the directed cycles that run at once inside a domain; halving and doubling is one."""
    inside = inside_first(call.group)
    halved = is_cube(inside) and halves_and_doubles(inside, call.size_bytes)
    return 1 if halved or inside.ranks_per_chip == 1 else len(inner_parts(call))


def over_domains(lines: IntArray, ranks: IntArray) -> IntArray:
    """Repeat the lines of the first domain in all domains, with the ranks of each."""
    return np.concatenate([ranks[domain][lines] for domain in range(len(ranks))]).astype(np.int32)
