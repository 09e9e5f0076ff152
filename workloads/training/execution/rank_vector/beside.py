"""Intervals beside the chain of a stage, remembered while they may lie in a gap of it."""

from __future__ import annotations

from cluster_sim.engine.jit import internal
from topologies.arrays import IntArray
from workloads.training.execution.rank_vector.cover import NONE, Cover, Stretch


@internal
def put_aside(
    cover: Cover, on: Stretch, code: int, start: IntArray, end: IntArray, op: int
) -> None:
    """Remember an interval beside the chain."""
    settled = cover.settled[on.row : on.row + on.ranks]
    spent = cover.spent[code, on.row : on.row + on.ranks]
    aside = cover.aside[on.row : on.row + on.ranks]
    behind = 0
    for c in range(on.ranks):
        spent[c] += end[c] - start[c]
        aside[c] += end[c] - start[c]
        behind |= (start[c] <= settled[c]) & (settled[c] > 0)
    cover.lost[0] += behind
    _lap(cover, on, code, start, end)
    for place in range(cover.side_op.shape[0]):
        if cover.side_op[place, on.stage] == NONE:
            cover.side_op[place, on.stage] = op
            cover.side_code[place, on.stage] = code
            cover.sides[on.stage] += 1
            begins = cover.side_start[place, on.row : on.row + on.ranks]
            ends = cover.side_end[place, on.row : on.row + on.ranks]
            for c in range(on.ranks):
                begins[c], ends[c] = start[c], end[c]
            return
    cover.lost[0] += 1


@internal
def _lap(cover: Cover, on: Stretch, code: int, start: IntArray, end: IntArray) -> None:
    """Note how much of an interval lies on those of its category that are remembered."""
    lies_on = 0
    lapped = cover.lapped[code, on.row : on.row + on.ranks]
    for place in range(cover.side_op.shape[0]):
        if cover.side_op[place, on.stage] == NONE or cover.side_code[place, on.stage] != code:
            continue
        others = cover.side_start[place, on.row : on.row + on.ranks]
        ends = cover.side_end[place, on.row : on.row + on.ranks]
        some = 0
        for c in range(on.ranks):
            some |= (others[c] < end[c]) & (ends[c] > start[c])
        lies_on += some
        if some and lies_on == 1:
            for c in range(on.ranks):
                lapped[c] += max(0, min(end[c], ends[c]) - max(start[c], others[c]))
        elif some and lies_on == 2:
            # More than one: what was added for the first is not all, nor is their sum.
            _lap_again(cover, on, place, code, start, end)
            return


@internal
def _lap_again(
    cover: Cover, on: Stretch, second: int, code: int, start: IntArray, end: IntArray
) -> None:
    """Note rank by rank how much of an interval lies on several, of which one was counted."""
    lapped = cover.lapped[code, on.row : on.row + on.ranks]
    for place in range(second):
        if cover.side_op[place, on.stage] == NONE or cover.side_code[place, on.stage] != code:
            continue
        others = cover.side_start[place, on.row : on.row + on.ranks]
        ends = cover.side_end[place, on.row : on.row + on.ranks]
        for c in range(on.ranks):
            lapped[c] -= max(0, min(end[c], ends[c]) - max(start[c], others[c]))
    list_all(cover, on)
    for c in range(on.ranks):
        at = start[c]
        while at < end[c]:
            until = covered_until(cover, on, c, (at, end[c]), (code, code))
            lapped[c] += until - at
            at, _ = idle_until(cover, on, c, (until, end[c]), (code, code), NONE)


@internal
def covered_until(
    cover: Cover, on: Stretch, c: int, within: tuple[int, int], codes: tuple[int, int]
) -> int:
    """Time until which listed intervals of some categories cover a rank without a break."""
    at, limit = within
    row = on.row + c
    further = True
    while further and at < limit:
        further = False
        for index in range(cover.near[0]):
            place = cover.near[1 + index]
            code = cover.side_code[place, on.stage]
            if (
                codes[0] <= code <= codes[1]
                and cover.side_start[place, row] <= at < cover.side_end[place, row]
            ):
                at = cover.side_end[place, row]
                further = True
    return min(at, limit)


@internal
def idle_until(
    cover: Cover, on: Stretch, c: int, within: tuple[int, int], codes: tuple[int, int], op: int
) -> tuple[int, int]:
    """Time at which the next of them begins and its op; the range ends with ``op``."""
    at, until = within
    row = on.row + c
    for index in range(cover.near[0]):
        place = cover.near[1 + index]
        code, begins = cover.side_code[place, on.stage], cover.side_start[place, row]
        if codes[0] <= code <= codes[1] and at < begins <= until:
            first = cover.side_op[place, on.stage]
            op = first if begins < until else min(op, first)
            until = begins
    return until, op


@internal
def list_touching(cover: Cover, on: Stretch, start: IntArray, end: IntArray, op: int) -> None:
    """List the remembered intervals that lie in a gap on any rank.

    One that begins as the gap ends counts where its op comes before ``op``: the first of the ops
    that begin then is the one that the gap is before.
    """
    cover.near[0] = 0
    for place in range(cover.side_op.shape[0]):
        if cover.side_op[place, on.stage] == NONE:
            continue
        begins = cover.side_start[place, on.row : on.row + on.ranks]
        ends = cover.side_end[place, on.row : on.row + on.ranks]
        some, before = 0, int(cover.side_op[place, on.stage] < op)
        for c in range(on.ranks):
            some |= (begins[c] < end[c] + before) & (ends[c] > start[c]) & (start[c] < end[c])
        if some:
            cover.near[0] += 1
            cover.near[cover.near[0]] = place


@internal
def list_all(cover: Cover, on: Stretch) -> None:
    """List all remembered intervals of a stage."""
    cover.near[0] = 0
    for place in range(cover.side_op.shape[0]):
        if cover.side_op[place, on.stage] != NONE:
            cover.near[0] += 1
            cover.near[cover.near[0]] = place


@internal
def forget(cover: Cover, on: Stretch, start: IntArray) -> None:
    """Forget the intervals that end before a gap on every rank."""
    for place in range(cover.side_op.shape[0]):
        if cover.side_op[place, on.stage] == NONE:
            continue
        ends = cover.side_end[place, on.row : on.row + on.ranks]
        after = 0
        for c in range(on.ranks):
            after |= ends[c] > start[c]
        if not after:
            cover.side_op[place, on.stage] = NONE
            cover.sides[on.stage] -= 1
