"""Compiled evaluation of all ranks' clocks, instruction by instruction and block by block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import compiled, inlined, internal
from topologies.support.arrays import BoolArray, IntArray
from workloads.training.execution.jitter import draw, scale
from workloads.training.execution.rank_vector.cover import (
    IGNORE,
    NOTHING,
    STARTS,
    Clocks,
    Kernels,
    Notes,
    Stretch,
    clear,
    extend,
    extend_after_gap,
    put_aside,
    settle_all,
)
from workloads.training.execution.rank_vector.nodes import ASIDE, CLOSE, Layout, Nodes, wait_part

# Instructions: nodes in an order of evaluation, with a place for every clock that is needed.
# A clock is the end of an op on all ranks of its stage, one element for each rank. Its place is
# reused as soon as nothing waits for the op any more, so that the clocks of a block stay in cache.

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
    meets = (nodes.exchange >= 0) & np.append(wide, False)[nodes.exchange]
    number = np.arange(len(nodes.exchange))
    part_node = np.repeat(number, np.diff(nodes.part_ptr))
    phase = np.zeros(len(nodes.exchange), np.int64)
    waits = part_node[wait_part(nodes)]
    _take_latest(nodes.part_ptr, nodes.wait_ptr, waits, meets, phase)
    node = np.concatenate([number, np.flatnonzero(meets)])
    only = np.zeros(len(node), np.bool_)
    only[: len(nodes.exchange)] = meets
    when = np.concatenate([phase, phase[meets] + 1])
    order = np.lexsort((node, only | ~meets[node], when))
    bounds = np.searchsorted(when[order], np.arange(int(when.max()) + 2))
    return _tape(nodes, node[order], only[order], bounds, rows)


def timed_tape(nodes: Nodes, order: IntArray, rows: IntArray) -> Tape:
    """Return a tape of a single phase in order of start; see :func:`starting_order`."""
    bounds = np.array([0, len(order)])
    return _tape(nodes, order, np.zeros(len(order), np.bool_), bounds, rows)


def starting_order(nodes: Nodes, start_ps: IntArray, place: IntArray) -> IntArray:
    """Return the nodes in order of start, int64 (nodes,)."""
    # Nodes beside the chain come earlier, as soon as all nodes that they wait for have come: on
    # some ranks they may start before nodes of the chain, whose gaps should not be settled before.
    # ``start_ps`` (nodes,): start of each node on some ranks [ps]; none comes before what it waits
    # for. ``place`` (parts,): see :class:`workloads.training.execution.rank_vector.nodes.Unions`.
    part_node = np.repeat(np.arange(len(nodes.exchange)), np.diff(nodes.part_ptr))
    waits = nodes.part_ptr, nodes.wait_ptr, part_node[wait_part(nodes)]
    # No node starts before the nodes that it waits for, which may be later on other ranks.
    not_before = start_ps.copy()
    _take_latest(*waits, np.zeros(len(start_ps), np.bool_), not_before)
    order = np.argsort(not_before, kind="stable")
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order))
    aside = np.maximum.reduceat(place, nodes.part_ptr[:-1]) == ASIDE
    _bring_forward(*waits, aside, turn)
    return np.argsort(turn, kind="stable")


def _tape(
    nodes: Nodes, node: IntArray, only_meets: BoolArray, bounds: IntArray, rows: IntArray
) -> Tape:
    """Return the tape of a list of nodes, with a place for every clock that is needed."""
    parts, ops, stages = len(nodes.stage), int(nodes.base[-1]), len(rows)
    slots = _Slots(
        slot=np.zeros(parts, np.int64),
        used=np.zeros(stages, np.int64),
        free=np.full(stages, -1, np.int64),
        below=np.full(parts, -1, np.int64),
        last=np.full(ops, -1, np.int64),
        part_of=np.full(ops, -1, np.int64),
    )
    _assign_slots(node, only_meets, nodes, slots)
    stage_at = np.cumsum(slots.used * rows) - slots.used * rows
    out = stage_at[nodes.stage] + slots.slot * rows[nodes.stage]
    value_at = np.zeros(ops, np.int64)
    value_at[nodes.value] = out
    size = int((slots.used * rows).sum())
    return Tape(node, only_meets, out, value_at[nodes.wait], size, bounds)


@compiled
def _take_latest(
    part_ptr: IntArray, wait_ptr: IntArray, wait_node: IntArray, more: BoolArray, latest: IntArray
) -> None:
    """Raise each node's number to the greatest among the nodes that it waits for."""
    # The number of a node that is one of ``more`` counts one higher for the nodes that wait for it.
    for n in range(len(latest)):
        for k in range(wait_ptr[part_ptr[n]], wait_ptr[part_ptr[n + 1]]):
            latest[n] = max(latest[n], latest[wait_node[k]] + more[wait_node[k]])


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


