"""The chain of each stage: parts of nodes that follow one another on every rank.

Kernels of a stage and the calls that they wait for make up nearly all of its work. Intervals of a
chain never overlap, so the time that they cover is the sum of their lengths, and a rank can be idle
only in the gaps between them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import compiled
from topologies.arrays import BoolArray, IntArray
from workloads.training.execution.rank_vector.nodes import IDLE, Nodes

ASIDE, CLOSE, OPEN = range(3)
"""Places of a part: beside the chain; on the chain, beginning exactly as the part before it ends;
and on the chain, where it may begin later and so leave a gap."""


def chain(nodes: Nodes, base: BoolArray, allowed: BoolArray) -> IntArray:
    """Return the place of each part, int64 (parts,)."""
    # ``base`` (parts,): parts that are known to follow one another on every rank. ``allowed``
    # (parts,): parts that may join the chain where they lie between two neighbours of its base.
    stages, parts = len(nodes.base) - 1, len(nodes.stage)
    position, after = np.full((2, parts), -1)
    before = np.full(parts, parts)
    _positions(nodes.stage, nodes.wait_ptr, wait_part(nodes), base, position, after, before)
    length = np.bincount(nodes.stage[base], minlength=stages)
    between = np.minimum(before, length[nodes.stage]) == after + 1
    place = np.full(parts, ASIDE)
    lone = (nodes.exchange[np.repeat(np.arange(len(nodes)), np.diff(nodes.part_ptr))] < 0) & (
        np.diff(nodes.wait_ptr) == 1
    )
    after.fill(-1)
    latest = np.full(stages, -1)
    joins = base | (allowed & between)
    _places(nodes.stage, nodes.wait_ptr, wait_part(nodes), joins, lone, after, latest, place)
    return place


def wait_part(nodes: Nodes) -> IntArray:
    """Return for each wait the part whose last op is waited for, int64 (waits,)."""
    part_of = np.zeros(nodes.base[-1], np.int64)
    part_of[nodes.value] = np.arange(len(nodes.value))
    waits: IntArray = part_of[nodes.wait]
    return waits


@compiled
def _positions(
    stage: IntArray,
    wait_ptr: IntArray,
    wait_part: IntArray,
    base: BoolArray,
    position: IntArray,
    after: IntArray,
    before: IntArray,
) -> None:
    """Number the base parts of each stage, and find between which of them each part lies."""
    # ``after`` becomes the number of the last base part that a part waits for, ``before`` that of
    # the first base part that waits for it.
    for part in range(len(stage)):
        for k in range(wait_ptr[part], wait_ptr[part + 1]):
            waits = wait_part[k]
            after[part] = max(after[part], position[waits] if base[waits] else after[waits])
        if base[part]:
            position[part] = after[part] + 1
    for part in range(len(stage) - 1, -1, -1):
        follows = position[part] if base[part] else before[part]
        for k in range(wait_ptr[part], wait_ptr[part + 1]):
            before[wait_part[k]] = min(before[wait_part[k]], follows)


@compiled
def _places(
    stage: IntArray,
    wait_ptr: IntArray,
    wait_part: IntArray,
    joins: BoolArray,
    lone: BoolArray,
    after: IntArray,
    latest: IntArray,
    place: IntArray,
) -> None:
    """Put each part that joins on the chain of its stage if it follows all parts there so far."""
    for part in range(len(stage)):
        for k in range(wait_ptr[part], wait_ptr[part + 1]):
            after[part] = max(after[part], after[wait_part[k]])
        if joins[part] and after[part] == latest[stage[part]]:
            direct = lone[part] and wait_part[wait_ptr[part]] == latest[stage[part]]
            place[part] = CLOSE if direct else OPEN
            after[part] = latest[stage[part]] = part


# Unions of categories that suffice to attribute every picosecond to one category.
#
# Where several categories are active at once, the time belongs to the first in their order. So a
# category gets the time by which it extends the union of all categories before it. Where the
# intervals of a union follow one another on every rank, as a chain of waits, its length is the sum
# of theirs, and it need not be followed.

SUMMED = -1  # code that asks for the sum of the intervals in place of a union
ALL = 0  # the union of all categories: its gaps are idle time


class Unions(NamedTuple):
    """Unions to follow, of which the first is that of all categories.

    Every union of a category and all before it contains the whole chain. A category whose union by
    itself is followed is never on the chain.
    """

    first: IntArray  # (categories,): union of a category and all before it, or ``SUMMED``
    alone: IntArray  # (categories,): union of a category by itself, or ``SUMMED``
    top: IntArray  # (unions,): last category of a union of several
    place: IntArray  # (parts,): place of each part on the chain of its stage or beside it
    followed: int  # number of unions: those of several categories, then those of one

    def spent(self, covered: IntArray, summed: IntArray) -> IntArray:
        """Time of each category, int64 (categories, ranks)."""
        # ``covered`` (unions, ranks). ``summed`` (categories, ranks): sum of the intervals of each
        # category.
        sums = np.cumsum(summed, axis=0)
        upto = np.where((self.first == SUMMED)[:, None], sums, covered[self.first])
        return np.diff(upto, axis=0, prepend=0)

    def active(self, covered: IntArray, summed: IntArray) -> IntArray:
        """Time in which something of each category is on, int64 (categories, ranks)."""
        return np.where((self.alone == SUMMED)[:, None], summed, covered[self.alone])


def unions(nodes: Nodes) -> Unions:
    """Return the unions to follow for a program's nodes."""
    present = np.unique(nodes.category).tolist()
    first, alone = np.full((2, IDLE), SUMMED)
    top = [IDLE - 1]
    for code in range(IDLE):
        if code >= present[-1]:
            first[code] = ALL
        elif code not in present:
            first[code] = first[code - 1] if code else SUMMED
        elif not in_a_row(nodes, nodes.category <= code):
            first[code] = len(top)
            top.append(code)
    overlaps = [code for code in present if not in_a_row(nodes, nodes.category == code)]
    alone[overlaps] = len(top) + np.arange(len(overlaps))
    lowest = int(np.argmax(first != SUMMED))
    allowed = (nodes.category == lowest) & (alone[lowest] == SUMMED)
    place = chain(nodes, nodes.category < lowest, allowed)
    return Unions(first, alone, np.array(top), place, len(top) + len(overlaps))


def in_a_row(nodes: Nodes, chosen: BoolArray) -> bool:
    """Return whether the chosen parts of every rank wait for each other, one after the other."""
    after = np.full(len(nodes.stage), -1, np.int64)
    latest = np.full(len(nodes.base) - 1, -1, np.int64)
    return bool(_in_a_row(nodes.stage, nodes.wait_ptr, wait_part(nodes), chosen, after, latest))


@compiled
def _in_a_row(
    stage: IntArray,
    wait_ptr: IntArray,
    wait_part: IntArray,
    chosen: BoolArray,
    after: IntArray,
    latest: IntArray,
) -> bool:
    """Return whether each chosen part waits, through others, for the chosen part before it."""
    for part in range(len(stage)):
        for k in range(wait_ptr[part], wait_ptr[part + 1]):
            after[part] = max(after[part], after[wait_part[k]])
        if chosen[part]:
            if after[part] != latest[stage[part]]:
                return False
            after[part] = latest[stage[part]] = part
    return True
