"""Coverage of a rank's time by unions of categories, from intervals that come roughly by start.

The intervals of a stage's chain never overlap, see
:mod:`workloads.training.execution.rank_vector.chain`, so only the gaps between them need to be
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

from cluster_sim.engine.compiler.jit import internal
from topologies.arrays import IntArray

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
    # (ranks,): number of changes of class between the first rank and each, by its place in the
    # layout; ranks with equal numbers at both ends of a range are all of one class
    same: IntArray


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


def usual_of(idle: IntArray, like: IntArray) -> Usual:
    """Return idle times with the count of changes of class that ``same`` holds."""
    return Usual(idle, like, np.cumsum(np.diff(like, prepend=like[:1]) != 0))


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
    """Clear a cover for the next block.

    Bounds of intervals need not be cleared: they count only where the op of their place is set.
    """
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
