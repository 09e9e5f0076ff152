"""Checks that every op moves the bytes of its chunks, along routes without gaps."""

from __future__ import annotations

import numpy as np

from cluster_sim.collectives.chunks import Chunks
from cluster_sim.collectives.lowering.op_loop import COPY, ISSUE, JOINED, PASS, REDUCE
from cluster_sim.collectives.verify.errors import ProofError
from cluster_sim.collectives.verify.op_labels import op_label
from cluster_sim.schedule.table import Schedule
from topologies.arrays import BoolArray, IntArray


def check_bytes(schedule: Schedule, chunks: Chunks) -> None:
    """Check that the size of every op, but for joins, is that of its chunks."""
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


def check_routes(schedule: Schedule, chip_of_rank: IntArray) -> None:
    """Check that each hop continues the one before, from the sender's to the receiver's chip."""
    rank, peer = op_label(schedule, "rank"), op_label(schedule, "peer")
    what = op_label(schedule, "what")
    # Every op of a message but the last leads to one op, the next of the same message.
    inner = np.flatnonzero((what == ISSUE) | (what == PASS))
    following = schedule.edges.dst[np.minimum(schedule.edges.ptr[inner], len(schedule.edges) - 1)]
    alone = np.diff(schedule.edges.ptr)[inner] != 1
    same = (rank[inner] == rank[following]) & (peer[inner] == peer[following])
    _refuse_ops(alone | ~same, inner, "does not lead on to the next hop of its message")
    # Where one hop over links ends, the next begins.
    near, far, crosses = _ends_of_hops(schedule)
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


def _ends_of_hops(schedule: Schedule) -> tuple[IntArray, IntArray, BoolArray]:
    """Return the node where each op's resource begins, where it ends, and whether it has one.

    A resource begins at its owner and ends at its peer. The end of an adapter is -1: what it sends
    arrives at another adapter.
    """
    resources, resource, flows = schedule.resources, schedule.resource.copy(), schedule.flows
    bare = resource[flows.op] < 0
    resource[flows.op[bare]] = flows.resource[flows.ptr[:-1][bare]]
    crosses = resource >= 0
    held = np.where(crosses, resource, 0)
    near = np.where(crosses, resources.owner[held], -1)
    far = np.where(crosses, resources.peer[held], -1)
    return near, far, crosses


def _refuse_ops(bad: BoolArray, ops: IntArray, why: str) -> None:
    """Refuse the schedule if any op is bad, naming the first."""
    if bad.any():
        raise ProofError(f"op {ops[np.argmax(bad)]} {why}")
