"""The chain of a stage and its gaps, which intervals beside it fill."""

from __future__ import annotations

from cluster_sim.engine.jit import inlined, internal
from topologies.arrays import IntArray
from workloads.training.execution.rank_vector.beside import (
    covered_until,
    forget,
    idle_until,
    list_all,
    list_touching,
)
from workloads.training.execution.rank_vector.cover import (
    COMPARE,
    IGNORE,
    NONE,
    RECORD,
    Cover,
    Question,
    Stretch,
    Usual,
)


@inlined
def go_on(cover: Cover, on: Stretch, code: int, start: IntArray, end: IntArray) -> None:
    """Add an interval to the chain that begins as the one before it ends."""
    spent = cover.spent[code, on.row : on.row + on.ranks]
    until = cover.until[on.row : on.row + on.ranks]
    for c in range(on.ranks):
        spent[c] += end[c] - start[c]
        until[c] = end[c]


@inlined
def begin(
    cover: Cover,
    on: Stretch,
    code: int,
    start: IntArray,
    end: IntArray,
    op: int,
    question: Question,
) -> None:
    """Add an interval to the chain, with a gap before it."""
    gap = cover.turn[on.stage]
    cover.turn[on.stage] = (gap + 1) % cover.gap_op.shape[0]
    settle(cover, gap, on, question)
    spent = cover.spent[code, on.row : on.row + on.ranks]
    until = cover.until[on.row : on.row + on.ranks]
    gap_start = cover.gap_start[gap, on.row : on.row + on.ranks]
    gap_end = cover.gap_end[gap, on.row : on.row + on.ranks]
    cover.gap_op[gap, on.stage] = op
    for c in range(on.ranks):
        gap_start[c] = until[c]
        gap_end[c] = start[c]
        spent[c] += end[c] - start[c]
        until[c] = end[c]


@internal
def settle(cover: Cover, gap: int, on: Stretch, question: Question) -> None:
    """Count the gaps of one place, where others may then be put."""
    op = cover.gap_op[gap, on.stage]
    if op == NONE:
        return
    start = cover.gap_start[gap, on.row : on.row + on.ranks]
    end = cover.gap_end[gap, on.row : on.row + on.ranks]
    settled = cover.settled[on.row : on.row + on.ranks]
    cover.near[0] = 0
    if cover.sides[on.stage] > 0:
        list_touching(cover, on, start, end, NONE if question.mode == IGNORE else op)
    if cover.near[0] == 0:
        _judge(cover, op, on, start, end, question)
    elif cover.near[0] == 1 and question.mode != RECORD:
        _fill_by_one(cover, op, cover.near[1], on, start, end, question)
    else:
        for c in range(on.ranks):
            fill(cover, op, on, c, (start[c], end[c]), question)
    if cover.sides[on.stage] > 0:
        forget(cover, on, start)
    for c in range(on.ranks):
        settled[c] = end[c] if start[c] < end[c] else settled[c]


@inlined
def _judge(
    cover: Cover,
    op: int,
    on: Stretch,
    start: IntArray,
    end: IntArray,
    question: Question,
) -> None:
    """Note idle times before an op, or count by how much they exceed those noted."""
    like = question.usual.like[on.place : on.place + on.ranks]
    late = cover.late[on.row : on.row + on.ranks]
    if question.mode == RECORD:
        for c in range(on.ranks):
            if start[c] < end[c]:
                question.usual.idle[op, like[c]] = end[c] - start[c]
    elif question.mode == COMPARE and _one_class(question.usual, on):
        expected = question.usual.idle[op, like[0]]
        for c in range(on.ranks):
            late[c] += max(0, end[c] - start[c] - expected)
    elif question.mode == COMPARE:
        for c in range(on.ranks):
            late[c] += max(0, end[c] - start[c] - question.usual.idle[op, like[c]])


@inlined
def _one_class(usual: Usual, on: Stretch) -> bool:
    """Return whether all ranks of a stretch are of one class."""
    return on.ranks > 0 and usual.same[on.place] == usual.same[on.place + on.ranks - 1]


@internal
def _fill_by_one(
    cover: Cover,
    op: int,
    place: int,
    on: Stretch,
    start: IntArray,
    end: IntArray,
    question: Question,
) -> None:
    """Take one interval beside the chain out of the gaps of one place."""
    begins = cover.side_start[place, on.row : on.row + on.ranks]
    ends = cover.side_end[place, on.row : on.row + on.ranks]
    for union in range(len(question.top)):
        if cover.side_code[place, on.stage] <= question.top[union]:
            filled = cover.filled[union, on.row : on.row + on.ranks]
            for c in range(on.ranks):
                filled[c] += max(0, min(end[c], ends[c]) - max(start[c], begins[c]))
    if question.mode == IGNORE:
        return
    late = cover.late[on.row : on.row + on.ranks]
    like = question.usual.like[on.place : on.place + on.ranks]
    other = cover.side_op[place, on.stage]
    either = min(op, other)
    for c in range(on.ranks):
        first = other if begins[c] < end[c] else either if begins[c] == end[c] else op
        before = min(begins[c], end[c]) - start[c] - question.usual.idle[first, like[c]]
        behind = end[c] - max(ends[c], start[c]) - question.usual.idle[op, like[c]]
        late[c] += max(0, before) + (max(0, behind) if begins[c] < end[c] else 0)


@internal
def fill(
    cover: Cover,
    op: int,
    on: Stretch,
    c: int,
    gap: tuple[int, int],
    question: Question,
) -> None:
    """Take all that is remembered out of a gap of one rank."""
    row, like = on.row + c, question.usual.like[on.place + c]
    for union in range(len(question.top)):
        codes, at = (0, question.top[union]), gap[0]
        cover.filled[union, row] += gap[1] - gap[0]
        while at < gap[1]:
            begins = covered_until(cover, on, c, (at, gap[1]), codes)
            at, first = idle_until(cover, on, c, (begins, gap[1]), codes, op)
            cover.filled[union, row] -= at - begins
            if union > 0 or begins == at or question.mode == IGNORE:
                continue
            if question.mode == RECORD:
                question.usual.idle[first, like] = at - begins
            else:
                cover.late[row] += max(0, at - begins - question.usual.idle[first, like])


@internal
def settle_all(cover: Cover, on: Stretch, question: Question) -> None:
    """Count all gaps that are still remembered, and what comes after the end of the chain."""
    room = cover.gap_op.shape[0]
    for back in range(room):
        gap = (cover.turn[on.stage] + back) % room
        settle(cover, gap, on, question)
        cover.gap_op[gap, on.stage] = NONE
    if cover.sides[on.stage] == 0:
        return
    list_all(cover, on)
    for c in range(on.ranks):
        until = cover.until[on.row + c]
        last = until
        for place in range(cover.side_op.shape[0]):
            if cover.side_op[place, on.stage] != NONE:
                last = max(last, cover.side_end[place, on.row + c])
        fill(cover, question.usual.idle.shape[0] - 1, on, c, (until, last), question)
        cover.until[on.row + c] = last
