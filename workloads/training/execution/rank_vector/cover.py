"""Coverage of a rank's time by unions of categories, from intervals that come roughly by start.

The intervals of a stage's chain never overlap, see
:mod:`workloads.training.execution.rank_vector.nodes`, so only the gaps between them need to be
examined. The latest gaps are remembered, and so are the intervals beside the chain that may still
lie in one. Before a gap is forgotten it is settled: the part that intervals beside the chain fill
counts for the unions of their categories, and the rest is idle time. All ranks of a stage do the
same in the same order, so array loops settle a gap on all of them at once; only where several
intervals lie in a gap, its ranks are examined one by one. An interval that comes after its gaps are
settled is counted as lost, and the run is repeated with more room, so that the sums are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import inlined, internal
from topologies.support.arrays import IntArray
from workloads.training.execution.jitter import KeyArray

ROOM = 2  # gaps of a chain that are remembered at first
SIDES = 8  # intervals beside the chain that are remembered for each gap
NOTHING, STARTS, IGNORE, RECORD, COMPARE = range(5)
"""Notes of an evaluation: nothing; the first start of each node; or the time that unions cover.
With that, idle time before an op is ignored, recorded, or compared with the recorded time."""
NONE = -1  # op of a place where nothing is remembered


class Cover(NamedTuple):
    """Coverage by unions, for each row of a block."""

    # until, settled: (rows,): end of the chain so far, and end of its latest settled gap [ps]
    until: IntArray
    settled: IntArray
    late: IntArray  # (rows,): idle time in excess of the time recorded before the same op [ps]
    spent: IntArray  # (categories, rows): sum of the intervals of a category [ps]
    aside: IntArray  # (rows,): sum of the intervals beside the chain [ps]
    # (unions of several categories, rows): time in gaps of the chain that a union covers [ps]
    filled: IntArray
    # (categories, rows): time in which an interval beside the chain lies on an earlier one of its
    # category [ps]
    lapped: IntArray
    # gap_start, gap_end: (room, rows): gaps of the chain in the order in which they came; empty
    # where the two are equal
    gap_start: IntArray
    gap_end: IntArray
    gap_op: IntArray  # (room, stages): op that begins at the end of a gap
    turn: IntArray  # (stages,): place of the oldest gap, which the next gap takes
    # side_start, side_end: (SIDES · room, rows): remembered intervals beside the chain
    side_start: IntArray
    side_end: IntArray
    # side_op, side_code: (SIDES · room, stages): ops and categories of these intervals
    side_op: IntArray
    side_code: IntArray
    sides: IntArray  # (stages,): number of intervals beside the chain that are remembered
    # (1 + SIDES · room,): number of intervals that may lie in the gap that is being settled, then
    # their places
    near: IntArray
    lost: IntArray  # (1,): number of intervals that came too late or found no place


class Usual(NamedTuple):
    """Idle time before each op without disturbance, for each class of ranks that do the same."""

    # (ops + 1, classes): idle time before each op; the last row is the time after the last op [ps]
    idle: IntArray
    like: IntArray  # (ranks,): class of each rank, by its place in the layout


class Question(NamedTuple):
    """Answers that an evaluation wants from a cover."""

    top: IntArray  # (unions of several categories,): last category of each union
    usual: Usual  # idle times that are recorded, or compared with
    mode: int  # notes to take: ``NOTHING``, ``STARTS``, ``IGNORE``, ``RECORD`` or ``COMPARE``


class Stretch(NamedTuple):
    """The ranks of one stage in one block."""

    stage: int
    ranks: int  # number of ranks
    row: int  # first row in the arrays of a block
    place: int  # place of the first rank in the layout


def new_cover(unions: int, categories: int, sizes: tuple[int, int], room: int) -> Cover:
    """Return a cover without intervals."""
    stages, rows = sizes

    def flat(*shape: int) -> IntArray:
        return np.zeros((*shape, rows), np.int64)

    def free(places: int) -> IntArray:
        return np.full((places, stages), NONE, np.int64)

    return Cover(
        until=flat(),
        settled=flat(),
        late=flat(),
        spent=flat(categories),
        aside=flat(),
        filled=flat(unions),
        lapped=flat(categories),
        gap_start=flat(room),
        gap_end=flat(room),
        gap_op=free(room),
        turn=np.zeros(stages, np.int64),
        side_start=flat(SIDES * room),
        side_end=flat(SIDES * room),
        side_op=free(SIDES * room),
        side_code=free(SIDES * room),
        sides=np.zeros(stages, np.int64),
        near=np.zeros(1 + SIDES * room, np.int64),
        lost=np.zeros(1, np.int64),
    )


@internal
def clear(cover: Cover) -> None:
    """Clear a cover for the next block."""
    # Bounds of intervals need not be cleared: they count only where the op of their place is set.
    cover.until[:] = 0
    cover.settled[:] = 0
    cover.late[:] = 0
    cover.spent[:] = 0
    cover.aside[:] = 0
    cover.filled[:] = 0
    cover.lapped[:] = 0
    cover.gap_op[:] = NONE
    cover.side_op[:] = NONE
    cover.sides[:] = 0


# Intervals beside the chain of a stage, which are remembered while they may lie in its gaps.


@internal
def put_aside(
    cover: Cover, stretch: Stretch, code: int, start: IntArray, end: IntArray, op: int
) -> None:
    """Remember an interval beside the chain; count it as lost if it is late or finds no place."""
    settled = cover.settled[stretch.row : stretch.row + stretch.ranks]
    spent = cover.spent[code, stretch.row : stretch.row + stretch.ranks]
    aside = cover.aside[stretch.row : stretch.row + stretch.ranks]
    too_late = 0
    for c in range(stretch.ranks):
        spent[c] += end[c] - start[c]
        aside[c] += end[c] - start[c]
        too_late |= (start[c] <= settled[c]) & (settled[c] > 0)
    cover.lost[0] += too_late
    _add_overlap(cover, stretch, code, start, end)
    for place in range(cover.side_op.shape[0]):
        if cover.side_op[place, stretch.stage] == NONE:
            cover.side_op[place, stretch.stage] = op
            cover.side_code[place, stretch.stage] = code
            cover.sides[stretch.stage] += 1
            begins = cover.side_start[place, stretch.row : stretch.row + stretch.ranks]
            ends = cover.side_end[place, stretch.row : stretch.row + stretch.ranks]
            for c in range(stretch.ranks):
                begins[c], ends[c] = start[c], end[c]
            return
    cover.lost[0] += 1


@internal
def _add_overlap(cover: Cover, stretch: Stretch, code: int, start: IntArray, end: IntArray) -> None:
    """Add the time that an interval shares with remembered intervals of its category."""
    # These may overlap each other, so their overlaps cannot be summed.
    list_touching(cover, stretch, start, end, NONE)
    lapped = cover.lapped[code, stretch.row : stretch.row + stretch.ranks]
    for index in range(cover.near[0]):
        if cover.side_code[cover.near[1 + index], stretch.stage] == code:
            for c in range(stretch.ranks):
                at = start[c]
                while at < end[c]:
                    until = covered_until(cover, stretch, c, (at, end[c]), (code, code))
                    lapped[c] += until - at
                    at, _ = idle_until(cover, stretch, c, (until, end[c]), (code, code), NONE)
            return


@internal
def covered_until(
    cover: Cover, stretch: Stretch, c: int, within: tuple[int, int], codes: tuple[int, int]
) -> int:
    """Time until which listed intervals of some categories cover a rank without a break."""
    # ``within`` is the range of times to look at, ``codes`` the first and last category.
    at, limit = within
    row = stretch.row + c
    extended = True
    while extended and at < limit:
        extended = False
        for index in range(cover.near[0]):
            place = cover.near[1 + index]
            code = cover.side_code[place, stretch.stage]
            if (
                codes[0] <= code <= codes[1]
                and cover.side_start[place, row] <= at < cover.side_end[place, row]
            ):
                at = cover.side_end[place, row]
                extended = True
    return min(at, limit)


@internal
def idle_until(
    cover: Cover, stretch: Stretch, c: int, within: tuple[int, int], codes: tuple[int, int], op: int
) -> tuple[int, int]:
    """Time at which the next listed interval of some categories begins, and its op."""
    # Where none begins in the range ``within``, the result is the end of the range and ``op``.
    at, until = within
    row = stretch.row + c
    for index in range(cover.near[0]):
        place = cover.near[1 + index]
        code, begins = cover.side_code[place, stretch.stage], cover.side_start[place, row]
        if codes[0] <= code <= codes[1] and at < begins <= until:
            first = cover.side_op[place, stretch.stage]
            op = first if begins < until else min(op, first)
            until = begins
    return until, op


@internal
def list_touching(cover: Cover, stretch: Stretch, start: IntArray, end: IntArray, op: int) -> None:
    """List the remembered intervals that lie in a gap on any rank."""
    # An interval that begins exactly as the gap ends is listed if its op is numbered below ``op``:
    # idle time counts as before the first of the ops that begin at its end.
    cover.near[0] = 0
    for place in range(cover.side_op.shape[0]):
        if cover.side_op[place, stretch.stage] == NONE:
            continue
        begins = cover.side_start[place, stretch.row : stretch.row + stretch.ranks]
        ends = cover.side_end[place, stretch.row : stretch.row + stretch.ranks]
        meets, before = 0, int(cover.side_op[place, stretch.stage] < op)
        for c in range(stretch.ranks):
            meets |= (begins[c] < end[c] + before) & (ends[c] > start[c]) & (start[c] < end[c])
        if meets:
            cover.near[0] += 1
            cover.near[cover.near[0]] = place


@internal
def list_all(cover: Cover, stretch: Stretch) -> None:
    """List all remembered intervals of a stage."""
    cover.near[0] = 0
    for place in range(cover.side_op.shape[0]):
        if cover.side_op[place, stretch.stage] != NONE:
            cover.near[0] += 1
            cover.near[cover.near[0]] = place


@internal
def forget(cover: Cover, stretch: Stretch, start: IntArray) -> None:
    """Forget the intervals that end before a gap on every rank."""
    for place in range(cover.side_op.shape[0]):
        if cover.side_op[place, stretch.stage] == NONE:
            continue
        ends = cover.side_end[place, stretch.row : stretch.row + stretch.ranks]
        after = 0
        for c in range(stretch.ranks):
            after |= ends[c] > start[c]
        if not after:
            cover.side_op[place, stretch.stage] = NONE
            cover.sides[stretch.stage] -= 1


# Growth of a stage's chain, and settlement of its gaps, which intervals beside it may fill.


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
    cover: Cover, op: int, stretch: Stretch, start: IntArray, end: IntArray, question: Question
) -> None:
    """Record the idle times before an op, or add up by how much they exceed the recorded ones."""
    like = question.usual.like[stretch.place : stretch.place + stretch.ranks]
    late = cover.late[stretch.row : stretch.row + stretch.ranks]
    if question.mode == RECORD:
        for c in range(stretch.ranks):
            if start[c] < end[c]:
                question.usual.idle[op, like[c]] = end[c] - start[c]
    elif question.mode == COMPARE:
        for c in range(stretch.ranks):
            late[c] += max(0, end[c] - start[c] - question.usual.idle[op, like[c]])


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
    """Settle a gap in which one interval beside the chain lies."""
    # The gap's idle time is then in two parts: before the interval, and behind it.
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
    cover: Cover, op: int, stretch: Stretch, c: int, gap: tuple[int, int], question: Question
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


class Kernels(NamedTuple):
    """Disturbance of kernels; ranks are in the order of the layout."""

    key: KeyArray  # (ranks,): number of each rank from which its draws are hashed
    slow: IntArray  # (ranks,): slowness of each rank, 0 for none; see :meth:`Disturbance.slowness`
    table: IntArray  # table of jitter
    op_key: KeyArray  # (longest stream,): number that the hash adds for each op
    disturbed: bool  # whether kernels are disturbed at all


class Clocks(NamedTuple):
    """State that changes as instructions are carried out."""

    # Clocks of a block, where the tape has them, or of all blocks one after the other [ps]
    end: IntArray
    stride: int  # distance from one block's clocks to the next; 0 where all blocks use the same
    # Time at which the ranks evaluated so far are ready for each call of each group of the wide
    # exchanges [ps]
    ready: IntArray
    meet: IntArray  # time at which all ranks are ready, so that the call starts [ps]
    # (exchanges,): where the calls of each wide exchange begin in ``ready`` and ``meet``
    meet_at: IntArray
    # (roles, widest stage of a block): start of the latest instruction on each rank [ps]
    start: IntArray
    # place, drawn: (widest stage of a block,): draw of the latest kernel on each rank: its place in
    # the table of jitter, and its value
    place: KeyArray
    drawn: IntArray


class Notes(NamedTuple):
    """Notes that are taken while clocks advance."""

    cover: Cover  # coverage of time by the intervals of the block that is evaluated
    question: Question  # notes to take, by its ``mode``
    # alone, place: see :class:`workloads.training.execution.rank_vector.nodes.Unions`
    alone: IntArray
    place: IntArray
    first_start: IntArray  # (nodes,): earliest start of a node on any rank [ps]
    covered: IntArray  # (unions, ranks): time covered by each union [ps]
    spent: IntArray  # (categories, ranks): sum of the intervals of each category [ps]
    # late, until: (ranks,): waiting beyond the usual, and end of the last op [ps]
    late: IntArray
    until: IntArray
