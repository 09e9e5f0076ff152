"""Coverage of a rank's time by unions of categories, as intervals come in roughly by start.

The chain of a stage covers time by itself, see
:mod:`workloads.training.execution.rank_vector.chain`, so only its gaps are looked at. The latest
gaps are remembered, and the intervals beside the chain for as long as one may lie on them. A gap
that leaves is settled: what intervals beside the chain fill of it counts for their unions, the rest
is idle time. Ranks of a stage do the same in the same order, so that is done by array loops; only
where several intervals meet in a gap, its ranks are looked at one by one. An interval that comes
too late for its gaps is noticed, and the run repeated with more room, so sums are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.jit import internal
from topologies.arrays import IntArray

ROOM = 2
"""Gaps of a chain that are remembered at first."""
SIDES = 8
"""Intervals beside the chain that are remembered for each gap."""
NOTHING, STARTS, IGNORE, RECORD, COMPARE = range(5)
"""Ways to take notes: nothing; when each node starts first; or what unions cover, and of the idle
time before an op nothing, its length, or what exceeds the length recorded."""
NONE = -1
"""Op of a place where nothing is remembered."""


class Cover(NamedTuple):
    """Coverage by unions, for each row of a block.

    Attributes
    ----------
    until, settled : int64 array (rows,)
        Ends of the chain so far and of its latest gap that is settled [ps].
    late : int64 array (rows,)
        Idle time beyond what was noted before the same op [ps].
    spent : int64 array (categories, rows)
        Sum of the intervals of a category [ps].
    aside : int64 array (rows,)
        Sum of the intervals beside the chain [ps].
    filled : int64 array (unions of several categories, rows)
        Time in gaps of the chain that a union covers [ps].
    lapped : int64 array (categories, rows)
        Time in which an interval beside the chain lies on an earlier one of its category [ps].
    gap_start, gap_end : int64 array (room, rows)
        Gaps of the chain in the order in which they came; empty where the two are equal.
    gap_op : int64 array (room, stages)
        Op before which a gap was.
    turn : int64 array (stages,)
        Place of the oldest gap, which the next one takes.
    side_start, side_end : int64 array (SIDES · room, rows)
        Intervals beside the chain.
    side_op, side_code : int64 array (SIDES · room, stages)
        Their ops and categories.
    sides : int64 array (stages,)
        Number of them that are remembered.
    near : int64 array (1 + SIDES · room,)
        Number of them that may lie in the interval that is looked at, then their places.
    lost : int64 array (1,)
        Intervals that came too late or found no place.
    """

    until: IntArray
    settled: IntArray
    late: IntArray
    spent: IntArray
    aside: IntArray
    filled: IntArray
    lapped: IntArray
    gap_start: IntArray
    gap_end: IntArray
    gap_op: IntArray
    turn: IntArray
    side_start: IntArray
    side_end: IntArray
    side_op: IntArray
    side_code: IntArray
    sides: IntArray
    near: IntArray
    lost: IntArray


class Usual(NamedTuple):
    """Idle time before each op of each class of ranks.

    Attributes
    ----------
    idle : int64 array (ops + 1, classes)
        The last is what follows the last op [ps].
    like : int64 array (ranks,)
        Class of each rank, by its place in the layout.
    same : int64 array (ranks,)
        Changes of class from the first rank to each, by its place in the layout.
    """

    idle: IntArray
    like: IntArray
    same: IntArray


class Question(NamedTuple):
    """Answers that are wanted of a cover.

    Attributes
    ----------
    top : int64 array (unions of several categories,)
        Last category of each.
    usual : Usual
    mode : int
    """

    top: IntArray
    usual: Usual
    mode: int


class Stretch(NamedTuple):
    """The ranks of a stage in a block.

    Attributes
    ----------
    stage : int
    ranks : int
    row : int
        First row.
    place : int
        Place of the first in the layout.
    """

    stage: int
    ranks: int
    row: int
    place: int


def usual_of(idle: IntArray, like: IntArray) -> Usual:
    """Return idle times with the places where the class of ranks changes."""
    return Usual(idle, like, np.cumsum(np.diff(like, prepend=like[:1]) != 0))


def new_cover(unions: int, categories: int, sizes: tuple[int, int], room: int) -> Cover:
    """Return a cover with nothing on it yet; ``sizes`` are stages and rows."""
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
    """Take everything off again."""
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
