"""Who gets each picosecond of a rank, kept up to date as intervals come in roughly by start.

A row's time so far is a list of segments, each of one category; a new interval takes what is
idle or goes to a later category. Old segments are settled to make room. An interval that would
have changed a settled one is noticed, and the run repeated with more room, so sums are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.jit import inlined, internal
from cluster_sim.schedule import IntArray
from workloads.training.rank_vector.nodes import IDLE

ROOM = 32
"""Segments that a row keeps at first."""
IGNORE, RECORD, COMPARE = range(3)
"""What to do with the idle time before an op: nothing, note it, or see what exceeds the note."""


class Cover(NamedTuple):
    """Segments of rows, each from its start to that of the next, the last one to ``until``.

    Attributes
    ----------
    start, code, op : int arrays (rows, room)
        Start [ps], category, and the op that began it: the smallest if several did.
    held, until, settled : int64 array (rows,)
        Segments now held, end of the last one [ps], and how many were settled.
    spent : int64 array (rows, categories + 1)
        Time by category, idle last [ps].
    late : int64 array (rows,)
        Idle time beyond what was noted before the same op [ps].
    spare_start, spare_code, spare_op : int arrays (room,)
    lost : int64 array (1,)
        Intervals that came too late.
    """

    start: IntArray
    code: IntArray
    op: IntArray
    held: IntArray
    until: IntArray
    settled: IntArray
    spent: IntArray
    late: IntArray
    spare_start: IntArray
    spare_code: IntArray
    spare_op: IntArray
    lost: IntArray


def new_cover(rows: int, room: int) -> Cover:
    """Return rows with nothing on them yet."""
    return Cover(
        np.empty((rows, room), np.int64),
        np.empty((rows, room), np.int8),
        np.empty((rows, room), np.int32),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        np.zeros((rows, IDLE + 1), np.int64),
        np.zeros(rows, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int8),
        np.empty(room, np.int32),
        np.zeros(1, np.int64),
    )


@internal
def clear(cover: Cover) -> None:
    """Take everything off again."""
    cover.held[:] = 0
    cover.until[:] = 0
    cover.settled[:] = 0
    cover.spent[:] = 0
    cover.late[:] = 0


@inlined
def put(
    cover: Cover, row: int, start: int, end: int, code: int, op: int, noted: IntArray, mode: int
) -> None:
    """Add an interval of an op; ``noted`` has the idle time before each op."""
    until = cover.until[row]
    if cover.held[row] + 3 > cover.start.shape[1]:
        settle(cover, row, cover.held[row] // 2, noted, mode)
    if start < until:
        _put_late(cover, row, start, end, code, op)
        return
    if start > until:
        _push(cover, row, until, IDLE, -1)
        cover.spent[row, IDLE] += start - until
    _push(cover, row, start, code, op)
    cover.spent[row, code] += end - start
    cover.until[row] = end


@internal
def _push(cover: Cover, row: int, start: int, code: int, op: int) -> None:
    """Append a segment, or let the last one of the same category go on."""
    n = cover.held[row]
    if n > 0 and cover.code[row, n - 1] == code:
        return
    cover.start[row, n] = start
    cover.code[row, n] = code
    cover.op[row, n] = op
    cover.held[row] = n + 1


@internal
def _put_late(cover: Cover, row: int, start: int, end: int, code: int, op: int) -> None:
    """Add an interval that begins before the latest end."""
    n, until = cover.held[row], cover.until[row]
    if cover.settled[row] > 0 and start <= cover.start[row, 0]:
        cover.lost[0] += 1
        return
    first = n - 1
    while cover.start[row, first] > start:
        first -= 1
    for i in range(first, n):
        cover.spare_start[i] = cover.start[row, i]
        cover.spare_code[i] = cover.code[row, i]
        cover.spare_op[i] = cover.op[row, i]
    cover.held[row] = first
    for i in range(first, n):
        ends = cover.spare_start[i + 1] if i + 1 < n else until
        was = cover.spare_start[i], ends, cover.spare_code[i], cover.spare_op[i]
        _merge(cover, row, was, (start, min(end, until), code, op))
    if end > until:
        _push(cover, row, until, code, op)
        cover.spent[row, code] += end - until
        cover.until[row] = end


@internal
def _merge(
    cover: Cover, row: int, was: tuple[int, int, int, int], new: tuple[int, int, int, int]
) -> None:
    """Append a former segment, less what the new interval takes of it."""
    begins, ends, code, op = was
    start, end, new_code, new_op = new
    if begins == start and code != IDLE:
        op = new_op = min(op, new_op)
    if code <= new_code or ends <= start or begins >= end:
        _push(cover, row, begins, code, op)
        return
    if begins < start:
        _push(cover, row, begins, code, op)
    low, high = max(begins, start), min(ends, end)
    _push(cover, row, low, new_code, new_op)
    cover.spent[row, code] -= high - low
    cover.spent[row, new_code] += high - low
    if ends > end:
        _push(cover, row, end, code, op)


@internal
def settle(cover: Cover, row: int, count: int, noted: IntArray, mode: int) -> None:
    """Give up the first segments, after a look at the idle ones."""
    n = cover.held[row]
    for i in range(count):
        if mode != IGNORE and cover.code[row, i] == IDLE:
            wait = cover.start[row, i + 1] - cover.start[row, i]
            if mode == RECORD:
                noted[cover.op[row, i + 1]] = wait
            else:
                cover.late[row] += max(0, wait - noted[cover.op[row, i + 1]])
    for i in range(count, n):
        cover.start[row, i - count] = cover.start[row, i]
        cover.code[row, i - count] = cover.code[row, i]
        cover.op[row, i - count] = cover.op[row, i]
    cover.held[row] = n - count
    cover.settled[row] += count
