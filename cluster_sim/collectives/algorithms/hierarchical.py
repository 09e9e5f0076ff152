"""Collectives between scale-up domains, the thin scale-out fabric last: reduce-scatter inside each
domain, then between the chips that stand at the same place in theirs; an all-gather the other way.
"""

from __future__ import annotations

import numpy as np

from cluster_sim.collectives.algorithms.choice import halves, is_trainium
from cluster_sim.collectives.algorithms.cube import cube_parts, is_cube
from cluster_sim.collectives.algorithms.cycles import one_ring
from cluster_sim.collectives.algorithms.stages import Part, staged
from cluster_sim.collectives.algorithms.torus import parts
from cluster_sim.collectives.group import Group, box
from cluster_sim.collectives.sends import Sends
from cluster_sim.schedule import IntArray


def hierarchical(op: str, group: Group, size_bytes: int, slices: int) -> Sends:
    """All-reduce, all-gather or reduce-scatter on a group that is symmetric over its domains.

    Each chip takes part over all domains with the shard that is its own inside: in pairs of
    domains, or in a ring.
    """
    ranks = rank_table(group)
    if ranks is None:
        raise ValueError("the group is not symmetric over its domains")
    across: list[IntArray] = [np.ascontiguousarray(ranks.T).astype(np.int32)]
    if pairs_domains(group):
        across = _pairs_across(ranks)
    made = [
        Part((*(over_domains(lines, ranks) for lines in part.lines), *across), part.weight)
        for part in inner_parts(group, size_bytes)
    ]
    return staged(op, group.ranks, made, size_bytes, slices)


def pairs_domains(group: Group) -> bool:
    """Whether the domains halve and double between one another: on Trainium a power of two does.

    Not where uplinks are thin: a ring crosses them once, half of all pairs cross them.
    """
    domains, fabric = len(np.unique(group.domain)), group.cluster.scale_out
    wide = fabric is not None and fabric.oversubscription <= 1
    return wide and domains & (domains - 1) == 0 and is_trainium(group)


def _pairs_across(ranks: IntArray) -> list[IntArray]:
    """Lines of two for each dimension of the cube of domains, int32 (pairs, 2)."""
    corner = np.arange(len(ranks))
    found: list[IntArray] = []
    for bit in range((len(ranks) - 1).bit_length()):
        low = corner[corner >> bit & 1 == 0]
        pairs = np.stack([ranks[low], ranks[low | 1 << bit]], axis=-1)
        found.append(pairs.reshape(-1, 2).astype(np.int32))
    return found


def _inside(group: Group) -> Group:
    """The chips of the group in its first domain."""
    first = group.chips[group.domain == group.domain[0]]
    return Group(group.cluster, first, group.ranks_per_chip)


def symmetric(group: Group) -> bool:
    """Whether the group has the same several chips in each of several domains.

    The Neuron runtime asks for that: the same number of ranks on every node, with the same local
    indices.
    """
    table = rank_table(group)
    return table is not None and min(table.shape) > 1


def rank_table(group: Group) -> IntArray | None:
    """Ranks by domain and place in it, int64 (domains, ranks of each); None if not symmetric."""
    found, counts = np.unique(group.domain, return_counts=True)
    if counts.min() != counts.max():
        return None
    order = np.argsort(group.domain, kind="stable").reshape(len(found), -1)
    local = group.chips[order] % group.cluster.chips_per_domain
    if not (local == local[0]).all():
        return None
    cores = np.arange(group.ranks_per_chip)
    return (order[:, :, None] * group.ranks_per_chip + cores).reshape(len(found), -1)


def inner_parts(group: Group, size_bytes: int) -> list[Part]:
    """Parts of the payload as they are reduced inside one domain; ranks as in the first one.

    One rank a chip goes along the axes of a torus; several halve and double as long as the runtime
    does so inside one domain, and go round a ring beyond.
    """
    inside = _inside(group)
    found = box(inside) if inside.ranks_per_chip == 1 else None
    if found is not None and found.sizes:
        return parts(found)
    if is_cube(inside) and halves(inside, size_bytes):
        return cube_parts(inside)
    return [Part((order[None, :],)) for order in one_ring(inside).both_ways.order]


def over_domains(lines: IntArray, ranks: IntArray) -> IntArray:
    """The lines of one domain in all of them."""
    return np.concatenate([ranks[domain][lines] for domain in range(len(ranks))]).astype(np.int32)
