"""Recursive halving and doubling, and the pair-alternating ring of the Neuron runtime.

Both are stages (:mod:`cluster_sim.collectives.algorithms.stages`): halving and doubling has one
stage of pairs for each dimension of a hypercube; KangaRing one stage between the two ranks of a
pair, then rings in which one rank of every pair drives while the other one rests, the roles
exchanged for the other half of the payload.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_sim.collectives.algorithms.cycles import all_rings
from cluster_sim.collectives.algorithms.stages import Part, staged
from cluster_sim.collectives.group import Group, box
from cluster_sim.collectives.messages import Messages
from cluster_sim.schedule.table import IntArray


def halving_doubling(op: str, group: Group, size_bytes: int, slices: int) -> Messages:
    """All-reduce, all-gather or reduce-scatter on a power of two of ranks.

    A ring of four is a 2-cube, so a 4x4 torus is a 4-cube and 4x4x4 a 6-cube, and every exchange is
    between neighbours. The payload is shared out over as many parts as there are dimensions, each
    beginning with another one, so that all are busy at once.
    """
    return staged(op, group.ranks, cube_parts(group), size_bytes, slices)


def cube_parts(group: Group) -> list[Part]:
    """Stages of pairs, one a dimension; each part begins with another of those over links."""
    at = cube(group)
    dimensions = group.ranks.bit_length() - 1
    inside = (group.ranks_per_chip & -group.ranks_per_chip).bit_length() - 1
    pairs = [_pairs(at, bit) for bit in range(dimensions)]
    outer, inner = pairs[inside:], pairs[:inside]
    return [Part((*inner, *outer[turn:], *outer[:turn])) for turn in range(max(1, len(outer)))]


def is_cube(group: Group) -> bool:
    """Whether the ranks are a power of two."""
    return group.ranks & (group.ranks - 1) == 0 and group.ranks > 1


def cube(group: Group) -> IntArray:
    """Rank at each corner of the hypercube, int64 (ranks,), neighbours on neighbouring corners.

    Along each axis of a box the places are numbered by the Gray code; the cores of a chip are the
    lowest dimensions.
    """
    found = box(group)
    powers = found is not None and all(size & (size - 1) == 0 for size in found.sizes)
    if found is None or not powers:
        chip_at: IntArray = np.arange(len(group.chips))
    else:
        grid: IntArray = found.chip_at.reshape(found.sizes)
        for axis, size in enumerate(found.sizes):
            corner = np.arange(size)
            place = np.empty(size, np.int64)
            place[corner ^ (corner >> 1)] = corner
            grid = np.take(grid, place, axis=axis)
        chip_at = grid.ravel()
    each = group.ranks_per_chip
    return np.ravel(chip_at[:, None] * each + np.arange(each))


def _pairs(at: IntArray, bit: int) -> IntArray:
    """Ranks that differ in one dimension, int32 (ranks / 2, 2)."""
    corner = np.arange(len(at))
    low = corner[corner >> bit & 1 == 0]
    return np.stack([at[low], at[low | 1 << bit]], axis=1).astype(np.int32)


def kangaring(op: str, group: Group, size_bytes: int, slices: int) -> Messages:
    """All-reduce, all-gather or reduce-scatter by pairs whose ranks drive in turn."""
    return sharing(staged(op, group.ranks, kangaring_parts(group), size_bytes, slices))


def kangaring_parts(group: Group) -> list[Part]:
    """Stages of KangaRing: within the pairs, then rings of which each drives one half."""
    each = group.ranks_per_chip
    ranks = np.arange(group.ranks, dtype=np.int32).reshape(-1, 2)
    chips = all_rings(Group(group.cluster, group.chips))
    half = np.arange(each // 2) * 2
    made = []
    for order, weight in zip(chips.order, chips.weight.tolist(), strict=True):
        primaries = np.ravel(order[:, None] * each + half)
        rings = np.stack([primaries, primaries + 1]).astype(np.int32)
        made.append(Part((ranks, rings), weight))
    return made


def sharing(sends: Messages) -> Messages:
    """The same sends where the two ranks of a pair share what one of them received."""
    ends = sends.channels
    return replace(sends, channels=replace(ends, fused=ends.src // 2 == ends.dst // 2))


def has_pairs(group: Group) -> bool:
    """Whether each chip takes part with an even number of ranks."""
    return group.ranks_per_chip % 2 == 0
