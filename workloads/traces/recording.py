"""``Recording``: the work of all ranks in a trace of any tool, as columns, read within bounds."""

from __future__ import annotations

import gzip
import os
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from cluster_sim.schedule.table import Codes
from topologies.support.arrays import IntArray
from topologies.support.errors import InputError, file_fault
from topologies.support.files.reading import open_regular

NOTHING, COMPUTE, MEMORY, SEND, RECEIVE, COLLECTIVE, HOST = range(7)  # kinds of nodes
KINDS = ("nothing", "compute", "memory", "send", "receive", "collective", "host")
OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "unknown")
"""Collectives that can be timed; an unknown one keeps its recorded time."""
UNKNOWN = OPERATIONS.index("unknown")
MOST_NODES = 2_000_000  # largest number of nodes that are read, of all ranks together
LARGEST_BYTES = 2**28  # largest trace that is read, after decompression [B]
GZIP = b"\x1f\x8b"
LARGEST = 2**62  # bound of every number of a node; no time, size or rank is as large


@dataclass(frozen=True)
class Group:
    """Ranks that communicate."""

    name: str  # name of the group in the trace
    ranks: tuple[int, ...]  # global ranks of the members; empty if the trace does not list them


@dataclass(frozen=True, eq=False)
class Recording:
    """Work of all ranks as nodes, with the nodes that each of them waits for."""

    rank: IntArray  # (nodes,): global rank of each node, ascending
    lane: IntArray  # (nodes,): stream within the rank; nodes of a lane run one at a time
    kind: IntArray  # (nodes,): kind of each node, as a number in ``KINDS``
    duration_ps: IntArray  # (nodes,): recorded duration [ps]; 0 if the trace states none
    size_bytes: IntArray  # (nodes,): bytes that a node communicates or moves [B]; 0 if not stated
    flops: IntArray  # (nodes,): floating-point operations; 0 if not stated
    name: Codes  # name of each node
    operation: IntArray  # (nodes,): number of a collective in ``OPERATIONS``
    group: IntArray  # (nodes,): number of a collective's group in ``groups``; -1 for other nodes
    # peer, tag: (nodes,): other rank of a send or receive, and the tag that distinguishes messages
    peer: IntArray
    tag: IntArray
    number: IntArray  # (nodes,): number of the node in its file
    # src, dst, lag_ps: (edges,): node ``dst`` starts no sooner than ``lag_ps`` after the end of
    # node ``src``
    src: IntArray
    dst: IntArray
    lag_ps: IntArray
    groups: tuple[Group, ...] = ()
    files: Mapping[int, str] = field(default_factory=dict)  # file of each rank
    # Facts on the whole trace: ``format``, ``version``, ``world`` (ranks of the job; 0 if not
    # stated), ``chip`` (on which it was recorded; empty if not stated), ``iterations``,
    # ``recorded_s``
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

    @property
    def world(self) -> int:
        """Ranks up to the last that has work or a part in communication."""
        listed = (max(group.ranks, default=0) + 1 for group in self.groups)
        return max(int(self.facts.get("world", 0)), int(self.rank.max(initial=0)) + 1, *listed, 0)

    @property
    def ranks_of_the_job(self) -> int:
        """Ranks of the job, as far as the trace tells."""
        return max(self.world, int(self.facts.get("stated_world", 0)))

    def on_ranks(self, count: int) -> Recording:
        """Return the recording of a job of another number of ranks, each of which does the same."""
        # The outermost groups within a pipeline stage grow, as of data parallelism; all others keep
        # their size and move with their stage.
        calls, world = self.kind == COLLECTIVE, self.ranks_of_the_job
        if count == world:
            return self
        if not calls.any():
            raise InputError(f"--ranks {count}: the trace has no collective. Leave it out.")
        groups = []
        for number, group in enumerate(self.groups):
            whole = np.isin(self.ranks, self.rank[self.group == number]).all()
            if not group.ranks and not whole:
                raise InputError(
                    f"--ranks {count}: the trace does not say which of its {world:,} ranks are in "
                    f"{group.name or 'a group'}, and so not how it would grow. Leave it out."
                )
            groups.append(group.ranks or tuple(range(world)))
        messages = np.isin(self.kind, (SEND, RECEIVE))
        apart = np.abs(self.peer - self.rank)[messages]
        grid = Grid.of(groups, world, int(apart.min()) if len(apart) else world)
        outside = (self.peer[messages] >= world).any()
        if grid is None or outside or (apart % grid.stage).any() or not grid.is_joined(groups):
            raise InputError(
                f"--ranks {count}: no groups of the trace's {world:,} ranks join replicas of equal "
                "blocks, so what would grow, it does not tell. Leave it out."
            )
        if count * grid.grown % world:
            raise InputError(
                f"--ranks {count}: replicas of the trace are of {world // grid.grown:,} ranks. "
                "State a multiple of them."
            )
        wider = replace(grid, grown=count * grid.grown // world)
        if (self.ranks // grid.inner % grid.grown >= wider.grown).any():
            raise InputError(
                f"--ranks {count}: the trace has rank {int(self.rank.max())}. Name fewer files."
            )
        everyone = [grid.on(wider, ranks) for ranks in groups]
        moved = tuple(
            replace(group, ranks=ranks) for group, ranks in zip(self.groups, everyone, strict=True)
        )
        place = {rank: grid.moved(wider, rank) for rank in self.ranks.tolist()}
        peer = np.where(messages, grid.moved(wider, self.peer), self.peer)
        grown = f"groups of {grid.grown:,} ranks, {grid.inner:,} apart, as of data parallelism"
        facts = {**self.facts, "world": count, "stated_world": count, "grown": grown}
        files = {place[rank]: name for rank, name in self.files.items()}
        rank = grid.moved(wider, self.rank)
        return replace(self, rank=rank, peer=peer, groups=moved, files=files, facts=facts)

    def place(self, node: int) -> str:
        """Return file, number and name of a node, as text for messages."""
        name = self.name.names[int(self.name.code[node])]
        file = self.files.get(int(self.rank[node]), "trace")
        return f"{file}: node {self.number[node]} ({name[:60]})"


@dataclass(frozen=True)
class Grid:
    """Ranks of a job as stages of blocks of ranks, of which a stage may have more or fewer."""

    inner: int  # ranks of a block, which share one replica's tensors
    grown: int  # blocks of a stage: replicas
    stages: int

    @property
    def stage(self) -> int:
        """Ranks of a stage."""
        return self.inner * self.grown

    @classmethod
    def of(cls, groups: Sequence[tuple[int, ...]], world: int, stage: int) -> Grid | None:
        """Read the grid from groups and the distance of stages; None if they fit in none."""
        inner = 1
        for ranks in groups:
            steps = {later - earlier for earlier, later in pairwise(ranks)}
            across = max(ranks) - min(ranks) >= stage or ranks[0] // stage != ranks[-1] // stage
            if len(steps) != 1 or across:
                continue  # of one rank, across stages, or of an uneven shape: tried below
            step = steps.pop()
            inner = max(inner, step if step * len(ranks) >= stage else step * len(ranks))
        if world % stage or stage % inner:
            return None
        grid = cls(inner, stage // inner, world // stage)
        return grid if all(grid.on(grid, ranks) for ranks in groups) else None

    def is_joined(self, groups: Sequence[tuple[int, ...]]) -> bool:
        """Return whether some group has ranks of every block of a stage."""
        blocks = (len({rank // self.inner % self.grown for rank in ranks}) for ranks in groups)
        return self.grown > 1 and self.grown in blocks

    def moved(self, other: Grid, rank: Any) -> Any:
        """Return the number of a rank, or of several, in a grid of other stages."""
        block = rank // self.inner
        return (
            rank % self.inner
            + other.inner * (block % self.grown)
            + other.stage * (rank // self.stage)
        )

    def on(self, other: Grid, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ranks of a group in a grid of other stages; empty if it is no part of one."""
        every = sorted(ranks)
        places = sorted({rank // self.inner % self.grown for rank in every})
        rest = sorted({rank - rank // self.inner % self.grown * self.inner for rank in every})
        blocks = places if len(places) < self.grown else range(other.grown)
        whole = every == sorted(first + self.inner * place for first in rest for place in places)
        if not whole or len(places) not in (1, self.grown):
            return ()
        firsts = [self.moved(other, first) for first in rest]
        return tuple(sorted(first + other.inner * place for first in firsts for place in blocks))


class Node(NamedTuple):
    """One entry of a trace."""

    # It is a tuple, as traces have millions of entries.

    kind: int  # number of its kind in ``KINDS``
    name: str
    number: int  # number of the node in its file
    duration_ps: int = 0  # recorded duration [ps]; 0 if the trace states none
    size_bytes: int = 0  # bytes that it communicates or moves [B]; 0 if not stated
    flops: int = 0  # floating-point operations; 0 if not stated
    operation: int = UNKNOWN  # number of a collective in ``OPERATIONS``
    group: Group | None = None  # ranks that take part in a collective
    # peer, tag: other rank of a send or receive, and the tag that distinguishes messages
    peer: int = -1
    tag: int = 0


class Columns:
    """Builder of a recording, to which readers add nodes and dependencies one by one."""

    # A node takes 96 bytes and a dependency 24.

    WIDTH = 12  # numbers of each node

    def __init__(self) -> None:
        self.cells = array("q")
        self.names: dict[str, int] = {}
        self.edges = array("q")
        self.groups: dict[Group, int] = {}

    def __len__(self) -> int:
        return len(self.cells) // self.WIDTH

    def add(self, rank: int, lane: int, node: Node) -> int:
        """Add a node to a lane of a rank, and return its row."""
        row = len(self)
        if row >= MOST_NODES:
            raise InputError(
                f"the traces have more than {MOST_NODES:,} nodes, the most that are read. Profile "
                "fewer iterations, or give fewer ranks."
            )
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
        """Let node ``dst`` start no sooner than ``lag_ps`` after the end of node ``src``."""
        self.edges.extend((src, dst, lag_ps))

    def reorder(self, first: int, order: Sequence[int]) -> None:
        """Put the nodes from row ``first`` on into an order, before they have dependencies."""
        begin = first * self.WIDTH
        table = np.array(self.cells[begin:], np.int64).reshape(-1, self.WIDTH)
        self.cells[begin:] = array("q", table[np.asarray(order)].tobytes())

    def finish(self, files: Mapping[int, str], facts: Mapping[str, str | int | float]) -> Recording:
        """Return the recording of all added nodes, with ranks in ascending order."""
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


def read_bounded(path: Path, most_bytes: int = LARGEST_BYTES) -> bytes:
    """Return the bytes of a file, decompressed if it is gzip."""
    # No more than the bound is decompressed, so that a decompression bomb is refused too.
    with opened(path, most_bytes) as stream:
        content = stream.read(most_bytes + 1)
        zipped = isinstance(stream, gzip.GzipFile)
    if len(content) > most_bytes:
        raise InputError(too_large(path, most_bytes, " once it is decompressed" if zipped else ""))
    if not content:
        raise InputError(f"{path} is empty. Give a trace.")
    return bytes(content)


@contextmanager
def opened(path: Path, most_bytes: int = LARGEST) -> Iterator[IO[bytes]]:
    """Open a file that may be gzip, and name it in errors of reading."""
    try:
        with open(path, "rb", opener=open_regular) as raw:
            zipped = raw.read(2) == GZIP
            raw.seek(0)
            if not zipped and os.fstat(raw.fileno()).st_size > most_bytes:
                raise InputError(too_large(path, most_bytes, ""))
            yield gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[misc]
    except (EOFError, zlib.error, gzip.BadGzipFile) as mistake:
        why = " ".join(str(mistake).split())[:80]
        raise InputError(
            f"{path}: the gzip is truncated or corrupt ({why}). Copy it again."
        ) from None
    except OSError as fault:
        raise InputError(file_fault(fault)) from None


def too_large(path: Path, most_bytes: int, how: str) -> str:
    """Say that a trace is larger than is read."""
    return (
        f"{path} is over {most_bytes // 2**20:,} MiB{how}, the most that is read. Profile fewer "
        "iterations."
    )
