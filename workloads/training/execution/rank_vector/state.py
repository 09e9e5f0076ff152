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
    """Disturbance of kernels; ranks are in the order of the layout."""

    key: KeyArray  # (ranks,): number of each rank from which its draws are hashed
    slow: IntArray  # (ranks,): slowness of each rank, 0 for none; see :meth:`Disturbance.slowness`
    table: IntArray  # table of jitter
    op_key: KeyArray  # (longest stream,): number that the hash adds for each op
    # (durations, places of the table): every jittered time of every different duration of a kernel,
    # without slow ranks [ps]
    scaled: IntArray
    duration: IntArray  # (kernels of all runs,): row of ``scaled`` of each kernel
    # (blocks, stages): whether a stage of a block has a slow rank, or times are not tabulated at
    # all
    slowed: BoolArray
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
    # alone, place: see :class:`workloads.training.execution.rank_vector.unions.Unions`
    alone: IntArray
    place: IntArray
    first_start: IntArray  # (nodes,): earliest start of a node on any rank [ps]
    covered: IntArray  # (unions, ranks): time covered by each union [ps]
    spent: IntArray  # (categories, ranks): sum of the intervals of each category [ps]
    # late, until: (ranks,): waiting beyond the usual, and end of the last op [ps]
    late: IntArray
    until: IntArray
