"""Proof that a schedule computes its collective: every contribution arrives exactly once.

The value that an op sends is *defined* by its edges: the value of the copy that they lead from, or
else the rank's own contribution, plus every partial sum that they lead from. So a proven schedule
is right whatever the times. Contributors are bitsets, one row for each op and chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.builder import Collective
from cluster_sim.collectives.lowering import COPY, DONE, ISSUE, JOINED, PASS, REDUCE
from cluster_sim.collectives.messages import EVERY, Chunks
from cluster_sim.schedule.table import Codes, Schedule
from topologies.support.arrays import BoolArray, IntArray, distinct, runs

PROVEN, NOT_CHECKED = "proven", "not-checked"
LARGEST_RANKS = 256  # ranks up to which a collective is proven by default


def prove(collective: Collective) -> str:
    """Prove that a schedule computes what its chunks ask for, ``"proven"``, or raise ProofError."""
    schedule, chunks = collective.schedule, collective.chunks
    if not chunks.is_tracked:
        raise ProofError(
            f"{collective.algorithm} on {len(collective.group_of_rank):,} ranks does not list what "
            "its messages carry; use fewer ranks to prove it"
        )
    # Each op but joins moves the bytes of its chunks, along a route without gaps.
    offsets = chunks.offsets()
    first = op_label(schedule, "chunk").astype(np.int64)
    op = np.flatnonzero(op_label(schedule, "what") < JOINED)
    first, last = first[op], first[op] + op_label(schedule, "chunks")[op]
    expected = offsets[last] - offsets[first]
    wrong = schedule.size_bytes[op] != expected
    if wrong.any():
        k = int(np.argmax(wrong))
        raise ProofError(
            f"op {op[k]} moves {schedule.size_bytes[op[k]]} B, its chunks have {expected[k]} B"
        )
    check_routes(schedule, collective.chip_of_rank)
    # What each op sends, from the first level to the last.
    level = levels_of(schedule)
    items, first_item = items_of(schedule, level, chunks.content)
    contributors = Contributors.of(chunks, collective.group_of_rank)
    source, target, base = data_edges(
        schedule, items, first_item, listed=chunks.content is not None
    )
    values = _flow(items, contributors, source, target, base)
    # What every rank holds in the end.
    _check_results(items, values, contributors, collective.group_of_rank)
    return PROVEN


def _flow(
    items: Items, contributors: Contributors, source: IntArray, target: IntArray, base: BoolArray
) -> IntArray:
    """Return the contributors of every item, found level by level, as bitsets (items, words)."""
    values = contributors.at_first(items.rank, items.chunk)
    replaced = np.zeros(len(items.op), np.bool_)
    replaced[target[base]] = True
    values[replaced] = 0
    count = np.bitwise_count(values).sum(axis=1, dtype=np.int64)
    ends = np.searchsorted(items.level, np.arange(items.level.max(initial=-1) + 2))
    cuts = np.searchsorted(target, ends)
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        if low == high:
            continue
        into, supply = target[low:high], source[low:high]
        starts = np.flatnonzero(np.append(True, into[1:] != into[:-1]))
        picked = into[starts]
        values[picked] |= np.bitwise_or.reduceat(values[supply], starts, axis=0)
        expected = count[picked] + np.add.reduceat(count[supply], starts)
        count[picked] = np.bitwise_count(values[picked]).sum(axis=1, dtype=np.int64)
        # A union of sets with fewer members than the sets have together holds some member twice.
        _refuse(count[picked] < expected, picked, items, "counts a contribution twice")
    _refuse(count == 0, np.arange(len(count)), items, "is sent by a rank that does not have it")
    return values


def _refuse(bad: BoolArray, rows: IntArray, items: Items, why: str) -> None:
    """Refuse the schedule if any item is bad, naming the first."""
    if bad.any():
        item = int(rows[np.argmax(bad)])
        raise ProofError(
            f"op {items.op[item]}, rank {items.rank[item]} → {items.peer[item]}: "
            f"chunk {items.chunk[item]} {why}"
        )


def _check_results(
    items: Items, values: IntArray, contributors: Contributors, group_of_rank: IntArray
) -> None:
    """Check what every rank holds in the end: the copy that it received, or the sum of all."""
    chunks, ranks = contributors.chunks, len(group_of_rank)
    rank, chunk = _goals(chunks, group_of_rank)
    # Arrivals of chunks that the receiver must hold in the end, each with its goal.
    goal = rank * len(chunks) + chunk
    place = np.full(ranks * len(chunks), -1, np.int64) if len(chunks) else np.empty(0, np.int64)
    place[goal] = np.arange(len(goal))
    arrived = np.flatnonzero(items.arrives)
    where = place[items.peer[arrived] * len(chunks) + items.chunk[arrived]]
    arrived, where = arrived[where >= 0], where[where >= 0]
    copies = np.bincount(where[~items.reduces[arrived]], minlength=len(goal))
    # A copy replaces what the rank had and what was added to it on the way.
    counts = ~items.reduces[arrived] | (copies[where] == 0)
    arrived, where = arrived[counts], where[counts]
    result = contributors.at_first(rank, chunk)
    result[copies > 0] = 0
    counted = np.bitwise_count(result).sum(axis=1, dtype=np.int64)
    arriving = np.bitwise_count(values[arrived]).sum(axis=1, dtype=np.int64)
    np.add.at(counted, where, arriving)
    np.bitwise_or.at(result, where, values[arrived])
    distinct = np.bitwise_count(result).sum(axis=1, dtype=np.int64)
    for bad, why in (
        (copies > 1, "is delivered more than once"),
        (counted > distinct, "counts a contribution twice"),
        (distinct < contributors.full(chunk), "lacks contributions"),
    ):
        if bad.any():
            first = int(np.argmax(bad))
            full = int(contributors.full(chunk[[first]])[0])
            raise ProofError(
                f"chunk {chunk[first]} at rank {rank[first]} {why}: it holds {distinct[first]} "
                f"of {full}"
            )


def _goals(chunks: Chunks, group_of_rank: IntArray) -> tuple[IntArray, IntArray]:
    """Return all pairs of a rank and a chunk that the rank must hold whole in the end."""
    size = np.bincount(group_of_rank)
    order = np.argsort(group_of_rank, kind="stable")
    first = np.cumsum(size) - size
    every = chunks.target == EVERY
    counts = np.where(every, size[chunks.group], 1)
    chunk = np.repeat(np.arange(len(chunks)), counts)
    within = runs(0, counts)
    member = order[np.where(every[chunk], first[chunks.group[chunk]] + within, 0)]
    return np.where(every[chunk], member, chunks.target[chunk]).astype(np.int64), chunk


def op_label(schedule: Schedule, name: str) -> IntArray:
    """Return a label of every op; a label of few values as the numbers of these."""
    label = schedule.labels[name]
    return label.code if isinstance(label, Codes) else label


class ProofError(ValueError):
    """Error for a schedule that does not compute its collective; names chunk, rank and mistake."""


@dataclass(frozen=True, eq=False)
class Contributors:
    """Bits that stand for the contributions of ranks."""

    chunks: Chunks
    bit: IntArray  # (ranks,): bit of each rank's contribution
    size: IntArray  # (groups,): ranks of each group
    words: int  # words of 64 bits in a bitset

    @classmethod
    def of(cls, chunks: Chunks, group_of_rank: IntArray) -> Contributors:
        """Give every rank of a group a bit; where nothing is summed, all share one bit."""
        order = np.argsort(group_of_rank, kind="stable")
        size = np.bincount(group_of_rank)
        bit = np.empty(len(group_of_rank), np.int64)
        bit[order] = runs(0, size)
        summed = (chunks.source == EVERY).any()
        widest = int(size.max(initial=1)) if summed else 1
        return cls(chunks, bit, size, (widest + 63) // 64)

    def at_first(self, rank: IntArray, chunk: IntArray) -> IntArray:
        """Return what a rank holds of a chunk at first, for each pair, as bitsets (rows, words)."""
        source = self.chunks.source[chunk]
        bits = np.where(source == EVERY, self.bit[rank], 0)
        rows = np.zeros((len(rank), self.words), np.uint64)
        holds = np.flatnonzero((source == EVERY) | (source == rank))
        rows[holds, bits[holds] // 64] = np.uint64(1) << (bits[holds] % 64).astype(np.uint64)
        return rows

    def full(self, chunk: IntArray) -> IntArray:
        """Return the number of contributions that each chunk must have in the end."""
        every = self.chunks.source[chunk] == EVERY
        return np.where(every, self.size[self.chunks.group[chunk]], 1)


def check_routes(schedule: Schedule, chip_of_rank: IntArray) -> None:
    """Check that each hop continues the one before, from the sender's to the receiver's chip."""
    rank, peer = op_label(schedule, "rank"), op_label(schedule, "peer")
    what = op_label(schedule, "what")
    # Every op of a message but the last leads to one op, the next of the same message.
    inner = np.flatnonzero((what == ISSUE) | (what == PASS))
    leads = np.diff(schedule.edges.ptr)[inner] == 1
    _refuse_ops(~leads, inner, "does not lead on to the next hop of its message")
    following = schedule.edges.dst[schedule.edges.ptr[inner]]
    same = (rank[inner] == rank[following]) & (peer[inner] == peer[following])
    _refuse_ops(~same, inner, "does not lead on to the next hop of its message")
    # Where one hop over links ends, the next begins.
    resources, resource = schedule.resources, schedule.crossed
    crosses = resource >= 0
    held = np.where(crosses, resource, 0)
    near = np.where(crosses, resources.owner[held], -1)
    # What an adapter sends arrives at another adapter, so its end is -1.
    far = np.where(crosses, resources.peer[held], -1)
    passes = inner[what[inner] == PASS]
    after = schedule.edges.dst[schedule.edges.ptr[passes]]
    gap = crosses[passes] & crosses[after] & (far[passes] >= 0) & (far[passes] != near[after])
    _refuse_ops(gap, passes, "does not lead on to where the next hop begins")
    # The first hop begins at the sender's chip, the last ends at the receiver's.
    first = np.ones(len(schedule), np.bool_)
    first[after] = False
    sends = (what < JOINED) & crosses
    astray = sends & first & (near != chip_of_rank[rank])
    _refuse_ops(astray, np.arange(len(astray)), "does not begin at the sender's chip")
    arrives = sends & ((what == COPY) | (what == REDUCE))
    end = np.where(far >= 0, far, near)
    astray = arrives & (end != chip_of_rank[peer])
    _refuse_ops(astray, np.arange(len(astray)), "does not end at the receiver's chip")


def _refuse_ops(bad: BoolArray, ops: IntArray, why: str) -> None:
    """Refuse the schedule if any op is bad, naming the first."""
    if bad.any():
        raise ProofError(f"op {ops[np.argmax(bad)]} {why}")


def levels_of(schedule: Schedule) -> IntArray:
    """Return the level of each op, the length of the longest path of edges to it."""
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
        reached = edges.dst[runs(edges.ptr[front], counts)]
        np.subtract.at(waiting, reached, 1)
        front = distinct(reached[waiting[reached] == 0])
    if done < ops:
        raise ProofError(f"{ops - done:,} of {ops:,} ops wait for one another in a cycle")
    return level


@dataclass(frozen=True, eq=False)
class Items:
    """Pairs of an op and a chunk that it carries, in order of the ops' levels."""

    op: IntArray
    chunk: IntArray
    rank: IntArray  # that sends …
    peer: IntArray  # … and that receives
    arrives: BoolArray  # the op is the last hop of its message …
    reduces: BoolArray  # … which is then added
    level: IntArray  # ascending: every edge leads from a lower level to a higher one


