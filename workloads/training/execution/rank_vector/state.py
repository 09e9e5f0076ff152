"""Tables that an evaluation reads, and clocks and notes that it writes."""

from __future__ import annotations

from typing import NamedTuple

from topologies.arrays import BoolArray, IntArray
from workloads.training.execution.jitter import KeyArray
from workloads.training.execution.rank_vector.cover import Cover, Question


class Work(NamedTuple):
    """Columns of the nodes, see :class:`workloads.training.execution.rank_vector.nodes.Nodes`."""

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
    """Disturbance of kernels; ranks are in the order of the layout.

    ``key`` (ranks,): number of each rank from which its draws are hashed.
    ``slow`` (ranks,): slowness of each rank, 0 for none; see :meth:`Disturbance.slowness`.
    ``table``: table of jitter.
    ``op_key`` (longest stream,): number that the hash adds for each op.
    ``scaled`` (durations, places of the table): every jittered time of every different duration of
        a kernel, without slow ranks [ps].
    ``duration`` (kernels of all runs,): row of ``scaled`` of each kernel.
    ``slowed`` (blocks, stages): whether a stage of a block has a slow rank, or times are not
        tabulated at all.
    ``disturbed``: whether kernels are disturbed at all.
    """

    key: KeyArray
    slow: IntArray
    table: IntArray
    op_key: KeyArray
    scaled: IntArray
    duration: IntArray
    slowed: BoolArray
    disturbed: bool


class Clocks(NamedTuple):
    """State that changes as instructions are carried out.

    ``end``: clocks of a block, where the tape has them, or of all blocks one after the other [ps].
    ``stride``: distance from one block's clocks to the next; 0 where all blocks use the same.
    ``ready``: time at which the ranks evaluated so far are ready for each call of each group of the
        wide exchanges [ps].
    ``meet``: time at which all ranks are ready, so that the call starts [ps].
    ``meet_at`` (exchanges,): where the calls of each wide exchange begin in ``ready`` and ``meet``.
    ``start`` (roles, widest stage of a block): start of the latest instruction on each rank [ps].
    ``place, drawn`` (widest stage of a block,): draw of the latest kernel on each rank: its place
        in the table of jitter, and its value.
    """

    end: IntArray
    stride: int
    ready: IntArray
    meet: IntArray
    meet_at: IntArray
    start: IntArray
    place: KeyArray
    drawn: IntArray


class Notes(NamedTuple):
    """Notes that are taken while clocks advance.

    ``cover``: coverage of time by the intervals of the block that is evaluated.
    ``question``: notes to take, by its ``mode``.
    ``alone, place``: see :class:`workloads.training.execution.rank_vector.unions.Unions`.
    ``first_start`` (nodes,): earliest start of a node on any rank [ps].
    ``covered`` (unions, ranks): time covered by each union [ps].
    ``spent`` (categories, ranks): sum of the intervals of each category [ps].
    ``late, until`` (ranks,): waiting beyond the usual, and end of the last op [ps].
    """

    cover: Cover
    question: Question
    alone: IntArray
    place: IntArray
    first_start: IntArray
    covered: IntArray
    spent: IntArray
    late: IntArray
    until: IntArray
