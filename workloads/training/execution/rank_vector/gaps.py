"""Growth of a stage's chain, and settlement of its gaps, which intervals beside it may fill."""

from __future__ import annotations

from cluster_sim.engine.compiler.jit import inlined, internal
from topologies.arrays import IntArray
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
from workloads.training.execution.rank_vector.side_intervals import (
    covered_until,
    forget,
    idle_until,
    list_all,
    list_touching,
)


@inlined
def extend(cover: Cover, stretch: Stretch, code: int, start: IntArray, end: IntArray) -> None:
    """Extend the chain by an interval that begins exactly as the one before it ends."""
    spent = cover.spent[code, stretch.row : stretch.row + stretch.ranks]
    until = cover.until[stretch.row : stretch.row + stretch.ranks]
    for c in range(stretch.ranks):
        spent[c] += end[c] - start[c]
        until[c] = end[c]


@inlined
def extend_after_gap(
    cover: Cover,
    stretch: Stretch,
    code: int,
    start: IntArray,
    end: IntArray,
    op: int,
    question: Question,
) -> None:
    """Extend the chain by an interval with a gap before it, which takes the oldest gap's place."""
    gap = cover.turn[stretch.stage]
    cover.turn[stretch.stage] = (gap + 1) % cover.gap_op.shape[0]
    settle(cover, gap, stretch, question)
    spent = cover.spent[code, stretch.row : stretch.row + stretch.ranks]
    until = cover.until[stretch.row : stretch.row + stretch.ranks]
    gap_start = cover.gap_start[gap, stretch.row : stretch.row + stretch.ranks]
    gap_end = cover.gap_end[gap, stretch.row : stretch.row + stretch.ranks]
    cover.gap_op[gap, stretch.stage] = op
    for c in range(stretch.ranks):
        gap_start[c] = until[c]
        gap_end[c] = start[c]
        spent[c] += end[c] - start[c]
        until[c] = end[c]


@internal
def settle(cover: Cover, gap: int, stretch: Stretch, question: Question) -> None:
    """Settle the gap of one place on all ranks of a stretch, so that the place is free again."""
    op = cover.gap_op[gap, stretch.stage]
    if op == NONE:
        return
    start = cover.gap_start[gap, stretch.row : stretch.row + stretch.ranks]
    end = cover.gap_end[gap, stretch.row : stretch.row + stretch.ranks]
    settled = cover.settled[stretch.row : stretch.row + stretch.ranks]
    cover.near[0] = 0
    if cover.sides[stretch.stage] > 0:
        list_touching(cover, stretch, start, end, NONE if question.mode == IGNORE else op)
    if cover.near[0] == 0:
        _note_idle(cover, op, stretch, start, end, question)
    elif cover.near[0] == 1 and question.mode != RECORD:
        _fill_by_one(cover, op, cover.near[1], stretch, start, end, question)
    else:
        for c in range(stretch.ranks):
            settle_rank(cover, op, stretch, c, (start[c], end[c]), question)
    if cover.sides[stretch.stage] > 0:
        forget(cover, stretch, start)
    for c in range(stretch.ranks):
        settled[c] = end[c] if start[c] < end[c] else settled[c]


@inlined
def _note_idle(
    cover: Cover,
    op: int,
    stretch: Stretch,
    start: IntArray,
    end: IntArray,
    question: Question,
) -> None:
    """Record the idle times before an op, or add up by how much they exceed the recorded ones."""
    like = question.usual.like[stretch.place : stretch.place + stretch.ranks]
    late = cover.late[stretch.row : stretch.row + stretch.ranks]
    if question.mode == RECORD:
        for c in range(stretch.ranks):
            if start[c] < end[c]:
                question.usual.idle[op, like[c]] = end[c] - start[c]
    elif question.mode == COMPARE and _one_class(question.usual, stretch):
        expected = question.usual.idle[op, like[0]]
        for c in range(stretch.ranks):
            late[c] += max(0, end[c] - start[c] - expected)
    elif question.mode == COMPARE:
        for c in range(stretch.ranks):
            late[c] += max(0, end[c] - start[c] - question.usual.idle[op, like[c]])