def items_of(
    schedule: Schedule, level: IntArray, content: IntArray | None
) -> tuple[Items, IntArray]:
    """Return the items of all ops that carry chunks, and the first item of each op, -1 for none."""
    what = op_label(schedule, "what")
    ops = np.flatnonzero(what != DONE)
    ops = ops[np.argsort(level[ops], kind="stable")]
    counts = op_label(schedule, "chunks")[ops].astype(np.int64)
    first_item = np.full(len(schedule), -1, np.int64)
    first_item[ops] = np.cumsum(counts) - counts
    op = np.repeat(ops, counts)
    place = runs(op_label(schedule, "chunk")[ops], counts)
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
    """Find edges that carry data: source, target, and whether the value replaces the old."""
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
    source, target = (runs(first_item[ends] + low - first[ends], counts) for ends in (src, dst))
    order = np.argsort(target, kind="stable")
    source, target = source[order], target[order]
    return source, target, ~items.reduces[source] | ~items.arrives[source]


def _same_chunks(
    items: Items, first_item: IntArray, count: IntArray, src: IntArray, dst: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the items of the same chunk at both ends of each edge, in order of target."""
    counts = count[dst].astype(np.int64)
    target = runs(first_item[dst], counts)
    # Items stand op by op, chunks ascending in each, so op and chunk together are a sorted key.
    span = int(items.chunk.max(initial=0)) + 1
    op_place = np.cumsum(np.append(False, items.op[1:] != items.op[:-1]))
    key = op_place * span + items.chunk
    wanted = np.repeat(op_place[first_item[src]], counts) * span + items.chunk[target]
    place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    in_source = key[place] == wanted
    order = np.argsort(target[in_source], kind="stable")
    return place[in_source][order], target[in_source][order]