class _Slots(NamedTuple):
    """Slots for the clocks of parts, with a stack of free ones for each stage."""

    slot: IntArray  # (parts,): slot of each part among those of its stage
    used: IntArray  # (stages,): number of slots that each stage needs
    free: IntArray  # (stages,): top of the stack: the part whose slot was freed last, -1 for none
    below: IntArray  # (parts,): next part down the stack, -1 for none
    last: IntArray  # (ops,): last instruction that waits for an op, -1 for none
    part_of: IntArray  # (ops,): part of which an op is the last


@compiled
def _assign_slots(node: IntArray, only: BoolArray, work: Nodes, slots: _Slots) -> None:
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


class Task(NamedTuple):
    """Instructions that one thread carries out, what they read, and the state that they change."""

    work: Nodes
    tape: Tape
    layout: Layout
    kernels: Kernels
    clocks: Clocks
    notes: Notes


@compiled
def carry_out(task: Task, blocks: tuple[int, int], instructions: tuple[int, int]) -> None:
    """Carry out a range of instructions for a range of blocks, and note what the question wants."""
    # A block's cover is cleared before its first instruction and summed up after its last. If it
    # loses an interval for lack of room, the function returns at once, as the block must be
    # repeated.
    work, tape, notes = task.work, task.tape, task.notes
    for block in range(blocks[0], blocks[1]):
        if notes.question.mode >= IGNORE and instructions[0] == 0:
            clear(notes.cover)
        base = block * task.clocks.stride
        for i in range(instructions[0], instructions[1]):
            node = tape.node[i]
            if work.exchange[node] < 0:
                _run(task, block, base, node)
            elif not task.layout.wide[work.exchange[node]]:
                _meet(task, block, base, node)
            elif tape.only_meets[i]:
                _record_ready(task, block, base, node)
            else:
                _resume(task, block, base, node)
            if notes.question.mode != NOTHING and not tape.only_meets[i]:
                _note_interval(task, block, base, node)
                if notes.cover.lost[0]:
                    return
        if notes.question.mode >= IGNORE and instructions[1] == len(tape.node):
            _sum_up(task.layout, notes, block)


@inlined
def _stretch(layout: Layout, block: int, stage: int) -> Stretch:
    low = layout.low[block, stage]
    ranks = layout.low[block + 1, stage] - low
    return Stretch(stage, ranks, layout.row_at[stage], layout.stage_at[stage] + low)


@inlined
def _run(task: Task, block: int, base: int, node: int) -> None:
    """Carry out a run of kernels on the ranks of a block."""
    work, tape, kernels, clocks = task.work, task.tape, task.kernels, task.clocks
    part = work.part_ptr[node]
    stretch = _stretch(task.layout, block, work.stage[part])
    at = base + tape.out[part]
    end = clocks.end[at : at + stretch.ranks]
    begin = clocks.start[0, : stretch.ranks]
    if work.wait_ptr[part + 1] == work.wait_ptr[part] + 1:
        at = base + tape.wait_at[work.wait_ptr[part]]
        begin = clocks.end[at : at + stretch.ranks]
    else:
        _find_start(work, tape, clocks, base, part, stretch.ranks)
    if not kernels.disturbed:
        for c in range(stretch.ranks):
            end[c] = begin[c] + work.run_sum_ps[part]
        return
    for k in range(work.run_ptr[part], work.run_ptr[part + 1]):
        _draw(kernels, kernels.op_key[work.run_op[k]], clocks, stretch)
        _add(begin, end, work.run_ps[k], kernels, clocks, stretch)
        begin = end


