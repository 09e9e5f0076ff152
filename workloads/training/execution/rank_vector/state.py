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

    Attributes
    ----------
    key : uint64 array (ranks,)
        Number of each rank from which its draws are hashed.
    slow : int64 array (ranks,)
        Slowness of each rank, 0 for none; see :meth:`Disturbance.slowness`.
    table : int64 array
        Table of jitter.
    op_key : uint64 array (longest stream,)
        Number that the hash adds for each op.
    scaled : int64 array (durations, places of the table)
        Every jittered time of every different duration of a kernel, without slow ranks [ps].
    duration : int64 array (kernels of all runs,)
        Row of ``scaled`` of each kernel.
    slowed : bool array (blocks, stages)
        Whether a stage of a block has a slow rank, or times are not tabulated at all.
    disturbed : bool
        Whether kernels are disturbed at all.
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

    Attributes
    ----------
    end : int64 array
        Clocks of a block, where the tape has them, or of all blocks one after the other [ps].
    stride : int
        Distance from one block's clocks to the next; 0 where all blocks use the same.
    ready : int64 array
        Time at which the ranks evaluated so far are ready for each call of each group of the wide
        exchanges [ps].
    meet : int64 array
        Time at which all ranks are ready, so that the call starts [ps].
    meet_at : int64 array (exchanges,)
        Where the calls of each wide exchange begin in ``ready`` and ``meet``.
    start : int64 array (roles, widest stage of a block)
        Start of the latest instruction on each rank [ps].
    place, drawn : uint64 and int64 array (widest stage of a block,)
        Draw of the latest kernel on each rank: its place in the table of jitter, and its value.
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

    Attributes
    ----------
    cover : Cover
        Coverage of time by the intervals of the block that is evaluated.
    question : Question
        Notes to take, by its ``mode``.
    alone, place : int64 arrays
        See :class:`workloads.training.execution.rank_vector.unions.Unions`.
    first_start : int64 array (nodes,)
        Earliest start of a node on any rank [ps].
    covered : int64 array (unions, ranks)
        Time covered by each union [ps].
    spent : int64 array (categories, ranks)
        Sum of the intervals of each category [ps].
    late, until : int64 array (ranks,)
        Waiting beyond the usual, and end of the last op [ps].
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