@inlined
def _one_class(usual: Usual, stretch: Stretch) -> bool:
    """Return whether all ranks of a stretch are of one class."""
    return (
        stretch.ranks > 0
        and usual.same[stretch.place] == usual.same[stretch.place + stretch.ranks - 1]
    )


@internal
def _fill_by_one(
    cover: Cover,
    op: int,
    place: int,
    stretch: Stretch,
    start: IntArray,
    end: IntArray,
    question: Question,
) -> None:
    """Settle a gap in which one interval beside the chain lies.

    The gap's idle time is then in two parts: before the interval, and behind it.
    """
    begins = cover.side_start[place, stretch.row : stretch.row + stretch.ranks]
    ends = cover.side_end[place, stretch.row : stretch.row + stretch.ranks]
    for union in range(len(question.top)):
        if cover.side_code[place, stretch.stage] <= question.top[union]:
            filled = cover.filled[union, stretch.row : stretch.row + stretch.ranks]
            for c in range(stretch.ranks):
                filled[c] += max(0, min(end[c], ends[c]) - max(start[c], begins[c]))
    if question.mode == IGNORE:
        return
    late = cover.late[stretch.row : stretch.row + stretch.ranks]
    like = question.usual.like[stretch.place : stretch.place + stretch.ranks]
    other = cover.side_op[place, stretch.stage]
    either = min(op, other)
    for c in range(stretch.ranks):
        first = other if begins[c] < end[c] else either if begins[c] == end[c] else op
        before = min(begins[c], end[c]) - start[c] - question.usual.idle[first, like[c]]
        behind = end[c] - max(ends[c], start[c]) - question.usual.idle[op, like[c]]
        late[c] += max(0, before) + (max(0, behind) if begins[c] < end[c] else 0)


@internal
def settle_rank(
    cover: Cover,
    op: int,
    stretch: Stretch,
    c: int,
    gap: tuple[int, int],
    question: Question,
) -> None:
    """Settle a gap of one rank in which several intervals may lie."""
    row, like = stretch.row + c, question.usual.like[stretch.place + c]
    for union in range(len(question.top)):
        codes, at = (0, question.top[union]), gap[0]
        cover.filled[union, row] += gap[1] - gap[0]
        while at < gap[1]:
            begins = covered_until(cover, stretch, c, (at, gap[1]), codes)
            at, first = idle_until(cover, stretch, c, (begins, gap[1]), codes, op)
            cover.filled[union, row] -= at - begins
            # Only gaps of the first union, that of all categories, are idle time.
            if union > 0 or begins == at or question.mode == IGNORE:
                continue
            if question.mode == RECORD:
                question.usual.idle[first, like] = at - begins
            else:
                cover.late[row] += max(0, at - begins - question.usual.idle[first, like])


@internal
def settle_all(cover: Cover, stretch: Stretch, question: Question) -> None:
    """Settle all gaps that are still remembered, and the time after the end of the chain."""
    room = cover.gap_op.shape[0]
    for back in range(room):
        gap = (cover.turn[stretch.stage] + back) % room
        settle(cover, gap, stretch, question)
        cover.gap_op[gap, stretch.stage] = NONE
    if cover.sides[stretch.stage] == 0:
        return
    list_all(cover, stretch)
    for c in range(stretch.ranks):
        until = cover.until[stretch.row + c]
        last = until
        for place in range(cover.side_op.shape[0]):
            if cover.side_op[place, stretch.stage] != NONE:
                last = max(last, cover.side_end[place, stretch.row + c])
        settle_rank(cover, question.usual.idle.shape[0] - 1, stretch, c, (until, last), question)
        cover.until[stretch.row + c] = last
