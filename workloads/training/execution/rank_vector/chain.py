"""The chain of each stage: parts that follow each other on every rank, one after the other.

Kernels of a stage and the calls that they wait for make up nearly all of its work. Intervals of a
chain never overlap, so their union is their sum, and it is idle only in the gaps between them.
"""

from __future__ import annotations

import numpy as np

from cluster_sim.engine.jit import compiled
from topologies.arrays import BoolArray, IntArray
from workloads.training.execution.rank_vector.nodes import Nodes

ASIDE, CLOSE, OPEN = range(3)
"""Places of a part: beside the chain; on it, where it begins as the part before it ends; and on
it where it may begin later."""


def chain(nodes: Nodes, base: BoolArray, allowed: BoolArray) -> IntArray:
    """Return the place of each part, int64 (parts,).

    Parameters
    ----------
    nodes : Nodes
    base : bool array (parts,)
        Parts that are known to follow each other on every rank.
    allowed : bool array (parts,)
        Parts that join the chain where they lie between two that follow each other in it.
    """
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
    """Return the part that ends with the op of each wait, int64 (waits,)."""
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
    """Number the base of each stage, and say between which of it each part lies."""
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
    """Put parts on the chain of their stage that come after all that is on it so far."""
    for part in range(len(stage)):
        for k in range(wait_ptr[part], wait_ptr[part + 1]):
            after[part] = max(after[part], after[wait_part[k]])
        if joins[part] and after[part] == latest[stage[part]]:
            direct = lone[part] and wait_part[wait_ptr[part]] == latest[stage[part]]
            place[part] = CLOSE if direct else OPEN
            after[part] = latest[stage[part]] = part
