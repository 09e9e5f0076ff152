"""Intervals beside the chain of a stage, which are remembered while they may lie in its gaps."""

from __future__ import annotations

from cluster_sim.engine.compiler.jit import internal
from topologies.arrays import IntArray
from workloads.training.execution.rank_vector.cover import NONE, Cover, Stretch


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
    overlaps = 0
    lapped = cover.lapped[code, stretch.row : stretch.row + stretch.ranks]
    for place in range(cover.side_op.shape[0]):
        if (
            cover.side_op[place, stretch.stage] == NONE
            or cover.side_code[place, stretch.stage] != code
        ):
            continue
        others = cover.side_start[place, stretch.row : stretch.row + stretch.ranks]
        ends = cover.side_end[place, stretch.row : stretch.row + stretch.ranks]
        meets = 0
        for c in range(stretch.ranks):
            meets |= (others[c] < end[c]) & (ends[c] > start[c])
        overlaps += meets
        if meets and overlaps == 1:
            for c in range(stretch.ranks):
                lapped[c] += max(0, min(end[c], ends[c]) - max(start[c], others[c]))
        elif meets and overlaps == 2:
            # The remembered ones may overlap each other, so their overlaps cannot be summed.
            _add_union_of_overlaps(cover, stretch, place, code, start, end)
            return


@internal
def _add_union_of_overlaps(
    cover: Cover, stretch: Stretch, second: int, code: int, start: IntArray, end: IntArray
) -> None:
    """Add the time that an interval shares with any remembered one, rank by rank.

    The overlap with the one before place ``second``, which was added already, is taken off first.
    """
    lapped = cover.lapped[code, stretch.row : stretch.row + stretch.ranks]
    for place in range(second):
        if (
            cover.side_op[place, stretch.stage] == NONE
            or cover.side_code[place, stretch.stage] != code
        ):
            continue
        others = cover.side_start[place, stretch.row : stretch.row + stretch.ranks]
        ends = cover.side_end[place, stretch.row : stretch.row + stretch.ranks]
        for c in range(stretch.ranks):
            lapped[c] -= max(0, min(end[c], ends[c]) - max(start[c], others[c]))
    list_all(cover, stretch)
    for c in range(stretch.ranks):
        at = start[c]
        while at < end[c]:
            until = covered_until(cover, stretch, c, (at, end[c]), (code, code))
            lapped[c] += until - at
            at, _ = idle_until(cover, stretch, c, (until, end[c]), (code, code), NONE)


@internal
def covered_until(
    cover: Cover, stretch: Stretch, c: int, within: tuple[int, int], codes: tuple[int, int]
) -> int:
    """Time until which listed intervals of some categories cover a rank without a break.

    ``within`` is the range of times to look at, ``codes`` the first and last category.
    """
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
    """Time at which the next listed interval of some categories begins, and its op.

    Where none begins in the range ``within``, the result is the end of the range and ``op``.
    """
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
    """List the remembered intervals that lie in a gap on any rank.

    An interval that begins exactly as the gap ends is listed if its op is numbered below ``op``:
    idle time counts as before the first of the ops that begin at its end.
    """
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
