"""The Recording: the work of ranks in a trace of any tool, as columns."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cluster_sim.schedule.table import Codes
from topologies.arrays import IntArray
from topologies.errors import InputError

NOTHING, COMPUTE, MEMORY, SEND, RECEIVE, COLLECTIVE, HOST = range(7)
"""Kinds of nodes."""
KINDS = ("nothing", "compute", "memory", "send", "receive", "collective", "host")
OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "unknown")
"""Collectives that can be timed, and those whose recorded time is kept."""
UNKNOWN = OPERATIONS.index("unknown")
MOST_NODES = 2_000_000
"""Nodes that are read, of all ranks together."""
LARGEST = 2**62
"""Bound of every number of a node; what is beyond fits no clock, memory or cluster."""


@dataclass(frozen=True)
class Group:
    """Ranks that communicate.

    Attributes
    ----------
    name : str
        Its name in the trace.
    ranks : tuple of int
        Global ranks, empty for all of the cluster.
    """

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Recording:
    """Nodes of all ranks, one after the other, and the nodes that each waits for.

    Attributes
    ----------
    rank, lane : int array (nodes,)
        Global rank, and stream within it; nodes of a lane run one at a time.
    kind : int array (nodes,)
        One of ``KINDS``.
    duration_ps : int array (nodes,)
        As recorded, 0 where the trace states none [ps].
    size_bytes, flops : int array (nodes,)
        Bytes communicated or moved, and floating-point operations; 0 where not stated.
    name : Codes
    operation : int array (nodes,)
        Collectives: one of ``OPERATIONS``.
    group : int array (nodes,)
        Collectives: index into ``groups``, else -1.
    peer, tag : int array (nodes,)
        Sends and receives: the other rank, and the tag that tells messages apart.
    number : int array (nodes,)
        Number of the node in its file.
    src, dst, lag_ps : int array (edges,)
        Node ``dst`` starts no sooner than ``lag_ps`` after the end of node ``src``.
    groups : tuple of Group
    files : mapping of int to str
        File of each rank.
    facts : mapping
        ``format``, ``version``, ``world`` (ranks of the job, 0 where not stated), ``chip`` (that it
        was recorded on, empty where not stated), ``iterations``, ``recorded_s``.
    """

    rank: IntArray
    lane: IntArray
    kind: IntArray
    duration_ps: IntArray
    size_bytes: IntArray
    flops: IntArray
    name: Codes
    operation: IntArray
    group: IntArray
    peer: IntArray
    tag: IntArray
    number: IntArray
    src: IntArray
    dst: IntArray
    lag_ps: IntArray
    groups: tuple[Group, ...] = ()
    files: Mapping[int, str] = field(default_factory=dict)
    facts: Mapping[str, str | int | float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rank)

    def __repr__(self) -> str:
        return (
            f"Recording({len(self):,} nodes of {len(self.ranks)} ranks, "
            f"{len(self.src):,} dependencies, {self.facts.get('format', '')})"
        )

    @property
    def ranks(self) -> IntArray:
        """Ranks that have a file, ascending."""
        return np.unique(self.rank)

    def place(self, node: int) -> str:
        """Text on the place of a node, for messages: file, number, name."""
        name = self.name.names[int(self.name.code[node])]
        file = self.files.get(int(self.rank[node]), "trace")
        return f"{file}: node {self.number[node]} ({name[:60]})"


class Node(NamedTuple):
    """One entry of a trace; a tuple, because traces hold millions of them.

    Attributes
    ----------
    kind : int
        One of ``KINDS``.
    name : str
    number : int
        Number of the node in its file.
    duration_ps : int
        As recorded, 0 where the trace states none [ps].
    size_bytes, flops : int
        Bytes communicated or moved, and floating-point operations; 0 where not stated.
    operation : int
        Collectives: one of ``OPERATIONS``.
    group : Group, optional
        Collectives: the ranks that take part.
    peer, tag : int
        Sends and receives: the other rank, and the tag that tells messages apart.
    """

    kind: int
    name: str
    number: int
    duration_ps: int = 0
    size_bytes: int = 0
    flops: int = 0
    operation: int = UNKNOWN
    group: Group | None = None
    peer: int = -1
    tag: int = 0


class Columns:
    """Columns of a recording while it is being read, row by row; 96 bytes a node, 24 an edge."""

    WIDTH = 12
    """Numbers of a node."""

    def __init__(self) -> None:
        self.cells = array("q")
        self.names: dict[str, int] = {}
        self.edges = array("q")
        self.groups: dict[Group, int] = {}

    def __len__(self) -> int:
        return len(self.cells) // self.WIDTH

    def add(self, rank: int, lane: int, node: Node) -> int:
        """Add a node to a lane of a rank; returns its row.

        Raises
        ------
        InputError
            When the traces have more nodes than are read, and for a number that no column holds.
        """
        row = len(self)
        if row >= MOST_NODES:
            raise InputError(too_many_nodes("the traces", MOST_NODES))
        kind, name, number, *amounts, operation, group, peer, tag = node
        code = self.names.setdefault(name, len(self.names))
        group_code = -1 if group is None else self.groups.setdefault(group, len(self.groups))
        cells = (rank, lane, kind, *amounts, code, operation, group_code, peer, tag, number)
        if max(cells) >= LARGEST:
            raise InputError(
                f"node {str(number)[:40]} ({name[:60]}) of rank {str(rank)[:40]} has the number "
                f"{str(max(cells))[:40]}; numbers are below 2^62. Correct the trace."
            )
        self.cells.extend(cells)
        return row

    def link(self, src: int, dst: int, lag_ps: int = 0) -> None:
        """Let one node wait for another."""
        self.edges.extend((src, dst, lag_ps))

    def reorder(self, first: int, order: Sequence[int]) -> None:
        """Put the nodes from row ``first`` on into this order, before any edge names them."""
        begin = first * self.WIDTH
        table = np.array(self.cells[begin:], np.int64).reshape(-1, self.WIDTH)
        self.cells[begin:] = array("q", table[np.asarray(order)].tobytes())

    def finish(self, files: Mapping[int, str], facts: Mapping[str, str | int | float]) -> Recording:
        """Return the recording of all that was added, its ranks in ascending order."""
        table = np.array(self.cells, np.int64).reshape(-1, self.WIDTH)
        edges = np.array(self.edges, np.int64).reshape(-1, 3)
        order = np.argsort(table[:, 0], kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        rank, lane, kind, duration, size, flops, code, *rest = np.ascontiguousarray(table[order].T)
        operation, group, peer, tag, number = rest
        src, dst, lag = place[edges[:, 0]], place[edges[:, 1]], edges[:, 2].copy()
        return Recording(
            rank=rank, lane=lane, kind=kind, duration_ps=duration, size_bytes=size, flops=flops,
            name=Codes(code.astype(np.int32), tuple(self.names)), operation=operation,
            group=group, peer=peer, tag=tag, number=number, src=src, dst=dst, lag_ps=lag,
            groups=tuple(self.groups), files=files, facts=facts,
        )  # fmt: skip


def too_many_nodes(named: str, most: int) -> str:
    """Return the message for traces that are longer than what is read."""
    return (
        f"{named} have more than {most:,} nodes, the most that are read. Profile fewer "
        "iterations, or give fewer ranks."
    )
