"""Instructions: nodes in an order of evaluation, with a place for every clock that is needed.

A clock is the end of an op on all ranks of its stage, one element for each rank. Its place is
reused as soon as nothing waits for the op any more, so that the clocks of a block stay in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import compiled, internal
from topologies.arrays import BoolArray, IntArray
from workloads.training.execution.rank_vector.chain import ASIDE, wait_part
from workloads.training.execution.rank_vector.nodes import Nodes

WORTH = 0.05
"""Share of all ops that a cut must save to be worth the memory that the state of blocks takes."""
AHEAD = 1000  # most instructions by which a node beside the chain may come before its turn


class Tape(NamedTuple):
    """Instructions in phases; each phase begins when all ranks have ended the one before."""

    node: IntArray  # (instructions,): node that each instruction evaluates
    # (instructions,): whether members of a call only record when they are ready; a later
    # instruction ends it
    only_meets: BoolArray
    out: IntArray  # (parts,): where the clocks of each part begin
    wait_at: IntArray  # (waits,): where the clocks of the op that is waited for begin
    size: int  # number of clocks, all ranks of a block counted
    bounds: IntArray  # (phases + 1,): first instruction of each phase


def phases_tape(nodes: Nodes, wide: BoolArray, rows: IntArray) -> Tape:
    """Return a tape on which members of a wide exchange meet in one phase and go on in the next."""
    # ``wide`` (exchanges,): whether the groups of an exchange span blocks. ``rows`` (stages,):
    # ranks of each stage in a block.
    node, only, phase = _in_phases(nodes, wide)
    bounds = np.searchsorted(phase, np.arange(int(phase.max()) + 2))
    return _tapes(nodes, [(node, only, bounds)], rows)[0]


def _in_phases(nodes: Nodes, wide: BoolArray) -> tuple[IntArray, BoolArray, IntArray]:
    """Return instructions by phase: node, whether members only record readiness, and phase."""
    meets = (nodes.exchange >= 0) & np.append(wide, False)[nodes.exchange]
    number = np.arange(len(nodes))
    part_node = np.repeat(number, np.diff(nodes.part_ptr))
    phase = np.zeros(len(nodes), np.int64)
    waits = part_node[wait_part(nodes)]
    _count_phases(nodes.part_ptr, nodes.wait_ptr, waits, meets, phase)
    node = np.concatenate([number, np.flatnonzero(meets)])
    only = np.zeros(len(node), np.bool_)
    only[: len(nodes)] = meets
    when = np.concatenate([phase, phase[meets] + 1])
    order = np.lexsort((node, only | ~meets[node], when))
    return node[order], only[order], when[order]


class Cut(NamedTuple):
    """Two tapes with the same instructions before a cut, none of which waits for a late meeting."""

    timed: Tape  # tape in order of start, of a single phase
    # Tape whose first instructions are those before the cut, and which goes on in phases
    rest: Tape
    at: int  # number of instructions before the cut
    phases: int  # number of phases that must have ended before the cut's instructions can run


def cut_tapes(nodes: Nodes, wide: BoolArray, order: IntArray, rows: IntArray) -> Cut | None:
    """Return tapes with the cut that saves most work, or None if none saves enough."""
    # When ranks meet in a wide exchange is known only after everything before it is evaluated. So
    # instructions run once to find the meetings and once more, in order of start, to take notes.
    # Instructions that start before anything waits for a meeting of a later phase can do both in
    # one run. The cut is behind the phase for which they are most.
    # ``wide`` (exchanges,): whether the groups of an exchange span blocks. ``order`` (nodes,):
    # nodes in order of start, see :func:`starting_order`. ``rows`` (stages,): ranks of each stage
    # in a block.
    node, only, phase = _in_phases(nodes, wide)
    level = np.zeros(len(nodes), np.int64)
    level[node[~only]] = phase[~only]
    parts = np.diff(nodes.run_ptr)
    work = np.add.reduceat(parts, nodes.part_ptr[:-1])[order]
    last = int(phase.max())
    if last == 0:
        return None
    latest = np.maximum.accumulate(level[order])
    ends = np.searchsorted(latest, np.arange(last), side="right")
    saved = [int(work[:end][level[order[:end]] == p].sum()) for p, end in enumerate(ends.tolist())]
    first = int(np.argmax(saved))
    at = int(ends[first])
    if saved[first] < WORTH * work.sum():
        return None
    before = np.zeros(len(nodes), np.bool_)
    before[order[:at]] = True
    later = np.where(only, phase >= first, ~before[node])
    behind, silent = node[later], only[later]
    when = np.maximum(phase[later], first)
    by_phase = np.argsort(when, kind="stable")
    rest = np.concatenate([order[:at], behind[by_phase]])
    quiet = np.concatenate([np.zeros(at, np.bool_), silent[by_phase]])
    bounds = at + np.searchsorted(when[by_phase], np.arange(first, last + 2))
    whole = (order, np.zeros(len(order), np.bool_), np.array([0, len(order)]))
    timed, phased = _tapes(nodes, [whole, (rest, quiet, bounds)], rows)
    return Cut(timed, phased, at, first)


def timed_tape(nodes: Nodes, order: IntArray, rows: IntArray) -> Tape:
    """Return a tape of a single phase in order of start; see :func:`starting_order`."""
    bounds = np.array([0, len(order)])
    return _tapes(nodes, [(order, np.zeros(len(order), np.bool_), bounds)], rows)[0]


def starting_order(nodes: Nodes, start_ps: IntArray, place: IntArray) -> IntArray:
    """Return the nodes in order of start, int64 (nodes,)."""
    # Nodes beside the chain come earlier, as soon as all nodes that they wait for have come: on
    # some ranks they may start before nodes of the chain, whose gaps should not be settled before.
    # ``start_ps`` (nodes,): start of each node on some ranks [ps]; none comes before what it waits
    # for. ``place`` (parts,): see :class:`workloads.training.execution.rank_vector.chain.Unions`.
    part_node = np.repeat(np.arange(len(nodes)), np.diff(nodes.part_ptr))
    waits = nodes.part_ptr, nodes.wait_ptr, part_node[wait_part(nodes)]
    not_before = start_ps.copy()
    _put_off(*waits, not_before)
    order = np.argsort(not_before, kind="stable")
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order))
    aside = np.maximum.reduceat(place, nodes.part_ptr[:-1]) == ASIDE
    _bring_forward(*waits, aside, turn)
    return np.argsort(turn, kind="stable")


def _tapes(
    nodes: Nodes, lists: Sequence[tuple[IntArray, BoolArray, IntArray]], rows: IntArray
) -> list[Tape]:
    """Return a tape for each list of nodes; where lists agree, so do the places of clocks."""
    columns = _Work(nodes.part_ptr, nodes.stage, nodes.value, nodes.wait_ptr, nodes.wait)
    slots = [_new_slots(nodes, len(rows)) for _ in lists]
    for (node, only_meets, _), assigned in zip(lists, slots, strict=True):
        _assign_slots(node, only_meets, columns, assigned)
    used = np.max([assigned.used for assigned in slots], axis=0)
    stage_at = np.cumsum(used * rows) - used * rows
    tapes = []
    for (node, only_meets, bounds), assigned in zip(lists, slots, strict=True):
        out = stage_at[nodes.stage] + assigned.slot * rows[nodes.stage]
        value_at = np.zeros(nodes.base[-1], np.int64)
        value_at[nodes.value] = out
        size = int((used * rows).sum())
        tapes.append(Tape(node, only_meets, out, value_at[nodes.wait], size, bounds))
    return tapes


@compiled
def _count_phases(
    part_ptr: IntArray, wait_ptr: IntArray, wait_node: IntArray, meets: BoolArray, phase: IntArray
) -> None:
    """Count the wide exchanges that come one after the other before each node."""
    for n in range(len(meets)):
        for k in range(wait_ptr[part_ptr[n]], wait_ptr[part_ptr[n + 1]]):
            phase[n] = max(phase[n], phase[wait_node[k]] + meets[wait_node[k]])


@compiled
def _put_off(
    part_ptr: IntArray, wait_ptr: IntArray, wait_node: IntArray, start_ps: IntArray
) -> None:
    """Let no node start before the nodes that it waits for, which may be later on other ranks."""
    for n in range(len(start_ps)):
        for k in range(wait_ptr[part_ptr[n]], wait_ptr[part_ptr[n + 1]]):
            start_ps[n] = max(start_ps[n], start_ps[wait_node[k]])


@compiled
def _bring_forward(
    part_ptr: IntArray, wait_ptr: IntArray, wait_node: IntArray, aside: BoolArray, turn: IntArray
) -> None:
    """Move nodes aside forward to the last node that they wait for, by ``AHEAD`` turns at most."""
    for n in range(len(aside)):
        if aside[n]:
            turn[n] = max(0, turn[n] - AHEAD)
            for k in range(wait_ptr[part_ptr[n]], wait_ptr[part_ptr[n + 1]]):
                turn[n] = max(turn[n], turn[wait_node[k]])


class _Work(NamedTuple):
    """Columns of the nodes, see :class:`workloads.training.execution.rank_vector.nodes.Nodes`."""

    part_ptr: IntArray
    stage: IntArray
    value: IntArray
    wait_ptr: IntArray
    wait: IntArray


class _Slots(NamedTuple):
    """Slots for the clocks of parts, with a stack of free ones for each stage."""

    slot: IntArray  # (parts,): slot of each part among those of its stage
    used: IntArray  # (stages,): number of slots that each stage needs
    free: IntArray  # (stages,): top of the stack: the part whose slot was freed last, -1 for none
    below: IntArray  # (parts,): next part down the stack, -1 for none
    last: IntArray  # (ops,): last instruction that waits for an op, -1 for none
    part_of: IntArray  # (ops,): part of which an op is the last


def _new_slots(nodes: Nodes, stages: int) -> _Slots:
    parts, ops = len(nodes.stage), int(nodes.base[-1])
    return _Slots(
        slot=np.zeros(parts, np.int64),
        used=np.zeros(stages, np.int64),
        free=np.full(stages, -1, np.int64),
        below=np.full(parts, -1, np.int64),
        last=np.full(ops, -1, np.int64),
        part_of=np.full(ops, -1, np.int64),
    )


@compiled
def _assign_slots(node: IntArray, only: BoolArray, work: _Work, slots: _Slots) -> None:
    """Give each part a slot at its instruction, and free it after the last one that waits."""
    last, part_of = slots.last, slots.part_of
    for i in range(len(node)):
        for k in range(
            work.wait_ptr[work.part_ptr[node[i]]], work.wait_ptr[work.part_ptr[node[i] + 1]]
        ):
            last[work.wait[k]] = i
    for i in range(len(node)):
        low, high = work.part_ptr[node[i]], work.part_ptr[node[i] + 1]
        for part in range(low, high if not only[i] else low):
            part_of[work.value[part]] = part
            stage = work.stage[part]
            freed = slots.free[stage]
            if freed < 0:
                slots.slot[part] = slots.used[stage]
                slots.used[stage] += 1
            else:
                slots.slot[part], slots.free[stage] = slots.slot[freed], slots.below[freed]
        for k in range(work.wait_ptr[low], work.wait_ptr[high]):
            if last[work.wait[k]] == i:
                last[work.wait[k]] = -2
                _release(part_of[work.wait[k]], work.stage, slots)
        for part in range(low, high if not only[i] else low):
            if last[work.value[part]] == -1:
                _release(part, work.stage, slots)


@internal
def _release(part: int, stage: IntArray, slots: _Slots) -> None:
    """Put the slot of a part on the stack of free ones."""
    slots.below[part] = slots.free[stage[part]]
    slots.free[stage[part]] = part