@inlined
def _find_start(work: Nodes, tape: Tape, clocks: Clocks, base: int, part: int, ranks: int) -> None:
    """Find the start of a run that waits for none or several ops: the latest end of these."""
    begin = clocks.start[0, :ranks]
    for c in range(ranks):
        begin[c] = 0
    for k in range(work.wait_ptr[part], work.wait_ptr[part + 1]):
        waits = clocks.end[base + tape.wait_at[k] : base + tape.wait_at[k] + ranks]
        for c in range(ranks):
            begin[c] = max(begin[c], waits[c])


@inlined
def _draw(kernels: Kernels, op_key: np.uint64, clocks: Clocks, stretch: Stretch) -> None:
    """Draw a place in the table of jitter for one kernel on each rank; a loop for vectors."""
    key, place = (
        kernels.key[stretch.place : stretch.place + stretch.ranks],
        clocks.place[: stretch.ranks],
    )
    for c in range(stretch.ranks):
        place[c] = draw(key[c], op_key)


@inlined
def _add(
    begin: IntArray,
    end: IntArray,
    duration: int,
    kernels: Kernels,
    clocks: Clocks,
    stretch: Stretch,
) -> None:
    """Add the disturbed time of one kernel on each rank."""
    slow = kernels.slow[stretch.place : stretch.place + stretch.ranks]
    place, drawn = clocks.place[: stretch.ranks], clocks.drawn[: stretch.ranks]
    for c in range(stretch.ranks):
        drawn[c] = kernels.table[place[c]]
    for c in range(stretch.ranks):
        end[c] = begin[c] + max(1, scale(scale(duration, slow[c]), drawn[c]))


@inlined
def _meet(task: Task, block: int, base: int, node: int) -> None:
    """Carry out a call of every group that is inside a block."""
    work, tape, layout, clocks = task.work, task.tape, task.layout, task.clocks
    exchange, call, parts = work.exchange[node], work.call[node], work.part_ptr[node]
    width, roles = layout.width[exchange], work.part_ptr[node + 1] - work.part_ptr[node]
    packed = layout.packed[exchange]
    for g in range(layout.group_low[exchange, block], layout.group_low[exchange, block + 1]):
        at = layout.member_at[exchange] + g * width
        start = 0
        for role in range(roles):
            low, high = layout.role_ptr[exchange, role], layout.role_ptr[exchange, role + 1]
            for k in range(work.wait_ptr[parts + role], work.wait_ptr[parts + role + 1]):
                waits = base + tape.wait_at[k]
                if packed:
                    waits += layout.member[at + low]
                    ends = clocks.end[waits : waits + high - low]
                    for m in range(high - low):
                        start = max(start, ends[m])
                else:
                    for m in range(at + low, at + high):
                        start = max(start, clocks.end[waits + layout.member[m]])
        kind = layout.kind[layout.group_at[exchange] + g]
        took = layout.duration_ps[layout.time_at[exchange] + kind * layout.calls[exchange] + call]
        for role in range(roles):
            low, high = layout.role_ptr[exchange, role], layout.role_ptr[exchange, role + 1]
            out = base + tape.out[parts + role]
            if packed:
                first = layout.member[at + low]
                starts = clocks.start[role, first : first + high - low]
                ends = clocks.end[out + first : out + first + high - low]
                for m in range(high - low):
                    starts[m], ends[m] = start, start + took
            else:
                for m in range(at + low, at + high):
                    clocks.start[role, layout.member[m]] = start
                    clocks.end[out + layout.member[m]] = start + took


