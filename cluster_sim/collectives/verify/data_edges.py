"""Items of a schedule, each an op and a chunk that it carries, and the edges that hand data on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.lowering.op_loop import COPY, DONE, JOINED, REDUCE
from cluster_sim.collectives.verify.errors import ProofError
from cluster_sim.collectives.verify.op_labels import op_label
from cluster_sim.schedule.table import Schedule
from topologies.arrays import BoolArray, IntArray, distinct


def levels_of(schedule: Schedule) -> IntArray:
    """Return the level of each op: the length of the longest path of edges to it.

    Ops without open edges are numbered and removed, level by level; if none is left before all ops
    are numbered, the rest is on a cycle or behind one.
    """
    edges, ops = schedule.edges, len(schedule)
    waiting = np.bincount(edges.dst, minlength=ops)
    level = np.zeros(ops, np.int32)
    front = np.flatnonzero(waiting == 0)
    depth = done = 0
    while len(front):
        level[front] = depth
        done += len(front)
        depth += 1
        counts = edges.ptr[front + 1] - edges.ptr[front]
        begin = np.repeat(edges.ptr[front] - (np.cumsum(counts) - counts), counts)
        reached = edges.dst[begin + np.arange(counts.sum())]
        np.subtract.at(waiting, reached, 1)
        front = distinct(reached[waiting[reached] == 0])
    if done < ops:
        raise ProofError(f"{ops - done:,} of {ops:,} ops wait for one another in a cycle")
    return level


@dataclass(frozen=True, eq=False)
class Items:
    """Pairs of an op and a chunk that it carries, in order of the ops' levels.

    Attributes
    ----------
    op, chunk, rank, peer : int array (items,)
        Op, chunk, and sending and receiving rank.
    arrives, reduces : bool array (items,)
        Whether the op is the last hop of its message; whether the message is then added.
    level : int array (items,)
        Level of the op, ascending: every edge leads from a lower level to a higher one.
    """

    op: IntArray
    chunk: IntArray
    rank: IntArray
    peer: IntArray
    arrives: BoolArray
    reduces: BoolArray
    level: IntArray


def items_of(
    schedule: Schedule, level: IntArray, content: IntArray | None
) -> tuple[Items, IntArray]:
    """Return the items of all ops that carry chunks, and the first item of each op, -1 for none."""
    what = op_label(schedule, "what")
    ops = np.flatnonzero(what != DONE)
    ops = ops[np.argsort(level[ops], kind="stable")]
    counts = op_label(schedule, "chunks")[ops].astype(np.int64)
    begin = np.cumsum(counts) - counts
    first_item = np.full(len(schedule), -1, np.int64)
    first_item[ops] = begin
    op = np.repeat(ops, counts)
    within = np.arange(len(op)) - np.repeat(begin, counts)
    place = op_label(schedule, "chunk")[op].astype(np.int64) + within
    items = Items(
        op=op,
        chunk=place if content is None else content[place],
        rank=op_label(schedule, "rank")[op].astype(np.int64),
        peer=op_label(schedule, "peer")[op].astype(np.int64),
        arrives=(what[op] == COPY) | (what[op] == REDUCE),
        reduces=what[op] == REDUCE,
        level=level[op],
    )
    return items, first_item


def data_edges(
    schedule: Schedule, items: Items, first_item: IntArray, *, listed: bool
) -> tuple[IntArray, IntArray, BoolArray]:
    """Find the edges from item to item that carry data.

    Returns ``source, target`` (supplies,): items at both ends, in order of ``target``. ``replaces``
    (supplies,): whether the source's value replaces what the rank held before; otherwise it is
    added.
    """
    first, count = op_label(schedule, "chunk").astype(np.int64), op_label(schedule, "chunks")
    rank, peer, what = (op_label(schedule, name) for name in ("rank", "peer", "what"))
    src, dst = schedule.edges.sources(), schedule.edges.dst
    # An arrival or a join supplies later messages of its receiver; an inner hop supplies the next.
    arrives = (what[src] == COPY) | (what[src] == REDUCE) | (what[src] == JOINED)
    same = (rank[src] == rank[dst]) & (peer[src] == peer[dst]) & (first[src] == first[dst])
    carries = (what[dst] != DONE) & np.where(arrives, peer[src] == rank[dst], same)
    src, dst = src[carries], dst[carries]
    if listed:
        source, target = _same_chunks(items, first_item, count, src, dst)
        return source, target, ~items.reduces[source] | ~items.arrives[source]
    # The chunks that both ends carry are the overlap of their ranges.
    low = np.maximum(first[src], first[dst])
    high = np.minimum(first[src] + count[src], first[dst] + count[dst])
    counts = np.maximum(0, high - low)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    source = np.repeat(first_item[src] + low - first[src], counts) + within
    target = np.repeat(first_item[dst] + low - first[dst], counts) + within
    order = np.argsort(target, kind="stable")
    source, target = source[order], target[order]
    return source, target, ~items.reduces[source] | ~items.arrives[source]


def _same_chunks(
    items: Items, first_item: IntArray, count: IntArray, src: IntArray, dst: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the items of the same chunk at both ends of each edge, in order of target."""
    counts = count[dst].astype(np.int64)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    target = np.repeat(first_item[dst], counts) + within
    # Items stand op by op, chunks ascending in each, so op and chunk together are a sorted key.
    span = int(items.chunk.max(initial=0)) + 1
    op_place = np.cumsum(np.append(False, items.op[1:] != items.op[:-1]))
    key = op_place * span + items.chunk
    wanted = np.repeat(op_place[first_item[src]], counts) * span + items.chunk[target]
    place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    in_source = key[place] == wanted
    order = np.argsort(target[in_source], kind="stable")
    return place[in_source][order], target[in_source][order]
