"""Nodes in an order of evaluation, with a place for every clock that is still needed.

A clock is the end of an op on all ranks of its stage, one element a rank. Its place is used again
as soon as nothing waits for the op any more, so that clocks of a block of ranks stay in cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.schedule.table import BoolArray, IntArray
from workloads.training.execution.rank_vector.nodes import Nodes, allocating


class Tape(NamedTuple):
    """Instructions.

    Attributes
    ----------
    node : int64 array (instructions,)
    only_meets : bool array (instructions,)
        Whether members only say when they are ready, and go on in a later instruction.
    out : int64 array (parts,)
        Where the clocks of a part begin.
    wait_at : int64 array (waits,)
        Where the clocks that a part waits for begin.
    size : int
        Clocks in all.
    bounds : int64 array (phases + 1,)
        First instruction of each phase: all ranks must have ended the one before.
    """

    node: IntArray
    only_meets: BoolArray
    out: IntArray
    wait_at: IntArray
    size: int
    bounds: IntArray


def phases_tape(nodes: Nodes, wide: BoolArray, rows: IntArray) -> Tape:
    """Tape on which calls of wide exchanges meet in one phase and go on in the next.

    Parameters
    ----------
    nodes : Nodes
    wide : bool array (exchanges,)
    rows : int64 array (stages,)
        Ranks of each stage.
    """
    meets = (nodes.exchange >= 0) & np.append(wide, False)[nodes.exchange]
    number = np.arange(len(nodes))
    part_node = np.repeat(number, np.diff(nodes.part_ptr))
    value_node = np.zeros(nodes.base[-1], np.int64)
    value_node[nodes.value] = part_node
    phase = _phases(nodes.part_ptr, nodes.wait_ptr, value_node[nodes.wait], meets)
    node = np.concatenate([number, np.flatnonzero(meets)])
    only = np.zeros(len(node), np.bool_)
    only[: len(nodes)] = meets
    when = np.concatenate([phase, phase[meets] + 1])
    order = np.lexsort((node, only | ~meets[node], when))
    bounds = np.searchsorted(when[order], np.arange(int(when.max()) + 2))
    return _tape(nodes, node[order], only[order], rows, bounds)


def timed_tape(nodes: Nodes, start_ps: IntArray, rows: IntArray) -> Tape:
    """Tape in order of start, one phase.

    Of nodes that start together runs come first, since some ranks wait for others in a call.
    """
    order = np.lexsort((nodes.exchange >= 0, start_ps))
    bounds = np.array([0, len(order)])
    return _tape(nodes, order, np.zeros(len(order), np.bool_), rows, bounds)


def _tape(
    nodes: Nodes, node: IntArray, only_meets: BoolArray, rows: IntArray, bounds: IntArray
) -> Tape:
    slot, used = _slots(
        node, only_meets, nodes.part_ptr, nodes.stage, nodes.value, nodes.wait_ptr, nodes.wait,
        len(rows),
    )  # fmt: skip
    stage_at = np.cumsum(used * rows) - used * rows
    out = stage_at[nodes.stage] + slot * rows[nodes.stage]
    value_at = np.zeros(nodes.base[-1], np.int64)
    value_at[nodes.value] = out
    size = int((used * rows).sum())
    return Tape(node, only_meets, out, value_at[nodes.wait], size, bounds)


@allocating
def _phases(
    part_ptr: IntArray, wait_ptr: IntArray, wait_node: IntArray, meets: BoolArray
) -> IntArray:
    """How many calls that all ranks meet in lie before each node."""
    phase = np.zeros(len(meets), np.int64)
    for n in range(len(meets)):
        for k in range(wait_ptr[part_ptr[n]], wait_ptr[part_ptr[n + 1]]):
            phase[n] = max(phase[n], phase[wait_node[k]] + meets[wait_node[k]])
    return phase


@allocating
def _slots(
    node: IntArray,
    only: BoolArray,
    part_ptr: IntArray,
    stage: IntArray,
    value: IntArray,
    wait_ptr: IntArray,
    wait: IntArray,
    stages: int,
) -> tuple[IntArray, IntArray]:
    """Slot of each part among those of its stage, and how many slots each stage needs."""
    ops = max(value.max(), wait.max() if len(wait) else 0) + 1
    last, part_of = np.full(ops, -1, np.int64), np.full(ops, -1, np.int64)
    for i in range(len(node)):
        for k in range(wait_ptr[part_ptr[node[i]]], wait_ptr[part_ptr[node[i] + 1]]):
            last[wait[k]] = i
    slot, below = np.zeros(len(stage), np.int64), np.full(len(stage), -1, np.int64)
    used, free = np.zeros(stages, np.int64), np.full(stages, -1, np.int64)
    for i in range(len(node)):
        low, high = part_ptr[node[i]], part_ptr[node[i] + 1]
        for part in range(low, high if not only[i] else low):
            part_of[value[part]] = part
            held = free[stage[part]]
            if held < 0:
                slot[part] = used[stage[part]]
                used[stage[part]] += 1
            else:
                slot[part], free[stage[part]] = slot[held], below[held]
        for k in range(wait_ptr[low], wait_ptr[high]):
            if last[wait[k]] == i:
                last[wait[k]] = -2
                _release(part_of[wait[k]], stage, below, free)
        for part in range(low, high if not only[i] else low):
            if last[value[part]] == -1:
                _release(part, stage, below, free)
    return slot, used


@allocating
def _release(part: int, stage: IntArray, below: IntArray, free: IntArray) -> None:
    """Let the slot of a part be used again."""
    below[part] = free[stage[part]]
    free[stage[part]] = part