@inlined
def _record_ready(task: Task, block: int, base: int, node: int) -> None:
    """Record when the ranks of a block are ready for a call of a wide exchange."""
    work, tape, layout, clocks = task.work, task.tape, task.layout, task.clocks
    exchange = work.exchange[node]
    meets = clocks.meet_at[exchange] + work.call[node] * layout.groups[exchange]
    for part in range(work.part_ptr[node], work.part_ptr[node + 1]):
        stage = work.stage[part]
        low = layout.low[block, stage]
        begin = layout.own_at[exchange, part - work.part_ptr[node]] + low
        for k in range(work.wait_ptr[part], work.wait_ptr[part + 1]):
            for c in range(layout.low[block + 1, stage] - low):
                g = meets + layout.group_of[begin + c]
                clocks.ready[g] = max(clocks.ready[g], clocks.end[base + tape.wait_at[k] + c])


@inlined
def _resume(task: Task, block: int, base: int, node: int) -> None:
    """Let the ranks of a block continue after a call of a wide exchange."""
    work, tape, layout, clocks = task.work, task.tape, task.layout, task.clocks
    exchange, call = work.exchange[node], work.call[node]
    meets = clocks.meet_at[exchange] + call * layout.groups[exchange]
    times = layout.time_at[exchange] + call
    for part in range(work.part_ptr[node], work.part_ptr[node + 1]):
        role, stage = part - work.part_ptr[node], work.stage[part]
        low = layout.low[block, stage]
        for c in range(layout.low[block + 1, stage] - low):
            g = layout.group_of[layout.own_at[exchange, role] + low + c]
            kind = layout.kind[layout.group_at[exchange] + g]
            start = clocks.meet[meets + g]
            clocks.start[role, c] = start
            took = layout.duration_ps[times + kind * layout.calls[exchange]]
            clocks.end[base + tape.out[part] + c] = start + took


@inlined
def _note_interval(task: Task, block: int, base: int, node: int) -> None:
    """Note the interval that an instruction takes on each rank of a block."""
    work, tape, clocks, notes = task.work, task.tape, task.clocks, task.notes
    for part in range(work.part_ptr[node], work.part_ptr[node + 1]):
        stretch, code = _stretch(task.layout, block, work.stage[part]), work.category[part]
        start = clocks.start[part - work.part_ptr[node], : stretch.ranks]
        if work.exchange[node] < 0 and work.wait_ptr[part + 1] == work.wait_ptr[part] + 1:
            at = base + tape.wait_at[work.wait_ptr[part]]
            start = clocks.end[at : at + stretch.ranks]
        end = clocks.end[base + tape.out[part] : base + tape.out[part] + stretch.ranks]
        if notes.question.mode == STARTS:
            for c in range(stretch.ranks):
                notes.first_start[node] = min(notes.first_start[node], start[c])
            continue
        if notes.place[part] == CLOSE:
            extend(notes.cover, stretch, code, start, end)
        elif notes.place[part] == ASIDE:
            put_aside(notes.cover, stretch, code, start, end, work.first[part])
        else:
            extend_after_gap(
                notes.cover, stretch, code, start, end, work.first[part], notes.question
            )


@internal
def _sum_up(layout: Layout, notes: Notes, block: int) -> None:
    """Settle a block's cover, and add the time of its unions and categories to the notes."""
    cover = notes.cover
    for stage in range(layout.low.shape[1]):
        stretch = _stretch(layout, block, stage)
        settle_all(cover, stretch, notes.question)
        for c in range(stretch.ranks):
            row, place = stretch.row + c, stretch.place + c
            chained = -cover.aside[row]
            for code in range(cover.spent.shape[0]):
                notes.spent[code, place] = cover.spent[code, row]
                chained += cover.spent[code, row]
                if notes.alone[code] >= 0:
                    notes.covered[notes.alone[code], place] = (
                        cover.spent[code, row] - cover.lapped[code, row]
                    )
            for union in range(len(notes.question.top)):
                notes.covered[union, place] = chained + cover.filled[union, row]
            notes.late[place] = cover.late[row]
            notes.until[place] = cover.until[row]
