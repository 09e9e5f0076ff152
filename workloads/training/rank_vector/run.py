"""Clocks of all ranks, instruction by instruction and block by block, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.jit import compiled, internal
from cluster_sim.schedule import IntArray
from workloads.training.jitter import KeyArray, quantile, scale
from workloads.training.rank_vector.cover import IGNORE, Cover, clear, put, settle
from workloads.training.rank_vector.layout import Layout
from workloads.training.rank_vector.tape import Tape


class Work(NamedTuple):
    """Columns of the nodes, see :class:`workloads.training.rank_vector.nodes.Nodes`."""

    exchange: IntArray
    call: IntArray
    part_ptr: IntArray
    stage: IntArray
    category: IntArray
    first: IntArray
    run_ptr: IntArray
    run_op: IntArray
    run_ps: IntArray
    run_sum_ps: IntArray
    wait_ptr: IntArray


class Kernels(NamedTuple):
    """How kernels are disturbed: columns by place of the rank, stage after stage.

    Attributes
    ----------
    key : uint64 array (ranks,)
    slow : int64 array (ranks,)
    table : int64 array
    op_key : uint64 array (longest stream,)
        What the hash adds for each op.
    disturbed : bool
    """

    key: KeyArray
    slow: IntArray
    table: IntArray
    op_key: KeyArray
    disturbed: bool


class Clocks(NamedTuple):
    """What changes.

    Attributes
    ----------
    end : int64 array
        Clocks, where the tape has them [ps].
    meet : int64 array
        Start of each call of each group of wide exchanges, from ``meet_at`` [ps].
    meet_at : int64 array (exchanges,)
    start : int64 array (parts, ranks of a block)
        Of the latest instruction, by stage from the block's first rank on [ps].
    """

    end: IntArray
    meet: IntArray
    meet_at: IntArray
    start: IntArray


class Notes(NamedTuple):
    """What is followed while clocks go on.

    Attributes
    ----------
    cover : Cover
        A row for each rank of a block; and again for each category that may overlap itself.
    several : int64 array (categories,)
        For such a category its number from 1 on, else 0.
    active : int64 array (ranks, categories)
        Time in which something of a category is on [ps].
    spent : int64 array (ranks, categories + 1)
    late : int64 array (ranks,)
    until : int64 array (ranks,)
    noted : int64 array (classes, ops + 1)
    like : int64 array (ranks,)
        Class of each rank.
    mode : int
    """

    cover: Cover
    several: IntArray
    active: IntArray
    spent: IntArray
    late: IntArray
    until: IntArray
    noted: IntArray
    like: IntArray
    mode: int


@compiled
def advance(
    work: Work,
    tape: Tape,
    layout: Layout,
    kernels: Kernels,
    clocks: Clocks,
    blocks: tuple[int, int],
    low: int,
    high: int,
) -> None:
    """Carry out instructions ``low`` to ``high`` for a range of blocks; nothing is noted."""
    for block in range(blocks[0], blocks[1]):
        for i in range(low, high):
            _carry_out(work, tape, layout, kernels, clocks, block, i)


@compiled
def first_starts(
    work: Work,
    tape: Tape,
    layout: Layout,
    kernels: Kernels,
    clocks: Clocks,
    when: IntArray,
    low: int,
    high: int,
) -> None:
    """Carry out instructions for all blocks and put the earliest start of each node in ``when``."""
    for block in range(len(layout.low) - 1):
        for i in range(low, high):
            _carry_out(work, tape, layout, kernels, clocks, block, i)
            node = tape.node[i]
            part = work.part_ptr[node]
            ranks = layout.low[block + 1, work.stage[part]] - layout.low[block, work.stage[part]]
            if ranks and not tape.only_meets[i]:
                for c in range(ranks):
                    when[node] = min(when[node], clocks.start[0, c])


@compiled
def follow(
    work: Work,
    tape: Tape,
    layout: Layout,
    kernels: Kernels,
    clocks: Clocks,
    notes: Notes,
    low: int,
    high: int,
) -> None:
    """Carry out a whole tape for blocks ``low`` to ``high`` and note where time goes."""
    for block in range(low, high):
        clear(notes.cover)
        for stage in range(layout.low.shape[1]):
            at = layout.stage_at[stage]
            notes.active[at + layout.low[block, stage] : at + layout.low[block + 1, stage]] = 0
        for i in range(len(tape.node)):
            _carry_out(work, tape, layout, kernels, clocks, block, i)
            node = tape.node[i]
            for part in range(work.part_ptr[node], work.part_ptr[node + 1]):
                _note(work, tape, layout, clocks, notes, block, part, part - work.part_ptr[node])
        _gather(layout, notes, block)


@internal
def _carry_out(
    work: Work, tape: Tape, layout: Layout, kernels: Kernels, clocks: Clocks, block: int, i: int
) -> None:
    node = tape.node[i]
    if work.exchange[node] < 0:
        _run(work, tape, layout, kernels, clocks, block, node)
    elif not layout.wide[work.exchange[node]]:
        _meet(work, tape, layout, clocks, block, node)
    elif tape.only_meets[i]:
        _ready(work, tape, layout, clocks, block, node)
    else:
        _go_on(work, tape, layout, clocks, block, node)


@internal
def _run(
    work: Work, tape: Tape, layout: Layout, kernels: Kernels, clocks: Clocks, block: int, node: int
) -> None:
    """A run of kernels on the ranks of a block."""
    part = work.part_ptr[node]
    stage = work.stage[part]
    low, high = layout.low[block, stage], layout.low[block + 1, stage]
    end = clocks.end[tape.out[part] + low : tape.out[part] + high]
    begin = clocks.start[0, : high - low]
    begin[:] = 0
    for k in range(work.wait_ptr[part], work.wait_ptr[part + 1]):
        waits = clocks.end[tape.wait_at[k] + low : tape.wait_at[k] + high]
        for c in range(high - low):
            begin[c] = max(begin[c], waits[c])
    if not kernels.disturbed:
        for c in range(high - low):
            end[c] = begin[c] + work.run_sum_ps[part]
        return
    at = layout.stage_at[stage]
    for c in range(high - low):
        end[c] = begin[c]
    for k in range(work.run_ptr[part], work.run_ptr[part + 1]):
        _add(
            end, work.run_ps[k], kernels.key[at + low : at + high],
            kernels.slow[at + low : at + high], kernels.op_key[work.run_op[k]], kernels.table,
        )  # fmt: skip


@internal
def _add(
    end: IntArray, duration: int, key: KeyArray, slow: IntArray, op_key: np.uint64, table: IntArray
) -> None:
    """Add the disturbed time of one kernel on each rank."""
    for c in range(len(end)):
        slowed = scale(duration, slow[c])
        end[c] += max(1, scale(slowed, quantile(key[c], op_key, table)))


@internal
def _meet(work: Work, tape: Tape, layout: Layout, clocks: Clocks, block: int, node: int) -> None:
    """A call of every group that lies in a block."""
    exchange, call = work.exchange[node], work.call[node]
    width, parts = layout.width[exchange], work.part_ptr[node]
    for g in range(layout.group_low[exchange, block], layout.group_low[exchange, block + 1]):
        at = layout.member_at[exchange] + g * width
        start = 0
        for m in range(width):
            part = parts + layout.role_of[exchange, m]
            for k in range(work.wait_ptr[part], work.wait_ptr[part + 1]):
                start = max(start, clocks.end[tape.wait_at[k] + layout.member[at + m]])
        kind = layout.kind[layout.group_at[exchange] + g]
        took = layout.duration_ps[layout.time_at[exchange] + kind * layout.calls[exchange] + call]
        for m in range(width):
            role, place = layout.role_of[exchange, m], layout.member[at + m]
            clocks.end[tape.out[parts + role] + place] = start + took
            clocks.start[role, place - layout.low[block, work.stage[parts + role]]] = start


@internal
def _ready(work: Work, tape: Tape, layout: Layout, clocks: Clocks, block: int, node: int) -> None:
    """Ranks of a block say when they are ready for a call of a wide exchange."""
    exchange, call = work.exchange[node], work.call[node]
    meets = clocks.meet_at[exchange] + call * layout.groups[exchange]
    for part in range(work.part_ptr[node], work.part_ptr[node + 1]):
        own = layout.own_at[exchange, part - work.part_ptr[node]]
        stage = work.stage[part]
        for k in range(work.wait_ptr[part], work.wait_ptr[part + 1]):
            for c in range(layout.low[block, stage], layout.low[block + 1, stage]):
                g = meets + layout.group_of[own + c]
                clocks.meet[g] = max(clocks.meet[g], clocks.end[tape.wait_at[k] + c])


@internal
def _go_on(work: Work, tape: Tape, layout: Layout, clocks: Clocks, block: int, node: int) -> None:
    """Ranks of a block go on from a call of a wide exchange."""
    exchange, call = work.exchange[node], work.call[node]
    meets = clocks.meet_at[exchange] + call * layout.groups[exchange]
    for part in range(work.part_ptr[node], work.part_ptr[node + 1]):
        own = layout.own_at[exchange, part - work.part_ptr[node]]
        stage = work.stage[part]
        begin = clocks.start[part - work.part_ptr[node]]
        for c in range(layout.low[block, stage], layout.low[block + 1, stage]):
            g = layout.group_of[own + c]
            kind = layout.kind[layout.group_at[exchange] + g]
            at = layout.time_at[exchange] + kind * layout.calls[exchange] + call
            begin[c - layout.low[block, stage]] = clocks.meet[meets + g]
            clocks.end[tape.out[part] + c] = clocks.meet[meets + g] + layout.duration_ps[at]


@internal
def _note(
    work: Work,
    tape: Tape,
    layout: Layout,
    clocks: Clocks,
    notes: Notes,
    block: int,
    part: int,
    role: int,
) -> None:
    """Put what each rank of a block just did on its cover."""
    stage, code, op = work.stage[part], work.category[part], work.first[part]
    low, high = layout.low[block, stage], layout.low[block + 1, stage]
    ranks = _ranks_before(layout, block, layout.low.shape[1])
    row = _ranks_before(layout, block, stage) - low
    at = layout.stage_at[stage]
    again = notes.several[code] * ranks
    for c in range(low, high):
        end, start = clocks.end[tape.out[part] + c], clocks.start[role, c - low]
        noted = notes.noted[notes.like[at + c]]
        put(notes.cover, row + c, start, end, code, op, noted, notes.mode)
        if again:
            put(notes.cover, again + row + c, start, end, code, op, noted, IGNORE)
        else:
            notes.active[at + c, code] += end - start


@internal
def _ranks_before(layout: Layout, block: int, stage: int) -> int:
    """Ranks of a block in the stages before one."""
    ranks = 0
    for s in range(stage):
        ranks += layout.low[block + 1, s] - layout.low[block, s]
    return ranks


@internal
def _gather(layout: Layout, notes: Notes, block: int) -> None:
    """Sum up the covers of a block."""
    ranks = _ranks_before(layout, block, layout.low.shape[1])
    row = 0
    for stage in range(layout.low.shape[1]):
        for c in range(layout.low[block, stage], layout.low[block + 1, stage]):
            at = layout.stage_at[stage] + c
            settle(notes.cover, row, notes.cover.held[row], notes.noted[notes.like[at]], notes.mode)
            for code in range(notes.spent.shape[1]):
                notes.spent[at, code] = notes.cover.spent[row, code]
            notes.late[at] = notes.cover.late[row]
            notes.until[at] = notes.cover.until[row]
            for code in range(len(notes.several)):
                if notes.several[code]:
                    again = notes.several[code] * ranks + row
                    notes.active[at, code] = notes.cover.spent[again, code]
            row += 1
